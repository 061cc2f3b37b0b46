"""What takes the place of failed nodes of a gang, while the others stay where they are.

A node that fails is replaced in its own narrowest domain: the ring stays as good as it was, and nothing else has to be weighed.
Several that fail at once are one repair. Where a domain has no node left there are three ways, and the cheapest is taken:

    relax     the rank gets a node elsewhere, within the required level, and the ring more edges that leave domains;
    shrink    an elastic gang goes on without the ranks for which there is none at home;
    move      the whole gang goes where it fits together.

What each costs is said in GPU-seconds (`behind`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import AVOIDED, Placement, Shortfall, place, required_depth
from trainyard.planner.placed import placed
from trainyard.planner.repair_cost import USUAL, Terms, behind, slowdown
from trainyard.planner.request import Request
from trainyard.planner.vacancies import Gang, ancestor, fill, fit, home_of
from trainyard.world.supply import Supply

LOST: Final = "failed under this job"
"""Why a node that the gang has lost is not eligible."""


class Kind(StrEnum):
    """How a gang is repaired."""

    NONE = "none"
    """Nothing is lost."""
    REPLACE = "replace"
    """Every lost rank has a node of the domain that it was in. The others keep their nodes."""
    RELAX = "relax"
    """Some lost ranks are in other domains. The others keep their nodes."""
    SHRINK = "shrink"
    """Some lost ranks are no more. Who is left keeps its node, and its place in the order."""
    MOVE = "move"
    """All ranks are planned anew."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way. slower: predicted step time over that before; cost_gpu_seconds: see `behind`."""

    kind: Kind
    placement: Placement
    slower: float
    cost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Repair:
    """The way that is taken.

    moved: the ranks whose node is another than before; where the gang shrinks, and its ranks have other numbers, by the new ones.
    dropped: the old ranks that are no more. options: all ways that there are, this one first, the others by cost. Where all lost
    ranks are replaced at home no other way is looked for.
    """

    kind: Kind
    placement: Placement
    moved: tuple[int, ...]
    dropped: tuple[int, ...]
    options: tuple[Option, ...]

    @property
    def cost_gpu_seconds(self) -> float:
        """Of this way."""
        return self.options[0].cost_gpu_seconds if self.options else 0.0


def repair(
    supply: Supply,
    request: Request,
    current: Sequence[str],
    lost: Collection[str],
    spares: Collection[str] = (),
    terms: Terms = USUAL,
    outlook: Outlook = PLAIN,
) -> Repair | Shortfall:
    """The nodes for a gang that has lost some; why there are none where nothing helps.

    supply: of the request's demand, with what the gang itself holds taken. current: its nodes in rank order, a node with several
    members several times. lost: nodes that cannot be used any more; those that are not in the tree are lost too. spares: nodes
    that are held for it; they are its own even if the supply counts nothing free there.
    """
    missing, known = frozenset(lost), supply.index.position
    broken = [rank for rank, node in enumerate(current) if node in missing or node not in known]
    if not broken:
        return Repair(Kind.NONE, placed(supply, request, current, outlook), (), (), ())
    case = _case(supply, request, current, broken, missing, spares, outlook)
    home = _at_home(case)
    if all(node is not None for node in home):
        nodes = [node for node in home if node is not None]
        return _repaired(case, [_option(case, Kind.REPLACE, nodes, terms)])
    ways = (_relaxed(case), _shrunk(case, home))
    options = [_option(case, kind, nodes, terms) for kind, nodes in ways if nodes]
    moved = _moved(case)
    if isinstance(moved, Placement):
        options.append(_weighed(case, Kind.MOVE, moved, terms))
    elif not options:
        return moved
    order = list(Kind)
    return _repaired(case, sorted(options, key=lambda option: (option.cost_gpu_seconds, order.index(option.kind))))


@dataclass(frozen=True, slots=True)
class _Case:
    """A gang to repair.

    supply: without the lost nodes, with the spares; alike: of these the kind of node that the gang has. positions: by rank, -1
    for a node that is not in the tree. broken: the ranks without a node; homes: of each the domain that it was in, -1 where that
    is not known. spares, doubtful: by position.
    """

    supply: Supply
    alike: Supply
    request: Request
    current: Sequence[str]
    positions: Sequence[int]
    broken: Sequence[int]
    homes: Mapping[int, int]
    spares: frozenset[int]
    doubtful: frozenset[int]
    outlook: Outlook


def _case(
    supply: Supply,
    request: Request,
    current: Sequence[str],
    broken: Sequence[int],
    lost: Collection[str],
    spares: Collection[str],
    outlook: Outlook,
) -> _Case:
    index = supply.index
    positions = [index.position.get(node, -1) for node in current]
    held = frozenset(index.position[node] for node in spares if node in index.position)

    def left(some: Supply) -> Supply:
        some = some.without(lost, LOST)
        if request.avoid:
            some = some.without(request.avoid, AVOIDED)
        for position in held:
            if some.whole[position] and not some.slots[position]:
                some.put(position, 1)
        return some

    whole = left(supply)
    kinds = (supply,) if request.mixed else supply.by_kind()
    alike = (
        left(max(kinds, key=lambda kind: sum(kind.whole[p] > 0 for p in positions if p >= 0)))
        if len(kinds) > 1
        else whole
    )
    return _Case(
        supply=whole,
        alike=alike,
        request=request,
        current=current,
        positions=positions,
        broken=broken,
        homes={rank: home_of(index, positions, rank) for rank in broken},
        spares=held,
        doubtful=frozenset(index.position[node] for node in outlook.doubtful if node in index.position),
        outlook=outlook,
    )


