"""What the order of ranks is worth on this network: all-reduce time of the planned order against others.

All orders are measured in one run, in turns with the planned one, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from trainyard.contract.plan import Plan

from trainyard_trainer.measure.sizes import sample
from trainyard_trainer.measure.ways import TIMEOUT

TURNS = 3
"""How many other orders are measured between two times of the planned one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one all-reduce, the slowest rank's.

    mebibytes: of the message. planned: median of the planned order. random: one figure per order, in the order of their seeds.
    orders: the random orders themselves, as lists of node ranks. alternating: of the order in which neighbours are as far apart
    as can be, which is apart. ratio: planned over the median of the random ones.
    """

    mebibytes: float
    planned: float
    random: tuple[float, ...]
    orders: tuple[tuple[int, ...], ...]
    ratio: float
    alternating: float
    apart: tuple[int, ...]


def orders(ranks: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Seeded permutations: the same on every rank and in every run."""
    found = []
    for seed in range(count):
        order = list(range(ranks))
        random.Random(seed).shuffle(order)
        found.append(tuple(order))
    return tuple(found)


def alternating(plan: Plan) -> tuple[int, ...]:
    """The order of ranks in which each is followed by one of another domain, of the broadest level at which they differ."""
    return tuple(_spread(range(plan.world_size), plan.places, 0))


def _spread(ranks: Sequence[int], paths: Sequence[tuple[str, ...]], depth: int) -> list[int]:
    """Deals the ranks of each domain out in turns, those within a domain likewise."""
    if len(ranks) < 2 or all(len(paths[rank]) <= depth for rank in ranks):
        return list(ranks)
    domains: dict[str, list[int]] = {}
    for rank in ranks:
        path = paths[rank]
        domains.setdefault(path[depth] if depth < len(path) else "", []).append(rank)
    hands = [_spread(of, paths, depth + 1) for of in domains.values()]
    return [hand[n] for n in range(max(map(len, hands))) for hand in hands if n < len(hand)]


def measure(mebibytes: float, count: int, apart: Sequence[int], device: torch.device) -> Measured:
    """All orders in turns with the planned one. The first all-reduce of a group connects its ring and is not counted; nor is one
    of a quarter of the message before each that is, since a connection that was idle begins slowly again."""
    ranks = dist.get_world_size()
    message = torch.zeros(int(mebibytes * 2**20 / 4), device=device)

    def timed(group: dist.ProcessGroup) -> float:
        dist.all_reduce(message[: max(1, message.numel() // 4)], group=group)
        return sample(partial(dist.all_reduce, message, group=group), 1, device)

    planned_group = _group(range(ranks), device)
    planned, others = [], []
    for n, order in enumerate((*orders(ranks, count), tuple(apart))):
        if n % TURNS == 0:
            planned.append(timed(planned_group))
        group = _group(order, device)
        others.append(timed(group))
        dist.destroy_process_group(group)
    usual = statistics.median(planned)
    *seeded, worst = others
    return Measured(
        mebibytes=mebibytes,
        planned=usual,
        random=tuple(seeded),
        orders=orders(ranks, count),
        ratio=usual / statistics.median(seeded) if seeded else 1.0,
        alternating=worst,
        apart=tuple(apart),
    )


def _group(order: Sequence[int], device: torch.device) -> dist.ProcessGroup:
    """A group whose ring follows an order of ranks; torch sorts them unless it is told not to."""
    group = dist.new_group(list(order), sort_ranks=False, timeout=TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    dist.all_reduce(torch.ones(1024, device=device), group=group)
    return group
