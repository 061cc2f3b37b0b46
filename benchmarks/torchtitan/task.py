"""What both train: the model, the samples, the steps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from trainyard.api.trainer import TrainerConfig
from trainyard_trainer.data.batches import Batch, batches_of
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer

STEPS: Final = 30
LEFT_OUT: Final = 5
"""First steps, which connect and allocate, count for the losses alone."""
CONFIG: Final = TrainerConfig.model_validate(
    {
        "model": {
            "layers": 6,
            "width": 256,
            "heads": 16,
            "kvHeads": 16,
            "hidden": 768,
            "tieEmbeddings": False,
            "normEpsilon": 1e-5,
        },
        "data": {"files": [__file__], "sequenceLength": 64, "globalBatch": 8, "microBatch": 4},
        "optimizer": {"learningRate": 1e-3, "warmupSteps": 0, "finalFraction": 1.0, "weightDecay": 0.0, "beta2": 0.95},
        "steps": STEPS,
    }
)


def rank() -> int:
    return int(os.environ["RANK"])


def ranks() -> int:
    return int(os.environ["WORLD_SIZE"])


def batches() -> Iterator[Batch]:
    """This rank's micro-batch of every step; there is one."""
    mine = batches_of(CONFIG, corpus_of(CONFIG), CONFIG.data.micro_batch, rank(), ranks())
    for step in range(1, STEPS + 1):
        (batch,) = mine.step(step)
        yield batch


def whole_weights() -> dict[str, Tensor]:
    """The first weights of the whole model, by our names."""
    model = Transformer.of(CONFIG.model)
    weights.draw(model, CONFIG.model.shape.layers, CONFIG.seed)
    return {name: value.detach() for name, value in model.named_parameters()}


class Diary:
    """Loss and time of each step, told by the first rank as one line of JSON."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self, loss: float) -> None:
        self._seconds.append(time.perf_counter() - self._began)
        self._losses.append(loss)

    def tell(self) -> None:
        if rank() == 0:
            print(json.dumps({"losses": self._losses, "seconds": self._seconds}), flush=True)