def _at_home(case: _Case) -> list[str | None]:
    """The gang with a node for every broken rank whose domain has one; None for the others."""
    nodes: list[str | None] = [None if rank in case.homes else node for rank, node in enumerate(case.current)]
    by_home: dict[int, list[int]] = {}
    for rank in case.broken:
        if case.homes[rank] >= 0:
            by_home.setdefault(case.homes[rank], []).append(rank)
    for domain, some in by_home.items():
        for rank, node in _nodes_for(case, domain, some).items():
            nodes[rank] = node
    return nodes


def _nodes_for(case: _Case, domain: int, some: Sequence[int]) -> dict[int, str]:
    """Nodes of one narrowest domain for ranks, as far as they go: spares first, doubtful ones last."""
    supply, around = case.alike, case.alike.index.domains[domain]
    slots = {p: supply.slots[p] for p in range(around.first, around.end) if supply.slots[p] > 0}
    together: dict[str, list[int]] = {}
    for rank in some:
        together.setdefault(case.current[rank], []).append(rank)

    def worse(position: int) -> tuple[bool, bool]:
        return position in case.doubtful, position not in case.spares

    return {rank: supply.index.names[position] for rank, position in fit(together.values(), slots, worse).items()}


def _relaxed(case: _Case) -> tuple[Kind, list[str]]:
    """The gang with nodes of other domains where its own have none; [] where that is not allowed, or there are none."""
    tree, index, request = case.supply.tree, case.supply.index, case.request
    survivors = [index.innermost[p] for rank, p in enumerate(case.positions) if rank not in case.homes]
    depth = required_depth(tree, request)
    if depth is None or not survivors:
        return Kind.RELAX, []
    within = {ancestor(index, domain, depth) for domain in survivors}
    if len(within) > 1:  # it is not where it should be, since labels have changed: no reason to make it worse
        return Kind.RELAX, []
    segment, segment_depth = _segments(case)
    free = case.alike.free_in
    spares: dict[int, int] = {}
    for position in case.spares:
        if case.alike.slots[position]:
            spares[index.innermost[position]] = spares.get(index.innermost[position], 0) + 1
    gang = Gang(
        index=index,
        seated=[-1 if rank in case.homes else index.innermost[p] for rank, p in enumerate(case.positions)],
        homes=case.homes,
        room={number: free[number] for number in index.at_depth[-1] if free[number] > 0},
        spares=spares,
        within=within.pop(),
        segment=segment,
        segment_depth=segment_depth,
    )
    found = fill(gang)
    if found is None:
        return Kind.RELAX, []
    by_domain: dict[int, list[int]] = {}
    for rank, domain in found.domains.items():
        by_domain.setdefault(domain, []).append(rank)
    nodes = list(case.current)
    for domain, some in by_domain.items():
        for rank, node in _nodes_for(case, domain, some).items():
            nodes[rank] = node
    return Kind.RELAX, nodes


def _shrunk(case: _Case, home: Sequence[str | None]) -> tuple[Kind, list[str]]:
    """Who is left with what there is at home, in the same order, in whole segments; [] where that is too few."""
    segment, _ = _segments(case)
    whole = [
        node
        for first in range(0, len(home), segment)
        for node in home[first : first + segment]
        if node is not None and None not in home[first : first + segment]
    ]
    return Kind.SHRINK, whole if case.request.at_least <= len(whole) and whole else []


def _moved(case: _Case) -> Placement | Shortfall:
    """A place for the whole gang, with the room of its survivors given back."""
    supply = case.supply.copy()
    for rank, position in enumerate(case.positions):
        if rank not in case.homes:
            supply.put(position, min(supply.whole[position], supply.slots[position] + 1))
    return place(supply, replace(case.request, nodes=len(case.current)), case.outlook)


def _segments(case: _Case) -> tuple[int, int]:
    """How many ranks in turn must share a domain, and of which depth; 1 where that is only wished for."""
    request = case.request
    if request.segment == 1 or request.segment_level is None or not request.segment_required:
        return 1, 0
    depth = case.supply.tree.depth(request.segment_level)
    return (1, 0) if depth is None else (request.segment, depth)


def _option(case: _Case, kind: Kind, nodes: Sequence[str], terms: Terms) -> Option:
    return _weighed(case, kind, placed(case.alike, case.request, nodes, case.outlook), terms)


def _weighed(case: _Case, kind: Kind, placement: Placement, terms: Terms) -> Option:
    slower = slowdown(case.supply.index, case.current, placement.nodes, terms, case.outlook)
    stop = terms.move_seconds if kind is Kind.MOVE else terms.stop_seconds
    return Option(kind, placement, slower, behind(len(case.current), len(placement.nodes), slower, stop, terms))


def _repaired(case: _Case, options: Sequence[Option]) -> Repair:
    best = options[0]
    if best.kind is not Kind.SHRINK:
        moved = tuple(n for n, (a, b) in enumerate(zip(case.current, best.placement.nodes, strict=True)) if a != b)
        return Repair(best.kind, best.placement, moved, (), tuple(options))
    segment, _ = _segments(case)
    home = _at_home(case)
    kept = [
        rank for rank in range(len(home)) if None not in home[rank - rank % segment : rank - rank % segment + segment]
    ]
    moved = tuple(n for n, rank in enumerate(kept) if rank in case.homes)
    dropped = tuple(rank for rank in range(len(home)) if rank not in frozenset(kept))
    return Repair(best.kind, best.placement, moved, dropped, tuple(options))
