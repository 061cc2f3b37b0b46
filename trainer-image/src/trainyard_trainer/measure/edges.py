"""What one node sends to another, by what lies between them: the links themselves, one level of the network after the other.

At a level each domain sends to one other, so that nobody shares a way up; what a pair reaches is what the way carries for one
node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import torch
import torch.distributed as dist
from trainyard.contract.measured import Edge
from trainyard.contract.plan import Plan

from trainyard_trainer.measure.ways import TIMEOUT
from trainyard_trainer.preflight import exchange
from trainyard_trainer.preflight.pairs import Pair, partner

LEAST_BYTES: Final = 4 * 2**20
"""A shorter message is mostly latency."""


def pairs_at(plan: Plan, depth: int) -> tuple[Pair, ...]:
    """Pairs of nodes that share a domain of this depth (0: only the cluster; the number of levels: the narrowest) and none
    narrower. Each domain below, and each node, stands in one at most."""
    below: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
    for node in range(len(plan.members)):
        path = plan.path(node)
        if len(path) >= depth:
            own = path[: depth + 1] if len(path) > depth else (*path, f"node {node}")
            below.setdefault(path[:depth], {}).setdefault(own, node)
    return tuple(
        pair
        for first in below.values()
        for pair in zip(list(first.values())[::2], list(first.values())[1::2], strict=False)
    )


def measured(
    plan: Plan, rank: int, sizes: Sequence[int], device: torch.device, allowance_seconds: float
) -> Iterator[Edge]:
    """Called by all ranks alike, which get the same; broadest level first, none for a level without a pair. The processes of a
    node send all at once: together they are as fast as the slowest of them times their number. allowance_seconds: for a level."""
    group = dist.new_group(timeout=TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    node, local = divmod(rank, plan.processes_per_node)
    for depth in range(len(plan.levels) + 1):
        turn = pairs_at(plan, depth)
        if not turn:
            continue
        speeds = torch.full((len(turn),), float("inf"), dtype=torch.float64, device=device)
        other = partner(turn, node)
        if other is not None:
            once = exchange.with_peer(group, rank, other * plan.processes_per_node + local, device)
            timed = exchange.grow(once, max(LEAST_BYTES, *sizes), allowance_seconds, exchange.WAYS)
            speeds[next(n for n, pair in enumerate(turn) if node in pair)] = timed.bytes_per_second
        dist.all_reduce(speeds, op=dist.ReduceOp.MIN)
        yield Edge(depth, median(speeds.tolist()) * plan.processes_per_node, len(turn))
    dist.destroy_process_group(group)
