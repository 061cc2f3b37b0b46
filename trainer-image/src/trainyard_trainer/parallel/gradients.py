"""Norm and clipping of a gradient that is spread over the ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local_parts(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's part of each gradient that there is."""
    parts: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            parts.append(gradient.to_local() if isinstance(gradient, DTensor) else gradient)
    return parts


def norm_squared(parts: list[Tensor], copies: int) -> float:
    """This rank's contribution to the squared norm of the whole gradient: the sum over all ranks is the squared norm.

    copies: how many ranks hold the same part (`mesh.copies`).
    """
    norm: Tensor = nn.utils.get_total_norm(parts)
    return float(norm.double()) ** 2 / copies


@torch.no_grad()
def clip(parts: list[Tensor], norm: float, limit: float) -> None:
    """Scale the gradient down to the norm `limit` if its norm is above it."""
    if norm > limit:
        for part in parts:
            part.mul_(limit / norm)
