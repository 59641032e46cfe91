"""An image classifier under autocast with channels-last memory and a cosine schedule."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import ResNetConfig, ResNetForImageClassification

model = ResNetForImageClassification(
    ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", num_labels=10)
)
model = model.cuda().to(memory_format=torch.channels_last).train()
data = TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,)))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
for epoch in range(10):
    for images, labels in loader:
        inputs = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(inputs, labels=labels.cuda(non_blocking=True)).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
