"""The loss of a micro-batch: cross-entropy of the next token, summed over the tokens that count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from trainyard_trainer.data.batches import IGNORED

IN_LOSS: ContextVar[bool] = ContextVar("in_loss", default=False)
"""Whether the loss is computed just now: the ledger tells by it what a tensor group sums."""


def cross_entropy(logits: Tensor, targets: Tensor, vocabulary: int, mesh: DeviceMesh | None = None) -> Tensor:
    """Summed over the tokens (B T) whose target counts, in nats, in float32 or what is more exact.

    logits: B T V. mesh: where they are cut along the vocabulary, over whose ranks; then each has the loss of all, and
    `on_parts` must be around this and the backward pass.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    if mesh is not None:
        logits = DTensor.from_local(
            logits,
            mesh,
            (Shard(1),),
            run_check=False,
            shape=torch.Size((len(logits), vocabulary)),
            stride=(vocabulary, 1),
        )
    token = IN_LOSS.set(True)
    try:
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    finally:
        IN_LOSS.reset(token)


@contextmanager
def on_parts(cut: bool) -> Iterator[None]:
    """Around forward and backward passes: whether the loss is computed on parts of the vocabulary."""
    with loss_parallel() if cut else nullcontext():
        yield
