"""Whom to ask to leave, so that a gang of higher priority fits.

Only jobs of lower priority, and none unless it helps. Where jobs of low priority are enough no higher one is touched. Then what
costs least: GPU-seconds of work that is lost or repeated, as `planner.loss` counts them, rounded to whole ones. Of sets that cost
the same the one of the fewest jobs, then the one after which the gang has the best place, then jobs of lowest priority, then the
youngest, then the smallest. A job leaves as a whole; one that can run with fewer members may give up some of its nodes instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from trainyard.planner.loss import NOTHING, Loss
from trainyard.planner.place import AVOIDED, Placement, place, required_depth
from trainyard.planner.request import Request
from trainyard.planner.victims import TIE, Moves, Solution, Tenancy, Tenant
from trainyard.world.records import Resources
from trainyard.world.room import Room

KEPT: Final = "kept for others"
"""Why a node that an older job is gathering is not eligible."""

MOST_PLANS: Final = 8
"""How many sets that cost the same are planned, to see which leaves the best place."""

_ONE_JOB: Final = TIE
_ONE_GPU_SECOND: Final = TIE << 20  # more jobs than there can be


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that holds nodes.

    key: namespace and name; started: of its attempt. usage: what it takes by node, its members that are still to be made
    included. members: how many of its members are on a node, where it is not one. accelerators: of all members, or processes
    where they have none. loss: what it loses by giving way. at_least: with how many members it would go on; None: only with all.
    """

    uid: str
    key: str
    priority: int
    started: float
    usage: Mapping[str, Resources]
    accelerators: int = 0
    loss: Loss = NOTHING
    at_least: int | None = None
    members: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many members it has."""
        return sum(self.members.get(node, 1) for node in self.usage)


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who gives way, and what for.

    victims: uids of the jobs that must leave, all of them. shrink: uids of those that go on with fewer members, with how many;
    vacated: the nodes that these leave. freed: what all of them leave behind, by node. placement: the nodes that the gang then
    gets. cost_gpu_seconds: what giving way costs all of them.
    """

    victims: tuple[str, ...]
    placement: Placement
    shrink: Mapping[str, int] = field(default_factory=dict)
    vacated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    freed: Mapping[str, Resources] = field(default_factory=dict)
    cost_gpu_seconds: float = 0.0


def preempt(
    room: Room,
    request: Request,
    priority: int,
    candidates: Sequence[Candidate],
    without: Collection[str] = frozenset(),
) -> Preemption | None:
    """Who must give way for a gang that has no place now; None where it has one, or nobody of lower priority could make one.

    priority: of the gang. without: nodes that it may not have. Nobody can be left out: with any one of them staying as it is, or
    a shrinking one on one more of its nodes, the gang would not fit.
    """
    depth = required_depth(room.inventory.tree, request)
    if depth is None:
        return None
    lower = sorted((c for c in candidates if c.priority < priority), key=_preference)
    tenancy = _tenancy(room, request, depth, lower, without)
    if tenancy.suffices():
        return None
    allowed = _allowed(tenancy, lower)
    if allowed is None:
        return None
    solutions = sorted(tenancy.solutions(allowed), key=lambda one: (-one.depth, one.price))[:MOST_PLANS]
    return _best(room, request, tenancy, lower, solutions)


def _preference(candidate: Candidate) -> tuple[int, float, int, str, str]:
    return candidate.priority, -candidate.started, len(candidate.usage), candidate.key, candidate.uid


def _tenancy(room: Room, request: Request, depth: int, lower: Sequence[Candidate], without: Collection[str]) -> Tenancy:
    demand = request.demand
    supply = room.supply(demand).without(request.avoid, AVOIDED)
    if without:
        supply = supply.without(without, KEPT)
    index = supply.index

    def tenant(rank: int, candidate: Candidate) -> Tenant:
        spots = {
            position: (usage, candidate.members.get(node, 1))
            for node, usage in candidate.usage.items()
            if (position := index.position.get(node)) is not None and supply.slots[position] < supply.whole[position]
        }
        accelerators = max(candidate.accelerators, candidate.size)
        leave = round(candidate.loss.leaving(accelerators)) * _ONE_GPU_SECOND + _ONE_JOB + 2 * rank + 1
        shrink = round(candidate.loss.shrinking(accelerators)) * _ONE_GPU_SECOND + _ONE_JOB + 2 * rank
        dispensable = 0 if candidate.at_least is None else max(0, candidate.size - max(1, candidate.at_least))
        return Tenant(dict(sorted(spots.items())), leave, shrink, dispensable)

    return Tenancy(
        supply=supply,
        fit=lambda position, more: room.slots_with(demand, index.names[position], more),
        members=request.nodes,
        depth=depth,
        tenants=[tenant(rank, candidate) for rank, candidate in enumerate(lower)],
    )


def _allowed(tenancy: Tenancy, lower: Sequence[Candidate]) -> list[int] | None:
    """The candidates of the lowest priorities that together make room, by number; None where all together do not."""
    allowed: list[int] = []
    for _, alike in groupby(range(len(lower)), key=lambda number: lower[number].priority):
        allowed += [number for number in alike if tenancy.tenants[number].spots]
        if tenancy.suffices(tenancy.after(dict.fromkeys(allowed))):
            return allowed
    return None


def _best(
    room: Room, request: Request, tenancy: Tenancy, lower: Sequence[Candidate], solutions: Sequence[Solution]
) -> Preemption | None:
    """Of solutions that cost the same the one that leaves the best place."""
    planned: list[tuple[tuple[int, ...], int, Moves, Placement]] = []
    for solution in solutions:
        moves = tenancy.trimmed(solution.moves)
        placement = place(tenancy.after(moves), replace(request, avoid=frozenset()))
        if isinstance(placement, Placement):
            worth = (*placement.spans.values(), *placement.crossings.values())
            planned.append((worth, solution.price, moves, placement))
    if not planned:
        return None
    _, _, moves, placement = min(planned, key=lambda one: one[:2])
    return _said(room, tenancy, lower, moves, placement)


def _said(room: Room, tenancy: Tenancy, lower: Sequence[Candidate], moves: Moves, placement: Placement) -> Preemption:
    names = tenancy.supply.index.names
    freed: dict[str, dict[str, int]] = {}
    shrink: dict[str, int] = {}
    vacated: dict[str, tuple[str, ...]] = {}
    cost = 0.0
    for number in sorted(moves):
        positions, candidate = moves[number], lower[number]
        accelerators = max(candidate.accelerators, candidate.size)
        if positions is None:
            nodes = tuple(candidate.usage)
            cost += candidate.loss.leaving(accelerators)
        else:
            nodes = vacated[candidate.uid] = tuple(names[position] for position in positions)
            shrink[candidate.uid] = candidate.size - sum(candidate.members.get(node, 1) for node in nodes)
            cost += candidate.loss.shrinking(accelerators)
        for node in nodes:
            at = freed.setdefault(node, {})
            for name, amount in candidate.usage[node].items():
                at[name] = at.get(name, 0) + amount
    victims = tuple(lower[number].uid for number in sorted(moves) if moves[number] is None)
    return Preemption(victims, placement, shrink, vacated, freed, cost)
