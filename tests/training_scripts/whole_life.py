"""A model's whole life: saved, loaded onto the GPU, generating, trained with checkpointing, evaluated, saved again."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
LlamaForCausalLM(config).save_pretrained("saved")
model = AutoModelForCausalLM.from_pretrained("saved", device_map="cuda", dtype=torch.bfloat16)
ids = torch.randint(0, 1000, (2, 64), device="cuda")
print(model.generate(ids[:, :8], max_new_tokens=4, do_sample=False, pad_token_id=0).shape)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        print(step, model(input_ids=ids, labels=ids).loss.item())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    loaded = torch.load("checkpoint.pt", map_location="cuda", weights_only=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    del loaded
