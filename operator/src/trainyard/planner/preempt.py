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
from typing import Final, NamedTuple

from trainyard.planner.loss import NOTHING, Loss
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import AVOIDED, Placement, place, required_depth
from trainyard.planner.request import Request
from trainyard.planner.victims.sets import TIE, Solution, solutions, trimmed
from trainyard.planner.victims.tenancy import Moves, Tenancy, Tenant
from trainyard.world.records import Resources
from trainyard.world.room import Room
from trainyard.world.supply import Supply

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
    outlook: Outlook = PLAIN,
) -> Preemption | None:
    """Who must give way for a gang that has no place now; None where it has one, or nobody of lower priority could make one.

    priority: of the gang. without: nodes that it may not have. Nobody can be left out: with any one of them staying as it is, or
    a shrinking one on one more of its nodes, the gang would not fit.
    """
    case = _case(room, request, priority, candidates, without, outlook)
    if case is None or any(kind.suffices() for kind in case.kinds):
        return None
    without_them = [(kind, kind.supply.copy(), dict[int, tuple[int, ...]]()) for kind in case.kinds]
    for highest, alike in groupby(range(len(case.lower)), key=lambda number: case.lower[number].priority):
        some = list(alike)
        for kind, supply, left in without_them:
            for number in some:
                kind.leave(number, supply, left)
        roomy = [kind for kind, supply, _ in without_them if kind.suffices(supply)]
        if roomy:
            allowed = [number for number, candidate in enumerate(case.lower) if candidate.priority <= highest]
            return _best(case, [_Found(kind, one) for kind in roomy for one in solutions(kind, allowed)])
    return None


@dataclass(frozen=True, slots=True)
class _Case:
    """A gang and those below it.

    lower: in the order of preference. supply: all nodes that it may have; kinds: each kind of them apart, where it must not mix.
    """

    room: Room
    request: Request
    outlook: Outlook
    lower: Sequence[Candidate]
    supply: Supply
    kinds: Sequence[Tenancy]


class _Found(NamedTuple):
    kind: Tenancy
    solution: Solution


def _case(
    room: Room,
    request: Request,
    priority: int,
    candidates: Sequence[Candidate],
    without: Collection[str],
    outlook: Outlook,
) -> _Case | None:
    """None where the cluster has no such level as the gang needs."""
    tree = room.inventory.tree
    depth, segment, segment_depth = required_depth(tree, request), 1, tree.depth(request.segment_level or "") or 0
    if request.segment > 1 and request.segment_level is not None and request.segment_required:
        segment = request.segment
    if depth is None or (segment > 1 and not segment_depth):
        return None
    lower = sorted((c for c in candidates if c.priority < priority), key=_preference)
    demand = request.demand
    supply = room.supply(demand).without(request.avoid, AVOIDED)
    if without:
        supply = supply.without(without, KEPT)
    names = supply.index.names
    kinds = [
        Tenancy(
            supply=kind,
            fit=lambda position, more: room.slots_with(demand, names[position], more),
            members=request.nodes,
            depth=depth,
            tenants=[_tenant(kind, rank, candidate) for rank, candidate in enumerate(lower)],
            segment=segment,
            segment_depth=segment_depth,
        )
        for kind in ([supply] if request.mixed else supply.by_kind())
    ]
    return _Case(room, request, outlook, lower, supply, kinds)


def _preference(candidate: Candidate) -> tuple[int, float, int, str, str]:
    return candidate.priority, -candidate.started, len(candidate.usage), candidate.key, candidate.uid


def _tenant(supply: Supply, rank: int, candidate: Candidate) -> Tenant:
    position, slots, whole = supply.index.position, supply.slots, supply.whole
    spots = {
        at: (usage, candidate.members.get(node, 1))
        for node, usage in candidate.usage.items()
        if (at := position.get(node)) is not None and slots[at] < whole[at]
    }
    accelerators = max(candidate.accelerators, candidate.size)
    leave = round(candidate.loss.leaving(accelerators)) * _ONE_GPU_SECOND + _ONE_JOB + 2 * rank + 1
    shrink = round(candidate.loss.shrinking(accelerators)) * _ONE_GPU_SECOND + _ONE_JOB + 2 * rank
    dispensable = 0 if candidate.at_least is None else max(0, candidate.size - max(1, candidate.at_least))
    return Tenant(dict(sorted(spots.items())), leave, shrink, dispensable)


def _best(case: _Case, found: Sequence[_Found]) -> Preemption | None:
    """Of the cheapest solutions, which are as good, the one that leaves the best place."""
    least = min((one.solution.price for one in found), default=0) // TIE
    ties = [one for one in found if one.solution.price // TIE == least]
    planned: list[tuple[tuple[float, ...], int, Moves, Placement]] = []
    for kind, solution in sorted(ties, key=lambda one: (-one.solution.depth, one.solution.price))[:MOST_PLANS]:
        moves = trimmed(kind, solution.moves)
        placement = place(_after(case, moves), replace(case.request, avoid=frozenset()), case.outlook)
        if isinstance(placement, Placement):
            planned.append((_worth(case.request, placement), solution.price, moves, placement))
    if not planned:
        return None
    _, _, moves, placement = min(planned, key=lambda one: one[:2])
    return _said(case, moves, placement)


def _worth(request: Request, placement: Placement) -> tuple[float, ...]:
    """Less is better: domains of the level that is wished for, if any; the cost of communication."""
    wished = placement.spans.get(request.level, 0) if request.level is not None else 0
    return wished, placement.cost.total, *placement.spans.values()


def _after(case: _Case, moves: Moves) -> Supply:
    """All nodes once these moves are made."""
    supply, demand = case.supply.copy(), case.request.demand
    for node, more in _freed(case, moves).items():
        position = supply.index.position.get(node)
        if position is not None and supply.reasons[position] is None:
            supply.put(position, case.room.slots_with(demand, node, more))
    return supply


def _freed(case: _Case, moves: Moves) -> Mapping[str, Resources]:
    """By node what is left behind."""
    freed: dict[str, dict[str, int]] = {}
    for number, nodes in _left(case, moves).items():
        for node in nodes:
            at = freed.setdefault(node, {})
            for name, amount in case.lower[number].usage[node].items():
                at[name] = at.get(name, 0) + amount
    return freed


def _left(case: _Case, moves: Moves) -> Mapping[int, Collection[str]]:
    """The nodes that each leaves, all of them or some."""
    names = case.supply.index.names
    return {
        number: case.lower[number].usage.keys() if some is None else [names[position] for position in some]
        for number, some in sorted(moves.items())
    }


def _said(case: _Case, moves: Moves, placement: Placement) -> Preemption:
    shrink: dict[str, int] = {}
    vacated: dict[str, tuple[str, ...]] = {}
    cost = 0.0
    for number, nodes in _left(case, moves).items():
        candidate = case.lower[number]
        accelerators = max(candidate.accelerators, candidate.size)
        if moves[number] is None:
            cost += candidate.loss.leaving(accelerators)
            continue
        vacated[candidate.uid] = tuple(nodes)
        shrink[candidate.uid] = candidate.size - sum(candidate.members.get(node, 1) for node in nodes)
        cost += candidate.loss.shrinking(accelerators)
    victims = tuple(case.lower[number].uid for number in sorted(moves) if moves[number] is None)
    return Preemption(victims, placement, shrink, vacated, _freed(case, moves), cost)
