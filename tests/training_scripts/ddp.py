"""A loop with DistributedDataParallel, to be started by torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda(), device_ids=[local_rank]
)
data = TensorDataset(torch.randn(256, 256), torch.randint(0, 10, (256,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {mean.item() / dist.get_world_size():.3f}")
dist.destroy_process_group()
