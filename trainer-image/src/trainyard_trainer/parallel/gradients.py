"""Norm and clipping of a gradient that is spread over the ranks, each parameter in its own way.

A matrix may be cut over tensor and shard ranks and be there once for each replica; a norm's scale is whole on every tensor rank.
Each rank adds up the squares of what it holds, divided by how many ranks hold the same: the sum over all ranks counts each number
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def copies(parameter: nn.Parameter, ranks: int) -> int:
    """How many of the ranks that hold a parameter, whole or in part, hold the same of it."""
    if not isinstance(parameter, DTensor):
        return ranks
    parts = 1
    for axis, placement in enumerate(parameter.placements):
        if not placement.is_replicate():
            parts *= parameter.device_mesh.size(axis)
    return ranks // parts


def local_parts(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's part of each gradient that there is."""
    parts: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            parts.append(_local(gradient))
    return parts


def norm_squared(held: Mapping[nn.Parameter, int]) -> float:
    """This rank's contribution to the squared norm of the whole gradient: the sum over all ranks is the squared norm.

    held: its parameters, each with how many ranks hold the same of it.
    """
    alike: dict[int, list[Tensor]] = defaultdict(list)
    for parameter, count in held.items():
        if parameter.grad is not None:
            alike[count].append(_local(parameter.grad))
    return sum(float(nn.utils.get_total_norm(parts).double()) ** 2 / count for count, parts in sorted(alike.items()))


@torch.no_grad()
def clip(parts: list[Tensor], norm: float, limit: float, by: float = 1.0) -> None:
    """Multiply the gradient by `by`, after which its norm is `norm`, and scale it down to the norm `limit` if it is above."""
    factor = by * (limit / norm if norm > limit else 1.0)
    if factor != 1.0:
        for part in parts:
            part.mul_(factor)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
