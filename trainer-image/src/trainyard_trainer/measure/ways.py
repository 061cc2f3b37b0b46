"""The collectives that are measured, and the ways in which each is done here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Final, cast

import torch
import torch.distributed as dist
from trainyard.contract.measured import Way
from trainyard.contract.plan import Plan

from trainyard_trainer.measure import trees

FLOAT_BYTES: Final = 4
TIMEOUT: Final = timedelta(seconds=120)

Once = Callable[[], object]
"""Does it once."""
Make = Callable[[int], Once]
"""Makes the buffers for a message of so many bytes."""


def neighbours(plan: Plan) -> int:
    """How many ranks the hierarchical way takes together: those of a node, else of the narrowest domain in which all ranks have
    as many others, one after another; 0 where there is no such thing."""
    paths = plan.places
    deepest = max(map(len, paths))
    whole = [path if len(path) == deepest else (*path[:-1], *[""] * (deepest - len(path)), path[-1]) for path in paths]
    for depth in range(deepest, 0, -1):
        runs = [len(list(run)) for _, run in groupby(whole, key=lambda path: path[:depth])]
        if len(set(runs)) == 1 and 1 < runs[0] < plan.world_size:
            return runs[0]
    return 0


def ways(plan: Plan, rank: int, device: torch.device) -> Mapping[tuple[str, Way], Make]:
    """By collective and way; none for a single rank. Called by all ranks alike, since it makes process groups."""
    if plan.world_size < 2:
        return {}
    ranks, together = plan.world_size, neighbours(plan)
    found: dict[tuple[str, Way], Make] = {}
    if device.type == "cuda":
        found["all-reduce", Way.LIBRARY] = partial(_all_reduce, ranks=ranks, device=device)
        for way, name in ((Way.RING, "Ring"), (Way.TREE, "Tree")):
            with _nccl_algorithm(name):
                group = _group(range(ranks))
                dist.all_reduce(torch.zeros(1, device=device), group=group)  # NCCL decides when it connects
            found["all-reduce", way] = partial(_all_reduce, ranks=ranks, device=device, group=group)
    else:
        both = trees.both(ranks)
        found["all-reduce", Way.RING] = partial(_all_reduce, ranks=ranks, device=device)
        found["all-reduce", Way.TREE] = partial(_tree, ranks=ranks, rank=rank, both=both)
    if together:
        inside, across = _inside(ranks, together, rank), _across(ranks, together, rank)
        found["all-reduce", Way.HIERARCHICAL] = partial(
            _hierarchical, ranks=ranks, together=together, device=device, inside=inside, across=across
        )
    found["all-gather", Way.LIBRARY] = partial(_all_gather, ranks=ranks, device=device)
    found["reduce-scatter", Way.LIBRARY] = partial(_reduce_scatter, ranks=ranks, device=device)
    found["broadcast", Way.LIBRARY] = partial(_broadcast, ranks=ranks, device=device)
    found["send-receive", Way.LIBRARY] = partial(_send_receive, ranks=ranks, rank=rank, device=device)
    return found


def _message(size: int, ranks: int, device: torch.device) -> torch.Tensor:
    """At least one number for each rank."""
    return torch.zeros(max(1, size // FLOAT_BYTES // ranks) * ranks, device=device)


def bytes_of(size: int, ranks: int) -> int:
    """What a message of a size that was asked for has in truth."""
    return max(1, size // FLOAT_BYTES // ranks) * ranks * FLOAT_BYTES


def _all_reduce(size: int, ranks: int, device: torch.device, group: dist.ProcessGroup | None = None) -> Once:
    message = _message(size, ranks, device)
    return lambda: dist.all_reduce(message, group=group)


def _tree(size: int, ranks: int, rank: int, both: tuple[trees.Tree, trees.Tree]) -> Once:
    message = _message(size, ranks, torch.device("cpu"))
    return lambda: trees.all_reduce(message, rank, both)


def _hierarchical(
    size: int,
    ranks: int,
    together: int,
    device: torch.device,
    inside: dist.ProcessGroup,
    across: dist.ProcessGroup,
) -> Once:
    message = _message(size, ranks, device)
    part = torch.zeros(message.numel() // together, device=device)

    def once() -> None:
        dist.reduce_scatter_tensor(part, message, group=inside)
        dist.all_reduce(part, group=across)
        dist.all_gather_into_tensor(message, part, group=inside)

    return once


def _all_gather(size: int, ranks: int, device: torch.device) -> Once:
    whole = _message(size, ranks, device)
    part = torch.zeros(whole.numel() // ranks, device=device)
    return lambda: dist.all_gather_into_tensor(whole, part)


def _reduce_scatter(size: int, ranks: int, device: torch.device) -> Once:
    whole = _message(size, ranks, device)
    part = torch.zeros(whole.numel() // ranks, device=device)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def _broadcast(size: int, ranks: int, device: torch.device) -> Once:
    message = _message(size, ranks, device)
    return lambda: dist.broadcast(message, src=0)


def _send_receive(size: int, ranks: int, rank: int, device: torch.device) -> Once:
    """Each rank to the next, all at once; the last one to nobody."""
    ours, theirs = _message(size, ranks, device), _message(size, ranks, device)
    ops = []
    if rank + 1 < ranks:
        ops.append(dist.P2POp(dist.isend, ours, rank + 1))
    if rank > 0:
        ops.append(dist.P2POp(dist.irecv, theirs, rank - 1))

    def once() -> None:
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return once


def _inside(ranks: int, together: int, rank: int) -> dist.ProcessGroup:
    return _own([range(first, first + together) for first in range(0, ranks, together)], rank)


def _across(ranks: int, together: int, rank: int) -> dist.ProcessGroup:
    return _own([range(first, ranks, together) for first in range(together)], rank)


def _own(groups: Sequence[range], rank: int) -> dist.ProcessGroup:
    """All of them are made by everybody, in the same order; the one that holds this rank."""
    made = [(ranks, _group(ranks)) for ranks in groups]
    return next(group for ranks, group in made if rank in ranks)


def _group(ranks: range) -> dist.ProcessGroup:
    group = dist.new_group(list(ranks), timeout=TIMEOUT)
    return cast(dist.ProcessGroup, group)  # a number where this rank is not in it


@contextmanager
def _nccl_algorithm(name: str) -> Iterator[None]:
    """NCCL reads NCCL_ALGO whenever a group connects."""
    before = os.environ.get("NCCL_ALGO")
    os.environ["NCCL_ALGO"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["NCCL_ALGO"]
        else:
            os.environ["NCCL_ALGO"] = before
