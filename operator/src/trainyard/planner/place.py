"""Which nodes a gang gets, all of them or none, and why not.

The narrowest domain that has room for the whole gang; of several, the one with least room, so that the large holes stay whole.
Where a gang must be split over the parts of its domain, over the fewest parts: the fullest are taken whole, and the rest goes
where it leaves least. That is exact for one level of splitting and a good start for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainyard.api.prose import count
from trainyard.planner import rank
from trainyard.planner.request import Request
from trainyard.planner.survey import Survey, by_domain, survey
from trainyard.topology.tree import Path, Tree
from trainyard.world.records import Node, Resources

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


def place(
    tree: Tree, nodes: Mapping[str, Node], free: Mapping[str, Resources], request: Request
) -> Placement | Shortfall:
    """The nodes of a gang in rank order, or why there are none.

    A level that is required is never left; one that is only wished for is tried, and where no domain of it has room the gang
    is spread over the fewest that do. free: room by node, as `world.capacity.free` counts it. Nodes of the tree that are not
    in `nodes` do not exist.
    """
    seen = survey(tree, nodes, free, request)
    floor = required_depth(tree, request)
    if floor is not None:
        chosen = _choose(tree, seen.free, request, floor)
        if chosen is not None:
            return _placement(tree, chosen)
    return _shortfall(tree, seen, request, floor)


def required_depth(tree: Tree, request: Request) -> int | None:
    """The depth above which the gang may not spread: 0, the whole cluster, without a required level; None where the tree does
    not have that level."""
    if request.level is None or not request.required:
        return 0
    return tree.depth(request.level)


def _placement(tree: Tree, chosen: Sequence[str]) -> Placement:
    ranked = rank.order(tree, chosen)
    return Placement(ranked, rank.spans(tree, ranked), rank.crossings(tree, ranked))


def _choose(tree: Tree, free: Sequence[str], request: Request, floor: int) -> list[str] | None:
    if len(free) < request.nodes:
        return None
    wished = tree.depth(request.level) if request.level is not None and not request.required else None
    for depth in range(len(tree.levels), floor - 1, -1):
        roomy = [found for found in by_domain(tree, free, depth).values() if len(found) >= request.nodes]
        if roomy:
            if wished is not None and depth < wished:
                return _over_fewest(tree, free, request.nodes, wished)
            return _fill(tree, min(roomy, key=len), request.nodes, range(depth + 1, len(tree.levels) + 1))
    return None


def _over_fewest(tree: Tree, free: Sequence[str], count: int, wished: int) -> list[str]:
    """Over the fewest domains of the wished level in the whole cluster, and among the ways to do that within the narrowest
    domain, the one with least room."""
    fewest = _parts_needed(tree, free, count, wished)
    inner = range(wished, len(tree.levels) + 1)
    for depth in range(wished - 1, -1, -1):
        roomy = [found for found in by_domain(tree, free, depth).values() if len(found) >= count]
        as_few = [found for found in roomy if _parts_needed(tree, found, count, wished) == fewest]
        if as_few:
            return _fill(tree, min(as_few, key=len), count, inner)
    raise AssertionError("the whole cluster needs as few as the whole cluster")


def _parts_needed(tree: Tree, nodes: Sequence[str], count: int, depth: int) -> int:
    """The fewest domains of a depth that hold so many of the nodes together: the largest first."""
    parts = 0
    for size in sorted(map(len, by_domain(tree, nodes, depth).values()), reverse=True):
        if count <= 0:
            break
        parts, count = parts + 1, count - size
    return parts


def _fill(tree: Tree, nodes: Sequence[str], count: int, depths: range) -> list[str]:
    """So many of these nodes, over the fewest domains of the first depth, and so on inward.

    The fullest domain is taken whole as long as none holds what is left; the one with least room that does ends it.
    """
    if not depths or count == len(nodes):
        return list(nodes[:count])
    parts = by_domain(tree, nodes, depths[0])
    chosen: list[str] = []
    while True:
        roomy = [part for part in parts.values() if len(part) >= count - len(chosen)]
        if roomy:
            return chosen + _fill(tree, min(roomy, key=len), count - len(chosen), depths[1:])
        fullest = max(parts, key=lambda domain: len(parts[domain]))
        chosen += parts.pop(fullest)


def _shortfall(tree: Tree, seen: Survey, request: Request, floor: int | None) -> Shortfall:
    eligible = by_domain(tree, seen.eligible, floor or 0)
    free = by_domain(tree, seen.free, floor or 0)

    def closeness(domain: Path) -> tuple[bool, int, int]:
        total = len(eligible[domain])
        return total >= request.nodes, len(free.get(domain, ())), total

    best = max(eligible, key=closeness, default=())  # the first of equals, which is the first in natural order
    best_total, holds = len(eligible.get(best, ())), tuple(free.get(best, ()))
    could_ever_fit = floor is not None and best_total >= request.nodes
    shortfall = Shortfall(
        needed=request.nodes,
        eligible=len(seen.eligible),
        free=len(seen.free),
        best_domain=_name(best),
        best_free=len(holds),
        best_total=best_total,
        could_ever_fit=could_ever_fit,
        holds=holds if could_ever_fit else (),
        message="",
        unblock=(),
    )
    return _explained(shortfall, tree, seen, request, floor)


def _explained(shortfall: Shortfall, tree: Tree, seen: Survey, request: Request, floor: int | None) -> Shortfall:
    """The same with its message, and what would help."""
    needs = f"needs {count(request.nodes, 'node')}"
    counts = f"{shortfall.eligible} {_are(shortfall.eligible)} eligible, {shortfall.free} of them {_are(shortfall.free)} free"
    excluded = "; ".join(f"{n} {_are(n)} out: {reason}" for reason, n in list(seen.excluded.items())[:3])
    if floor is None:
        known = ", ".join(level.name for level in tree.levels) or "none"
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
        parts = _parts_needed(tree, seen.free, request.nodes, floor)
        helps.append(
            f"without spec.placement.within.required it would start now, over {parts} domains of level {request.level}"
        )
    return _with(shortfall, message, *helps)


def _with(shortfall: Shortfall, message: str, *unblock: str) -> Shortfall:
    return replace(shortfall, message=message, unblock=unblock)


def _name(domain: Path) -> str:
    return "/".join(domain) or CLUSTER


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
