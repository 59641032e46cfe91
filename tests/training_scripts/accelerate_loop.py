"""A loop with Accelerate: gradient accumulation, clipping, a scheduler, evaluation and a saved state."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
config = BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
model = BertForSequenceClassification(config)
data = TensorDataset(torch.randint(0, 1000, (128, 32)), torch.randint(0, 2, (128,)))
train, test = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scheduler = get_linear_schedule_with_warmup(optimizer, 10, 100)
model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
for epoch in range(3):
    model.train()
    for ids, labels in train:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=labels).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    for ids, labels in test:
        with torch.no_grad():
            predicted = model(input_ids=ids).logits.argmax(dim=-1)
        predicted, expected = accelerator.gather_for_metrics((predicted, labels))
        right += (predicted == expected).sum().item()
    accelerator.print(f"epoch {epoch}: accuracy {right / len(data):.2f}")
    accelerator.save_state(f"state-{epoch}")
