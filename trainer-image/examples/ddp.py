"""PyTorch DDP that can be stopped at any step and goes on exactly there. Under the launcher, torchrun, or alone."""

import torch
from torch.nn import Dropout, Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel
from trainyard_trainer import session

STEPS = 1000

device = session.join()
torch.manual_seed(0)
model = DistributedDataParallel(Sequential(Linear(16, 64), ReLU(), Dropout(0.1), Linear(64, 1)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

step = session.load(model, optimizer, scheduler=scheduler)
while step < STEPS and not session.should_stop(step):
    session.seed(step)  # what is drawn in a step, samples and dropout, follows from the step and the rank
    x = torch.randn(32, 16, device=device)
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    session.report(step, loss, tokens=len(x))
    if session.should_save(step):
        session.save()
session.end()
