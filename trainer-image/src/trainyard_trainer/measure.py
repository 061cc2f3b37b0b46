"""What the order of ranks is worth on this network: all-reduce time of the planned order against random ones.

Runs as a job of its own on the nodes in question, one process each, started by the launcher:

    command: [python3, -m, trainyard_trainer.measure, --mebibytes, "4", --orders, "20"]

Rank 0 prints one line of JSON: seconds of the planned order, of each random order, and their ratio. All orders are measured in
the same run, in turns with the planned one, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one all-reduce, the slowest rank's.

    mebibytes: of the message. planned: median of the planned order. random: one figure per order, in the order of their seeds.
    orders: the random orders themselves, as lists of node ranks. ratio: planned over the median of the random ones.
    """

    mebibytes: float
    planned: float
    random: tuple[float, ...]
    orders: tuple[tuple[int, ...], ...]
    ratio: float


def orders(ranks: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Seeded permutations: the same on every rank and in every run."""
    found = []
    for seed in range(count):
        order = list(range(ranks))
        random.Random(seed).shuffle(order)
        found.append(tuple(order))
    return tuple(found)


def seconds_of(group: dist.ProcessGroup, message: torch.Tensor) -> float:
    """One all-reduce within a group that holds everybody; the time of the slowest rank, which is what training waits for."""
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(message, group=group)
    mine = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


def measure(mebibytes: float, count: int) -> Measured:
    """All orders in turns with the planned one. The first all-reduce of a group connects its ring and is not counted."""
    ranks = dist.get_world_size()
    planned_order = tuple(range(ranks))
    message = torch.ones(int(mebibytes * 2**20 / 4))
    planned_group = _group(planned_order)
    planned, others = [], []
    for order in orders(ranks, count):
        group = _group(order)
        planned.append(seconds_of(planned_group, message))
        others.append(seconds_of(group, message))
        message.fill_(1.0)
        dist.destroy_process_group(group)
    usual = statistics.median(planned)
    return Measured(mebibytes, usual, tuple(others), orders(ranks, count), usual / statistics.median(others))


def _group(order: Sequence[int]) -> dist.ProcessGroup:
    """A group whose ring follows an order of ranks; torch sorts them unless it is told not to."""
    group = dist.new_group(list(order), sort_ranks=False, timeout=timedelta(seconds=120))
    assert isinstance(group, dist.ProcessGroup)
    dist.all_reduce(torch.ones(1024), group=group)
    return group


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="trainyard_trainer.measure", description="What is the order of ranks worth here?"
    )
    parser.add_argument("--mebibytes", type=float, default=4.0, help="size of the message (default: %(default)s)")
    parser.add_argument("--orders", type=int, default=20, help="how many random orders (default: %(default)s)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    measured = measure(given.mebibytes, given.orders)
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(asdict(measured)), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
