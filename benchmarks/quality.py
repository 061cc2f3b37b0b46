"""How good single placements are, on draws of a cluster of which so large a share is free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Final

from trainyard.planner.cost import default_edges
from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import Node, Resources
from trainyard.world.supply import Supply

from benchmarks.clusters import MEMBER, NVL_MEMBER, occupied
from benchmarks.figures import Figure
from benchmarks.optimum import fewest_edges, optimum, price_of, ring_cost, ring_edges
from benchmarks.policies import Trainyard, rivals
from benchmarks.rivals import kueue
from benchmarks.rivals.best_fit import BestFit
from benchmarks.rivals.rival import Rival

DRAWS: Final = 300
SHUFFLED: Final = "best-fit nodes, random ranks"
SEGMENT: Final = 16
SEGMENTS: Final = 8
INSTANCES: Final = 60
"""Of which HiGHS proves the optimum, spread evenly over the cases."""


@dataclass(frozen=True, slots=True)
class Case:
    """A gang of so many nodes where so large a share of the cluster is free."""

    members: int
    free: float

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.members} nodes, {self.free:.0%} free"


LINGJUN: Final = (Case(32, 0.5), Case(32, 0.2))


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster to place on. prefix: of its figures, "" for the real one. edges_bar: of `edges_over_best_fit`; None where an
    edge out of a narrowest domain is worth paying, since it saves one out of a broader one that costs more."""

    prefix: str
    nodes: Sequence[Node]
    cases: Sequence[Case]
    member: Resources = field(default_factory=lambda: MEMBER)
    edges_bar: float | None = None

    def draws(self, case: Case, count: int) -> Iterator[Supply]:
        """So many; the seed of each is its number. Draws in which the gang has no room are left out."""
        for seed in range(count):
            room = self.room(case.free, seed)
            if room.free_in[0] >= case.members:
                yield room

    def room(self, free: float, seed: int) -> Supply:
        """What is free where nodes are taken at random."""
        return Inventory.of(occupied(self.nodes, 1 - free, seed)).supply(demand({}, self.member))


def edges(site: Site, draws: int = DRAWS) -> list[Figure]:
    """Ring edges: over the fewest for the nodes that were chosen, at every level; and those out of the narrowest level over
    those of best fit with sorted ranks. The figure is the worst of the cases."""
    minimum: dict[str, float] = {}
    means: dict[str, dict[str, float]] = {}
    for case in site.cases:
        ours = Trainyard(site.member)
        policies: list[Rival] = [ours, *rivals(seed=1)]
        found: dict[str, list[int]] = {policy.name: [] for policy in policies}
        found[SHUFFLED] = []
        shuffle = Random(1)
        ratios = []
        for room in site.draws(case, draws):
            for policy in policies:
                ranks = policy.place(room, case.members)
                if ranks is None:  # what waits is not counted; only a required label does
                    continue
                there = ring_edges(room, ranks)
                found[policy.name].append(there[-1])
                if policy.name == BestFit.name:
                    found[SHUFFLED].append(ring_edges(room, shuffle.sample(ranks, len(ranks)))[-1])
                if policy is ours:
                    ratios += [a / b if b else 1.0 + a for a, b in zip(there, fewest_edges(room, ranks), strict=True)]
        minimum[case.name] = max(ratios)
        means[case.name] = {name: fmean(edges) for name, edges in found.items() if edges}
    over = {name: _over(mean[Trainyard.name], mean[BestFit.name]) for name, mean in means.items()}
    against = "; ".join(
        f"{name}: ours {mean[Trainyard.name]:.1f}, best fit {mean[BestFit.name]:.1f} ({mean[SHUFFLED]:.1f} with random ranks), "
        f"random {mean['random']:.1f}"
        for name, mean in means.items()
    )
    return [
        Figure(
            f"{site.prefix}edges_over_minimum",
            max(minimum.values()),
            "",
            1.0,
            against="any depth-first order: 1",
            details={"worst": minimum, "draws": draws},
        ),
        Figure(
            f"{site.prefix}edges_over_best_fit",
            max(over.values()),
            "",
            site.edges_bar,
            against=against,
            details={"cases": over, "means": means, "draws": draws},
        ),
    ]


