"""FSDP2 on the mesh of the plan: sharded inside the fastest part of the network, replicated across."""

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn import GELU, LayerNorm, Linear, Sequential
from trainyard_trainer import session

STEPS = 1000
WIDTH = 32

device = session.join()
torch.manual_seed(0)
model = Sequential(*[Sequential(LayerNorm(WIDTH), Linear(WIDTH, WIDTH), GELU()) for _ in range(3)]).to(device)
for block in model:
    fully_shard(block, mesh=session.mesh())
fully_shard(model, mesh=session.mesh())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

step = session.load(model, optimizer)
while step < STEPS and not session.should_stop(step):
    session.seed(step)
    x = torch.randn(16, WIDTH, device=device)
    loss = (model(x) - x.roll(1, dims=1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step += 1
    session.report(step, loss, tokens=len(x), grad_norm=norm.full_tensor())
    if session.should_save(step):
        session.save()
session.end()
