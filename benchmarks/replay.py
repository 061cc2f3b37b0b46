"""A trace of jobs on a cluster, once for every policy.

What the trace counts in accelerators is taken as nodes here: a job of 8 GPUs becomes a gang of 8 nodes. Jobs of one GPU are
no gangs and are left out. Arrivals are drawn together so that the offered load, the node-seconds of all jobs over those of
the cluster between the first and the last arrival, is what is asked for; durations stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Final

from trainyard.topology.tree import Index
from trainyard.world.supply import Supply

from benchmarks.contention import Network
from benchmarks.lingjun import Arrival
from benchmarks.queueing import Run, Work, Yard
from benchmarks.rivals.rival import Rival

JOBS: Final = 5000
LOAD: Final = 0.75
"""Offered load."""
SHARE: Final = 0.3
"""Of the time of a gang that is placed as well as can be, the part in which it communicates."""
OVERSUBSCRIPTION: Final = (1.0, 1.0, 2.0)
"""Of each level of the network over the one below, broadest first."""
SIZES: Final = ((2, 2), (3, 4), (5, 8), (9, 16), (17, 10_000))
"""Classes of gang sizes by which waiting is told apart."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trace under one policy. Means are over the jobs; times in seconds.

    spread: narrowest domains used over the fewest that could hold a gang of the size; edges: ring edges that leave a
    narrowest domain; communication: time over that of the best placement, by job and weighted by node-seconds; waiting: mean,
    90th percentile and mean by class of size; utilisation: share of the node-seconds between the first and the last arrival
    in which a node was held, useful: in which it did what the trace's job did, without what communication cost beyond the
    best.
    """

    spread: float
    edges: float
    communication: float
    communication_weighted: float
    waiting: float
    waiting_p90: float
    waiting_by_size: Mapping[str, float]
    utilisation: float
    useful: float


def workload(arrivals: Sequence[Arrival], nodes: int, jobs: int = JOBS, load: float = LOAD) -> list[Work]:
    """The first gangs of a trace that fit a cluster of so many nodes, at the load that is asked for."""
    gangs = [job for job in arrivals if 2 <= job.gpus <= nodes][:jobs]
    first = gangs[0].submitted
    span = sum(job.gpus * job.duration for job in gangs) / (load * nodes)
    pace = span / (gangs[-1].submitted - first)
    return [Work(n, (job.submitted - first) * pace, job.duration, job.gpus) for n, job in enumerate(gangs)]


def replay(
    empty: Supply,
    jobs: Sequence[Work],
    policy: Rival,
    share: float = SHARE,
    oversubscription: Sequence[float] = OVERSUBSCRIPTION,
) -> Outcome:
    """One policy's outcome on a cluster that is empty at first."""
    network = Network(empty.index, oversubscription)
    return outcome(empty, Yard(empty, policy, network, share).replay(jobs))


def outcome(empty: Supply, runs: Sequence[Run]) -> Outcome:
    """The measures of a replay."""
    index, fewest = empty.index, fewest_leaves(empty)
    used = [len({index.innermost[position] for position in run.ranks}) for run in runs]
    waits = sorted(run.start - run.work.submitted for run in runs)
    weights = [run.work.nodes * run.work.seconds for run in runs]
    until = max(run.work.submitted for run in runs)
    total = until * empty.free_in[0] or inf
    return Outcome(
        spread=fmean(leaves / fewest(run.work.nodes) for leaves, run in zip(used, runs, strict=True)),
        edges=fmean(leaf_edges(index, run.ranks) for run in runs),
        communication=fmean(run.slowdown for run in runs),
        communication_weighted=fmean((run.slowdown for run in runs), weights),
        waiting=fmean(waits),
        waiting_p90=waits[int(0.9 * (len(waits) - 1))],
        waiting_by_size={
            f"{low}" if low == high else (f"{low}-{high}" if high < 10_000 else f"{low}+"): fmean(found)
            for low, high in SIZES
            if (found := [run.start - run.work.submitted for run in runs if low <= run.work.nodes <= high])
        },
        utilisation=sum(len(run.ranks) * _within(run.start, run.end, until) for run in runs) / total,
        useful=sum(
            len(run.ranks) * _within(run.start, run.end, until) * run.work.seconds / (run.end - run.start)
            for run in runs
        )
        / total,
    )


def fewest_leaves(empty: Supply) -> Callable[[int], int]:
    """How few narrowest domains hold a gang of some size where all is free: the largest first."""
    sizes = sorted((empty.free_in[number] for number in empty.index.at_depth[-1]), reverse=True)
    held = [0]
    for size in sizes:
        held.append(held[-1] + size)
    return lambda members: next(count for count, room in enumerate(held) if room >= members)


def leaf_edges(index: Index, ranks: Sequence[int]) -> int:
    """Ring edges that leave a narrowest domain."""
    leaf = index.innermost
    return sum(leaf[a] != leaf[b] for a, b in zip(ranks, [*ranks[1:], *ranks[:1]], strict=True))


def _within(start: float, end: float, until: float) -> float:
    """How much of a time is before another."""
    return max(0.0, min(end, until) - start)