def cost(site: Site, instances: int = INSTANCES) -> list[Figure]:
    """The planner's cost over the proven optimum: the mean, of fixed instances."""
    levels = len(Inventory.of(occupied(site.nodes, 0.0, 0)).tree.levels)
    price = price_of(default_edges(levels), levels)
    ours, best_fit = Trainyard(site.member), BestFit()
    ratios: dict[str, list[float]] = {case.name: [] for case in site.cases}
    others: dict[str, list[float]] = {case.name: [] for case in site.cases}
    unproven = 0
    for case in site.cases:
        for room in site.draws(case, instances // len(site.cases)):
            least, ranks, other = (
                optimum(room, case.members, price),
                ours.place(room, case.members),
                best_fit.place(room, case.members),
            )
            if least is None or ranks is None or other is None:
                raise AssertionError("a gang for which there is room has no place")
            unproven += not least.proven
            ratios[case.name].append(ring_cost(room, ranks, price) / least.bound)
            others[case.name].append(ring_cost(room, other, price) / least.bound)
    everything, theirs = ([r for of_case in found.values() for r in of_case] for found in (ratios, others))
    details = {
        "instances": len(everything),
        "unproven": unproven,
        "worst": max(everything),
        "cases": {name: fmean(of_case) for name, of_case in ratios.items()},
        "best_fit": {name: fmean(of_case) for name, of_case in others.items()},
    }
    against = f"best fit with sorted ranks: {fmean(theirs):.3f}, worst {max(theirs):.3f}"
    worst = max(a / b for a, b in zip(everything, theirs, strict=True))
    return [
        Figure(f"{site.prefix}cost_over_optimum", fmean(everything), "", 1.02, against=against, details=details),
        Figure(f"{site.prefix}cost_over_best_fit", worst, "", 1.0 + 1e-9, against="the worst instance"),
    ]


def segments(nodes: Sequence[Node], draws: int) -> Figure:
    """On racks of 18 nodes, of which 10 % are taken: a gang of 8 segments of 16 that each must have an NVLink domain of its
    own.

    The figure is the share of segments, 16 consecutive ranks each, that lie in one rack, over draws in which 8 racks have the
    room.
    """
    site = Site("nvl72.", nodes, (), NVL_MEMBER)
    shares: dict[str, list[float]] = {}
    for seed in range(draws):
        room = site.room(0.9, seed)
        if sum(room.free_in[number] >= SEGMENT for number in room.index.at_depth[-1]) < SEGMENTS:
            continue
        for policy in (Trainyard(NVL_MEMBER, SEGMENT, "nvlink"), kueue.best_fit(), BestFit()):
            ranks = policy.place(room, SEGMENT * SEGMENTS)
            if ranks is None:
                raise AssertionError(f"{policy.name} finds no place for segments that have one")
            racks = [
                {room.index.innermost[position] for position in ranks[first : first + SEGMENT]}
                for first in range(0, len(ranks), SEGMENT)
            ]
            shares.setdefault(policy.name, []).append(sum(len(rack) == 1 for rack in racks) / SEGMENTS)
    means = {name: fmean(found) for name, found in shares.items()}
    others = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items() if name != Trainyard.name)
    against = f"rules that are not told of segments: {others}"
    details = {"draws": len(shares[Trainyard.name])}
    return Figure(
        "nvl72.segments_in_one_rack", means[Trainyard.name], "", 1.0, most=False, against=against, details=details
    )


def _over(ours: float, other: float) -> float:
    """A ratio of means, 1 where both are 0."""
    if other:
        return ours / other
    return 1.0 if ours == 0 else float("inf")
