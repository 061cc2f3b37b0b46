"""Which nodes a gang gets, all of them or none, and why not.

The narrowest domain that has room for the whole gang; of several, the one with least room, so that the large holes stay whole.
Where a gang must be split over the parts of its domain, over the fewest parts: the fullest are taken whole, and the rest goes
where it leaves least. That is exact for one level of splitting and a good start for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainyard.api.prose import count
from trainyard.planner import rank
from trainyard.planner.request import Request
from trainyard.topology.tree import Domain, Tree
from trainyard.world.supply import Supply

AVOIDED: Final = "in placement.avoidNodes"
"""Why a node that the job never gets is not eligible."""

CLUSTER = "cluster"
"""What messages and summaries call the domain that holds everything."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes of a gang.

    nodes: names in rank order. spans: for each level, broadest first, over how many domains they extend.
    crossings: for each level how many edges of the closed ring of ranks leave a domain of it.
    """

    nodes: tuple[str, ...]
    spans: Mapping[str, int]
    crossings: Mapping[str, int]

    @property
    def span(self) -> str:
        """The narrowest level one domain of which holds the whole gang."""
        return next((level for level, domains in reversed([*self.spans.items()]) if domains == 1), CLUSTER)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a gang has no place now, in numbers.

    eligible: nodes that would take a member if they were empty; free: of these, with room now.
    best_domain, best_free, best_total: the domain of the wanted level (the whole cluster where none is required) that comes
    closest, how many eligible nodes of it are free and how many there are. could_ever_fit: whether empty nodes would do.
    holds: the free nodes of the best domain; kept from younger jobs they add up to a place. () where that would never happen.
    message: all of this in a sentence; unblock: what would let it start, a sentence each.
    """

    needed: int
    eligible: int
    free: int
    best_domain: str
    best_free: int
    best_total: int
    could_ever_fit: bool
    holds: tuple[str, ...]
    message: str
    unblock: tuple[str, ...]


def place(supply: Supply, request: Request) -> Placement | Shortfall:
    """The nodes of a gang in rank order, or why there are none.

    supply: of the request's demand. A level that is required is never left; one that is only wished for is tried, and where no
    domain of it has room the gang is spread over the fewest that do.
    """
    supply = supply.without(request.avoid, AVOIDED) if request.avoid else supply
    floor = required_depth(supply.tree, request)
    if floor is not None:
        chosen = _choose(supply, request, floor)
        if chosen is not None:
            return _placement(supply.tree, chosen)
    return _shortfall(supply, request, floor)


def required_depth(tree: Tree, request: Request) -> int | None:
    """The depth above which the gang may not spread: 0, the whole cluster, without a required level; None where the tree does
    not have that level."""
    if request.level is None or not request.required:
        return 0
    return tree.depth(request.level)


def _placement(tree: Tree, positions: Sequence[int]) -> Placement:
    ranked = rank.order(tree, [tree.index.names[position] for position in positions])
    return Placement(ranked, rank.spans(tree, ranked), rank.crossings(tree, ranked))


def _choose(supply: Supply, request: Request, floor: int) -> list[int] | None:
    if supply.free_in[0] < request.nodes:
        return None
    tree, free = supply.tree, supply.free_in
    wished = tree.depth(request.level) if request.level is not None and not request.required else None
    for depth in range(len(tree.levels), floor - 1, -1):
        roomy = [number for number in tree.index.at_depth[depth] if free[number] >= request.nodes]
        if roomy:
            if wished is not None and depth < wished:
                return _over_fewest(supply, request.nodes, wished)
            return _fill(supply, min(roomy, key=lambda number: free[number]), request.nodes)
    return None


def _over_fewest(supply: Supply, count: int, wished: int) -> list[int]:
    """Over the fewest domains of the wished level in the whole cluster, and among the ways to do that within the narrowest
    domain, the one with least room."""
    fewest = _parts_needed(supply, 0, count, wished)
    for depth in range(wished - 1, -1, -1):
        as_few = [
            number
            for number in supply.index.at_depth[depth]
            if supply.free_in[number] >= count and _parts_needed(supply, number, count, wished) == fewest
        ]
        if as_few:
            best = min(as_few, key=lambda number: supply.free_in[number])
            return _split(supply, _within(supply, best, wished), count)
    raise AssertionError("the whole cluster needs as few as the whole cluster")


def _within(supply: Supply, domain: int, depth: int) -> list[int]:
    """The domains of a depth inside a domain."""
    found = [domain]
    for _ in range(supply.index.domains[domain].depth, depth):
        found = [child for number in found for child in supply.index.domains[number].children]
    return found


