"""The built-in trainer's step, as train.py takes it, on weights sharded over all processes."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor
from trainyard.contract.plan import Axis
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.optimizer import adamw, learning_rate, set_learning_rate
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread

from benchmarks.torchtitan.task import CONFIG, STEPS, Diary, batches, rank, ranks, whole_weights


def main() -> None:
    diary = Diary()
    meet(Place.of(os.environ, rank(), ranks()), torch.device("cpu"), 60.0, lambda: False)
    mesh = build((Axis("shard", ranks()),), ranks(), "cpu")
    with torch.device("meta"):
        model = Transformer.of(CONFIG.model)
    spread = Spread(model, mesh, torch.device("cpu"), CONFIG.parallel)
    first = whole_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor)
            part = distribute_tensor(first[name], parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(part.to_local())
    optimizer = adamw(model, CONFIG.optimizer)
    tokens = CONFIG.data.global_batch * CONFIG.data.sequence_length
    for step, batch in enumerate(batches(), start=1):
        diary.begin()
        loss = spread.learn([batch], tokens)
        sums = torch.tensor([loss, spread.norm_squared()], dtype=torch.float64)
        dist.all_reduce(sums)
        spread.clip(float(sums[1]) ** 0.5, CONFIG.optimizer.clip_norm)
        set_learning_rate(optimizer, learning_rate(step, STEPS, CONFIG.optimizer))
        optimizer.step()
        optimizer.zero_grad()
        diary.end(float(sums[0]))
    diary.tell()


if __name__ == "__main__":
    main()
