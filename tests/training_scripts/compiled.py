"""A model under torch.compile."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)).cuda()
model = torch.compile(model, backend=sys.argv[1] if len(sys.argv) > 1 else "inductor")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    loss = model(torch.randn(32, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