def _parts_needed(supply: Supply, domain: int, count: int, depth: int) -> int:
    """The fewest domains of a depth inside a domain that have so much room together: the largest first."""
    parts = 0
    for size in sorted((supply.free_in[number] for number in _within(supply, domain, depth)), reverse=True):
        if count <= 0:
            break
        parts, count = parts + 1, count - size
    return parts


def _fill(supply: Supply, domain: int, count: int) -> list[int]:
    """So many nodes of a domain, over the fewest domains of the next level, and so on inward."""
    around = supply.index.domains[domain]
    if not around.children:
        return _open(supply, around)[:count]
    return _split(supply, around.children, count)


def _split(supply: Supply, domains: Sequence[int], count: int) -> list[int]:
    """So many nodes over the fewest of these domains.

    The fullest is taken whole as long as none holds what is left; the one with least room that does ends it.
    """
    parts = [number for number in domains if supply.free_in[number]]
    chosen: list[int] = []
    while True:
        roomy = [number for number in parts if supply.free_in[number] >= count - len(chosen)]
        if roomy:
            return chosen + _fill(supply, min(roomy, key=lambda n: supply.free_in[n]), count - len(chosen))
        fullest = max(parts, key=lambda number: supply.free_in[number])
        parts.remove(fullest)
        chosen += _open(supply, supply.index.domains[fullest])


def _open(supply: Supply, domain: Domain) -> list[int]:
    """The nodes of a domain that have room."""
    return [position for position in range(domain.first, domain.end) if supply.slots[position]]


def _shortfall(supply: Supply, request: Request, floor: int | None) -> Shortfall:
    domains, total, free = supply.index.domains, supply.whole_in, supply.free_in

    def closeness(number: int) -> tuple[bool, int, int]:
        return total[number] >= request.nodes, free[number], total[number]

    some = [number for number in supply.index.at_depth[floor or 0] if total[number]]
    best = max(some, key=closeness, default=0)  # the first of equals, which is the first in natural order
    best_total, holds = total[best] if some else 0, tuple(supply.index.names[n] for n in _open(supply, domains[best]))
    could_ever_fit = floor is not None and best_total >= request.nodes
    shortfall = Shortfall(
        needed=request.nodes,
        eligible=total[0],
        free=free[0],
        best_domain=_name(domains[best] if some else domains[0]),
        best_free=len(holds),
        best_total=best_total,
        could_ever_fit=could_ever_fit,
        holds=holds if could_ever_fit else (),
        message="",
        unblock=(),
    )
    return _explained(shortfall, supply, request, floor)


def _explained(shortfall: Shortfall, supply: Supply, request: Request, floor: int | None) -> Shortfall:
    """The same with its message, and what would help."""
    needs = f"needs {count(request.nodes, 'node')}"
    counts = f"{shortfall.eligible} {_are(shortfall.eligible)} eligible, {shortfall.free} of them {_are(shortfall.free)} free"
    excluded = "; ".join(f"{n} {_are(n)} out: {reason}" for reason, n in list(supply.excluded().items())[:3])
    if floor is None:
        known = ", ".join(level.name for level in supply.tree.levels) or "none"
        return _with(
            shortfall,
            f"{needs} within one {request.level}, but no level is called so; the cluster's levels are: {known}",
            f"set spec.placement.within.level to one of: {known}",
        )
    if shortfall.eligible < request.nodes:
        message = "; ".join(filter(None, (needs, counts, excluded)))
        return _with(shortfall, message, f"{count(request.nodes - shortfall.eligible, 'more eligible node')}")
    if floor == 0:
        return _with(shortfall, f"{needs}; {counts}", f"{count(request.nodes - shortfall.free, 'more free node')}")
    where = (
        f"the best {request.level}, {shortfall.best_domain}, has {shortfall.best_free} free of {shortfall.best_total}"
    )
    message = f"{needs} within one {request.level}; {counts}; {where}"
    helps = []
    if shortfall.could_ever_fit:
        missing = request.nodes - shortfall.best_free
        helps.append(f"{count(missing, 'more free node')} in {request.level} {shortfall.best_domain}")
    else:
        helps.append(f"no {request.level} has {request.nodes} eligible nodes: a broader spec.placement.within.level")
    if shortfall.free >= request.nodes:
        parts = _parts_needed(supply, 0, request.nodes, floor)
        helps.append(
            f"without spec.placement.within.required it would start now, over {parts} domains of level {request.level}"
        )
    return _with(shortfall, message, *helps)


def _with(shortfall: Shortfall, message: str, *unblock: str) -> Shortfall:
    return replace(shortfall, message=message, unblock=unblock)


def _name(domain: Domain) -> str:
    return "/".join(domain.path) or CLUSTER


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
