"""Training scripts that know nothing of memsim, as the tests of dry runs write them to a folder."""

REPORT = """
def report():
    s = torch.cuda.memory_stats()
    print("STATS", s["requested_bytes.all.peak"], torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""

# A GPT of two blocks in the manner of nanoGPT: its own attention, tied head, micro-batches, GradScaler-free fp32.
NANO_GPT = (
    """
import math, sys
import torch, torch.nn as nn, torch.nn.functional as F
"""
    + REPORT
    + """
class Attention(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.n, self.c_attn, self.c_proj = n, nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x):
        B, S, D = x.shape
        q, k, v = (t.view(B, S, self.n, D // self.n).transpose(1, 2) for t in self.c_attn(x).split(D, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, S, D))
class Block(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(d), Attention(d, n), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
class GPT(nn.Module):
    def __init__(self, V=1024, S=256, d=512, n=8, layers=2):
        super().__init__()
        self.wte, self.wpe, self.ln_f = nn.Embedding(V, d), nn.Embedding(S, d), nn.LayerNorm(d)
        self.h = nn.ModuleList(Block(d, n) for _ in range(layers))
        self.lm_head = nn.Linear(d, V, bias=False)
        self.lm_head.weight = self.wte.weight
    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
try:
    for step in range(10):
        for micro in range(2):
            ids = torch.randint(0, 1024, (8, 256)).cuda()
            logits, loss = model(ids, ids)
            (loss / 2).backward()
            del logits
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print("step", step, flush=True)
finally:
    report()
"""
)

# Sizes with arithmetic: every weight is 4 MiB (1024 x 1024 float32), every activation 1 MiB (256 x 1024 float32).
FOUR_LAYERS = (
    """
import sys
import torch, torch.nn as nn
"""
    + REPORT
    + """
model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(int(sys.argv[1])):
    x = torch.ones(256, 1024, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
report()
"""
)

TRAINER = (
    """
import sys
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
"""
    + REPORT
    + """
class Random(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        ids = torch.full((64,), index)
        return {"input_ids": ids, "labels": ids}
config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=4096)
model = LlamaForCausalLM(config)
arguments = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=2, gradient_accumulation_steps=2,
    max_steps=2, bf16=True, gradient_checkpointing=True, report_to=[], eval_strategy="steps", eval_steps=2,
    save_steps=2, logging_steps=1, disable_tqdm=True)
Trainer(model, arguments, train_dataset=Random(), eval_dataset=Random()).train()
model.eval()
print("GENERATED", model.generate(torch.ones(1, 8, dtype=torch.long, device="cuda"), max_new_tokens=4).shape[1])
report()
"""
)

ACCELERATE = """
import torch, torch.nn as nn
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="fp16")
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 512)), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for (x,) in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
raise SystemExit("the loop was not ended")
"""

# One optimizer for each of two weights of 4 MiB, which steps as soon as the gradient is there and drops it.
STEPS_IN_BACKWARD = """
import torch, torch.nn as nn
model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)).cuda()
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
for count in range(1, 5):
    model(torch.ones(2, 1024, device="cuda")).sum().backward()
    print(count)
"""

# 12 weights of 64 MiB: with gradients and two moments 4 x 768 MiB, which 2 GiB cannot hold.
TOO_LARGE = """
import torch, torch.nn as nn
model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(3):
    model(torch.ones(16, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

CAUGHT = """
import torch
try:
    torch.empty(2**40, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("caught it")
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
"""

# A fork that uses the GPU (7 MiB) and then waits for another process that does (3 MiB), which stays in the background.
FORKS = """
import os, subprocess, sys, time
import torch
if len(sys.argv) > 1:
    x = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
    open(sys.argv[1], "w").close()
    time.sleep(600)
pid = os.fork()
if pid == 0:
    x = torch.empty(7 * 2**20, dtype=torch.uint8, device="cuda")
    sys.exit(0)
os.waitpid(pid, 0)
subprocess.Popen([sys.executable, __file__, "ready"], start_new_session=True)
while not os.path.exists("ready"):
    time.sleep(0.05)
"""

# 8 MiB at first, of which PyTorch's peak is made to forget; then training that no exception and no signal ends.
STUBBORN = """
import signal, time
import torch
del_me = torch.ones(8 * 2**20, dtype=torch.uint8, device="cuda")
del del_me
torch.cuda.reset_peak_memory_stats()
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    try:
        weight.sum().backward()
        optimizer.step()
    except BaseException as error:
        print("swallowed", type(error).__name__, flush=True)
    time.sleep(0.2)
"""

CRASHES = """
import torch
x = torch.ones(10, device="cuda")
raise ValueError("boom")
"""

ENDLESS = """
import sys, time
import torch
x = torch.ones(10, device="cuda")
open("ready", "w").write(str(__import__("os").getpid()))
try:
    time.sleep(600)
finally:
    open("cleaned", "w").close()
"""
