"""From bins to nodes: segments, spares, and which nodes of a bin are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.cost import Cost, Edges, cost, touched
from trainyard.planner.outlook import Outlook
from trainyard.planner.rank import walk
from trainyard.planner.request import Request
from trainyard.planner.search.axes import Axis, axes, talk_bound, talk_cost
from trainyard.planner.search.choice import Choice, Taste, Terms, choose
from trainyard.planner.search.fragments import Loss
from trainyard.planner.search.ground import Ground
from trainyard.topology.tree import Tree
from trainyard.world.supply import Supply

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Wants:
    """A request with what decides about it. floor: the depth of the required level."""

    request: Request
    floor: int
    edges: Edges
    outlook: Outlook


@dataclass(frozen=True, slots=True)
class Seating:
    """ranked: positions in the order of ranks; spares: positions. cost: of this order; excess: how much of it is not proven to
    be needed. value: the cost as in `choice`. lost, worked, spent: as there."""

    ranked: tuple[int, ...]
    spares: tuple[int, ...]
    cost: Cost
    excess: float
    value: float
    lost: float
    worked: int
    spent: bool


def segment_depth(tree: Tree, request: Request) -> int | None:
    """The depth of the domains that hold a segment each; None without segments, or where there is no such level."""
    if request.segment <= 1 or request.segment_level is None:
        return None
    return tree.depth(request.segment_level)


def grounds(supply: Supply, request: Request) -> tuple[Ground, Ground]:
    """What there is room for, in whole segments where they are required, and what that would be if all nodes were empty."""
    depth = segment_depth(supply.tree, request) if request.segment_required else None
    bins = len(supply.index.at_depth) - (request.per_node == 1)
    now = Ground(supply.index, bins, supply.free_in, supply.slots)
    empty = Ground(supply.index, bins, supply.whole_in, supply.whole)
    if depth is None:
        return now, empty
    return _in_units(now, depth, request.segment), _in_units(empty, depth, request.segment)


def seat(supply: Supply, wants: Wants) -> Seating | None:
    """The best places for all members; None where they have not enough room."""
    request, tree = wants.request, supply.tree
    depth = segment_depth(tree, request)
    if request.segment > 1 and request.segment_required and request.segment_level is not None and depth is None:
        return None
    ground = Ground(supply.index, len(supply.index.at_depth) - (request.per_node == 1), supply.free_in, supply.slots)
    taste = Taste(Loss(wants.outlook.gang_sizes), wants.outlook.uplinks, supply.whole_in)
    seater = _Seater(ground, wants, _terms(tree, wants), taste, axes(request))
    loose = seater.choose(None, 1, request.nodes)
    if loose is None:
        return None
    if depth is not None and loose.depth < depth:
        segmented = seater.in_units(depth, request.segment)
        if segmented is not None:
            return seater.seat(segmented, loose, request.segment, depth)
        if request.segment_required:
            return None
    return min(seater.alternatives(loose), key=lambda seating: round(seating.value, 9))


def _terms(tree: Tree, wants: Wants) -> Terms:
    """What is to be paid, in units of an edge between nodes of one narrowest domain; a level that is wished for comes before
    all other cost."""
    edges, levels, request = wants.edges, len(tree.levels), wants.request
    unit = edges.pace(levels)
    pace = [round(edges.pace(depth) / unit, 9) for depth in range(levels + 2)]
    weights = [0.0, *(round(edges.uplink(depth) / unit, 9) for depth in range(1, levels + 2))]
    wished = tree.depth(request.level) if request.level is not None and not request.required else None
    if wished is not None:
        weights[wished] += round(request.nodes * (pace[0] + sum(weights)) + 1)
    return Terms(pace, weights)


def _in_units(ground: Ground, depth: int, unit: int) -> Ground:
    """The same with the domains of a depth as bins, each with room for whole units alone."""
    index = ground.index
    room = list(ground.room)
    for number in index.at_depth[depth]:
        room[number] = room[number] // unit * unit
    for above in range(depth - 1, -1, -1):
        for number in index.at_depth[above]:
            children = index.domains[number].children
            room[number] = sum(room[children.start : children.stop])
    return Ground(index, depth, room, ground.slots, unit)


@dataclass(frozen=True, slots=True)
class _Seater:
    """One kind of nodes, and what is wanted of it."""

    ground: Ground
    wants: Wants
    terms: Terms
    taste: Taste
    talk: tuple[Axis, ...]

    def choose(self, depth: int | None, unit: int, members: int) -> Choice | None:
        """The bins for so many members; depth: of the domains that hold whole units."""
        ground = self.ground if depth is None else _in_units(self.ground, depth, unit)
        return choose(ground, members, self.terms, self.taste, floor=self.wants.floor)

    def in_units(self, depth: int, unit: int) -> Choice | None:
        """The bins for all members in whole units; there may be room for more where the last unit is shorter."""
        return self.choose(depth, unit, -(-self.wants.request.nodes // unit) * unit)

    def alternatives(self, loose: Choice) -> Iterator[Seating]:
        """What was chosen without regard to groups; and for every axis of the mesh that is not the whole gang, where its rings
        stay inside the narrowest domains that hold any."""
        members = self.wants.request.nodes
        inner = [axis.extent for axis in self.talk if axis.extent < members and members % axis.extent == 0]
        yield self.seat(loose, loose, max(inner, default=1), None)
        for extent in inner:
            for depth in range(len(self.ground.index.at_depth) - 1, max(loose.depth, self.wants.floor), -1):
                choice = self.in_units(depth, extent)
                if choice is not None:
                    yield self.seat(choice, loose, extent, depth)
                    break

    def seat(self, chosen: Choice, loose: Choice, unit: int, depth: int | None) -> Seating:
        """The nodes of what was chosen, or of what holds the spares as well where that costs nothing more.

        loose: what was chosen without regard to units; no choice costs less than its bound. depth: of the domains that hold whole
        units, if any do.
        """
        request, wants, index = self.wants.request, self.wants, self.ground.index
        whole = unit if depth is not None else 1
        bins = self._with_spares(depth, whole, chosen) if request.spares else None
        seats = tuple(self._nodes(bins or _trimmed(chosen.bins, request.nodes, whole)))
        spread = touched(index, (position for position, _ in seats))
        ranked = walk(index, (position for position, number in seats for _ in range(number)), unit)
        value = self._value(spread)
        exact = depth in (None, self.ground.depth) and request.nodes % whole == 0
        bound = max(loose.bound, chosen.bound if exact and not self.talk else 0.0)
        unit_seconds = wants.edges.pace(len(index.at_depth) - 1)
        excess = max(0.0, value - bound) * unit_seconds
        several = request.per_node > 1
        paid = alone = cost(wants.edges, request.nodes, spread, several)
        if self.talk:
            least = alone.total - excess
            paid = talk_cost(index, ranked, self.talk, wants.edges, several)
            excess = max(0.0, paid.total - talk_bound(self.talk, request.nodes, wants.edges, least, self._narrowest))
            value += (paid.total - alone.total) / unit_seconds
        return Seating(
            ranked=tuple(ranked),
            spares=tuple(self._spares(dict(seats), spread)),
            cost=paid,
            excess=excess,
            value=value,
            lost=chosen.lost,
            worked=chosen.worked + (loose.worked if loose is not chosen else 0),
            spent=chosen.spent,
        )

    def _narrowest(self, members: int) -> int:
        """The greatest depth of a domain, or of a node, that has room for so many."""
        return next(depth for depth in range(self.ground.depth, -1, -1) if self.ground.roomy(depth, members))

    def _value(self, spread: Sequence[int]) -> float:
        """What it costs to touch so many domains by depth: `cost.cost` with these terms."""
        span = max(depth for depth, domains in enumerate(spread) if domains <= 1)
        counted = range(1, self.ground.depth + 1)
        uplinks = sum(spread[depth] * self.terms.weights[depth] for depth in counted if spread[depth] > 1)
        return self.wants.request.nodes * self.terms.pace[span] + uplinks

    def _with_spares(self, depth: int | None, unit: int, best: Choice) -> tuple[tuple[int, int], ...] | None:
        """Bins that hold the gang as cheaply as the best and have room for spares beside it, for as many as there are."""
        request = self.wants.request
        units = -(-request.nodes // unit)
        spares = request.spares
        while spares:
            more = -(-spares // units) if unit > 1 else 0
            members = units * (unit + more) if unit > 1 else request.nodes + spares * self._beside()
            found = self.choose(depth, unit + more, members)
            if found is not None and found.depth == best.depth and found.uplinks <= best.uplinks + _SLACK:
                bins = [(number, part // (unit + more) * unit) for number, part in found.bins] if more else found.bins
                return _trimmed(bins, request.nodes, unit)
            spares //= 2
        return None

    def _beside(self) -> int:
        """How many members a spare node must be able to take over: as many as a node of the gang may have."""
        return min(self.wants.request.per_node, self.wants.request.nodes)

    def _nodes(self, bins: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The nodes of bins, each with its members."""
        index, ground = self.ground.index, self.ground
        domains = len(index.domains)
        for number, members in bins:
            if number >= domains:
                yield number - domains, members
            elif index.domains[number].depth == ground.depth:
                yield from ((position, 1) for position in self._open(number)[:members])
            else:
                inner = choose(ground, members, self.terms, self.taste, within=number)
                assert inner is not None, "a bin has the room that it was chosen for"
                yield from self._nodes(inner.bins)

    def _open(self, number: int) -> list[int]:
        """The nodes of a narrowest domain with room, doubtful ones last."""
        domain, slots = self.ground.index.domains[number], self.ground.slots
        free = [position for position in range(domain.first, domain.end) if slots[position]]
        return self._sound_first(free)

    def _sound_first(self, positions: list[int]) -> list[int]:
        doubtful, names = self.wants.outlook.doubtful, self.ground.index.names
        if doubtful:
            positions.sort(key=lambda position: names[position] in doubtful)
        return positions

    def _spares(self, held: Mapping[int, int], spread: Sequence[int]) -> list[int]:
        """Nodes that could take over for one of the gang, inside the domain that it shares: one in each of its narrowest
        domains in turn, the fullest first; then further out."""
        number = self.wants.request.spares
        if not number:
            return []
        index, least = self.ground.index, max(held.values())
        span = max(depth for depth, domains in enumerate(spread[:-1]) if domains <= 1)
        members: dict[int, int] = {}
        for position, count in held.items():
            at = index.innermost[position]
            members[at] = members.get(at, 0) + count
        found: dict[int, None] = {}
        for depth in range(len(index.at_depth) - 1, span - 1, -1):
            around = sorted(members, key=lambda at: (-members[at], at))
            free = [self._idle(at, held, found, least) for at in around]
            for turn in range(max(map(len, free), default=0)):
                for some in free:
                    if turn < len(some) and len(found) < number:
                        found[some[turn]] = None
            outer: dict[int, int] = {}
            for at, count in members.items():
                parent = index.domains[at].parent
                outer[parent] = outer.get(parent, 0) + count
            members = outer
            if len(found) == number or depth == span:
                break
        return list(found)

    def _idle(self, number: int, held: Mapping[int, int], found: Mapping[int, None], least: int) -> list[int]:
        domain, slots = self.ground.index.domains[number], self.ground.slots
        return self._sound_first(
            [p for p in range(domain.first, domain.end) if slots[p] >= least and p not in held and p not in found]
        )


def _trimmed(bins: Sequence[tuple[int, int]], members: int, unit: int = 1) -> tuple[tuple[int, int], ...]:
    """The same bins with so many members in all. Spares are left in each in turn, the fullest first, and none is left empty; of
    segments only the last is shorter, in the bin with fewest."""
    taken = dict(bins)
    over = sum(taken.values()) - members
    if unit > 1 and over > 0:
        taken[min(taken, key=lambda number: (taken[number], -number))] -= over
        over = 0
    while over > 0 and any(count > 1 for count in taken.values()):
        for number in sorted(taken, key=lambda number: (-taken[number], number)):
            if over > 0 and taken[number] > 1:
                taken[number] -= 1
                over -= 1
    return tuple(taken.items())
