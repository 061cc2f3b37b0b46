"""Where numbers went astray, and on which rank.

Those that stopped being finite: the step is computed once more, and every rank watches what its layers give.

The rank and the layer where it began have finite numbers going in and others coming out, or a gradient coming in that is the
first of them on its way back. Where the second time all is finite, the numbers do not follow from weights and samples: a
machine computed wrongly, and the rank whose loss was another the first time names it.

A loss that is far above those before: every rank tells that of its own samples. If it is one rank's alone, its samples or its
machine are to be looked at; if it is everybody's, the training is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

FAR: Final = 1.5
"""A rank's own loss that is more than so many medians of the others' is far from them."""
MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank saw. first, again: its part of the loss, as computed in the step and once more. weight: the first that is not
    finite. gives, receives: the layer that first gave numbers that are not finite, in the forward pass, and that which first
    received such a gradient, in the backward pass."""

    first: float
    again: float
    weight: str = ""
    gives: str = ""
    receives: str = ""


def find(model: nn.Module, learn: Callable[[], float], first: float, stage: int, norm: Callable[[], float]) -> str:
    """A sentence on the cause; called by all ranks. learn: computes the step again, and gives this rank's part of the loss;
    first: what it was. stage: of the pipeline. norm: the gradient's after `learn`, its square, on this rank."""
    weight = next((name for name, value in model.named_parameters() if not _finite(value)), "")
    with _watched(model) as layers:
        again = learn()
    seen = Seen(first, again, weight, layers.gives, layers.receives)
    every: list[tuple[int, Seen, bool]] = [(0, seen, True)] * dist.get_world_size()
    dist.all_gather_object(every, (stage, seen, isfinite(norm())))
    return tell([(each[0], each[1]) for each in every], all(each[2] for each in every))


def tell(ranks: Sequence[tuple[int, Seen]], gradient_is_finite: bool) -> str:
    """The cause, by what each rank saw. ranks: (stage, what it saw), by rank."""
    stages = {rank: stage for rank, (stage, _) in enumerate(ranks)}
    for what, of, order in _LOOKS:
        found = {rank: of(seen) for rank, (_, seen) in enumerate(ranks) if of(seen)}
        if found:
            rank = min(found, key=lambda rank: (order * stages[rank], rank))
            alike = sorted(other for other in found if stages[other] == stages[rank])
            also = f", as on ranks {', '.join(map(str, alike[1:]))}" if len(alike) > 1 else ""
            return f"rank {rank} {what.format(found[rank])}{also}"
    changed = [rank for rank, (_, seen) in enumerate(ranks) if not isfinite(seen.first) and isfinite(seen.again)]
    if changed:
        seen = ranks[changed[0]][1]
        return (
            f"rank {changed[0]} had a loss of {seen.first:g} and has {seen.again:g} computed again: its machine is to be "
            "suspected, not the training"
        )
    if gradient_is_finite:
        return "computed again everything is finite, and no rank's loss was not: a machine or the network is to be suspected"
    return "every layer gives finite numbers, and what they add up to in the gradient is too large to be held"


def compare(loss: float | None) -> str:
    """A sentence on whose losses a step's comes from; called by all ranks. loss: the mean of this rank's own samples, None where
    it computes none."""
    every: list[float | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, loss)
    return tell_losses(every)


def tell_losses(ranks: Sequence[float | None]) -> str:
    """The same by each rank's own loss, by rank."""
    own = {rank: loss for rank, loss in enumerate(ranks) if loss is not None}
    if len(own) < 2:
        return "there is one rank's loss alone"
    far = [rank for rank, loss in own.items() if loss > FAR * median(own[other] for other in own if other != rank)]
    if not far:
        low, high = min(own, key=lambda rank: own[rank]), max(own, key=lambda rank: own[rank])
        return f"all ranks alike: their own losses are {own[low]:.4g} (rank {low}) to {own[high]:.4g} (rank {high})"
    far.sort(key=lambda rank: -own[rank])
    losses = ", ".join(f"rank {rank}'s own loss is {own[rank]:.4g}" for rank in far[:MOST_NAMED])
    more = f" ({len(far) - MOST_NAMED} more ranks likewise)" if len(far) > MOST_NAMED else ""
    return f"{losses}{more}, and the others' median {median(own[rank] for rank in own if rank not in far):.4g}"


_LOOKS: Final[tuple[tuple[str, Callable[[Seen], str], int], ...]] = (
    ("has a weight that is not finite: {}", lambda seen: seen.weight, 1),
    ("began it: {} gave numbers that are not finite", lambda seen: seen.gives, 1),
    ("began it: a gradient that is not finite came back to {}", lambda seen: seen.receives, -1),
)
"""What is said, of which layer, and whether the first stage of a pipeline is where it began, or the last."""


class _Layers:
    gives = receives = ""


@contextmanager
def _watched(model: nn.Module) -> Iterator[_Layers]:
    """Look at what goes into each layer and what comes out, while this lasts."""
    seen = _Layers()
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:  # the innermost comes first: it has its result before what it is a part of
                handle: RemovableHandle = module.register_forward_hook(partial(_look, seen, name))
                stack.callback(handle.remove)
        yield seen


def _look(seen: _Layers, name: str, module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
    if not seen.gives and not _finite(result) and all(_finite(value) for value in given):
        seen.gives = name
    if isinstance(result, Tensor) and result.requires_grad:
        result.register_hook(partial(_receives, seen, name))  # type: ignore[no-untyped-call]


def _receives(seen: _Layers, name: str, gradient: Tensor) -> None:
    if not seen.receives and not _finite(gradient):
        seen.receives = name


def _finite(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    local = value.to_local() if isinstance(value, DTensor) else value
    return bool(torch.isfinite(local.detach()).all())
