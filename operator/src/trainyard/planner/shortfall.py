"""Why a gang has no place now, in numbers that cost no search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainyard.api.prose import count
from trainyard.planner.request import Request
from trainyard.planner.search.ground import Ground
from trainyard.topology.tree import Domain
from trainyard.world.supply import Supply

CLUSTER = "cluster"
"""What messages and summaries call the domain that holds everything."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a gang has no place now, in numbers.

    eligible: how many members the nodes would take if they were empty; free: how many of them now. Where a node has one member at
    most these are nodes. best_domain, best_free, best_total: the domain of the wanted level (the whole cluster where none is
    required) that comes closest, how many members of the gang it would take now, and how many if it were empty.
    could_ever_fit: whether empty nodes would do. holds: the free nodes of the best domain; kept from younger jobs they add up to
    a place. () where that would never happen. message: all of this in a sentence; unblock: what would let it start, one each.
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


def shortfall(
    supply: Supply, kind: Supply, now: Ground, empty: Ground, request: Request, floor: int | None
) -> Shortfall:
    """Of a gang that does not fit.

    kind: the part of the supply that comes closest, where kinds of nodes are not mixed. now, empty: its room in whole segments,
    and what that would be if all nodes were empty. floor: the depth of the required level, None where there is no such level.
    """
    domains, total, free = supply.index.domains, empty.room, now.room

    def closeness(number: int) -> tuple[bool, int, int]:
        return total[number] >= request.nodes, free[number], total[number]

    some = [number for number in supply.index.at_depth[floor or 0] if kind.whole_in[number]]
    best = max(some, key=closeness, default=0)  # the first of equals, which is the first in natural order
    best_total = total[best] if some else 0
    could_ever_fit = floor is not None and best_total >= request.nodes
    found = Shortfall(
        needed=request.nodes,
        eligible=supply.whole_in[0],
        free=supply.free_in[0],
        best_domain=_name(domains[best] if some else domains[0]),
        best_free=free[best] if some else 0,
        best_total=best_total,
        could_ever_fit=could_ever_fit,
        holds=_open(kind, domains[best]) if could_ever_fit else (),
        message="",
        unblock=(),
    )
    return _explained(found, supply, now, request, floor)


def _open(supply: Supply, domain: Domain) -> tuple[str, ...]:
    """The nodes of a domain that have room."""
    names, slots = supply.index.names, supply.slots
    return tuple(names[position] for position in range(domain.first, domain.end) if slots[position])


def _explained(found: Shortfall, supply: Supply, now: Ground, request: Request, floor: int | None) -> Shortfall:
    """The same with its message, and what would help."""
    noun = "node" if request.per_node == 1 else "place"
    needs = _needs(request)
    counts = f"{found.eligible} {_are(found.eligible)} eligible, {found.free} of them {_are(found.free)} free"
    excluded = "; ".join(f"{n} {_are(n)} out: {reason}" for reason, n in list(supply.excluded().items())[:3])
    if floor is None:
        known = ", ".join(level.name for level in supply.tree.levels) or "none"
        return _with(
            found,
            f"needs {_members(request)} within one {request.level}, but no level is called so; "
            f"the cluster's levels are: {known}",
            f"set spec.placement.within.level to one of: {known}",
        )
    if found.eligible < request.nodes:
        message = "; ".join(filter(None, (needs, counts, excluded)))
        return _with(found, message, count(request.nodes - found.eligible, f"more eligible {noun}"))
    if floor == 0 and found.free < request.nodes:
        return _with(found, f"{needs}; {counts}", count(request.nodes - found.free, f"more free {noun}"))
    if floor == 0:
        return _in_pieces(found, request, needs, counts)
    where = f"the best {request.level}, {found.best_domain}, has {found.best_free} free of {found.best_total}"
    helps = []
    if found.could_ever_fit:
        missing = request.nodes - found.best_free
        helps.append(f"{count(missing, f'more free {noun}')} in {request.level} {found.best_domain}")
    else:
        most = count(request.nodes, f"eligible {noun}")
        helps.append(f"no {request.level} has {most}: a broader spec.placement.within.level")
    if now.room[0] >= request.nodes:
        parts = _fewest([now.room[number] for number in supply.index.at_depth[floor]], request.nodes)
        helps.append(
            f"without spec.placement.within.required it would start now, over {parts} domains of level {request.level}"
        )
    return _with(found, f"{needs}; {counts}; {where}", *helps)


def _in_pieces(found: Shortfall, request: Request, needs: str, counts: str) -> Shortfall:
    """Enough is free, but not in pieces that hold a segment, or not of one kind."""
    noun = "node" if request.per_node == 1 else "place"
    if request.segment > 1:
        holds, missing = found.best_free // request.segment, -(-(request.nodes - found.best_free) // request.segment)
        message = f"{needs}; {counts}; they hold {count(holds, 'whole segment')}"
        return _with(found, message, f"room for {count(missing, 'more segment')} of {request.segment}")
    message = f"{needs}; {counts}; {found.best_free} of these {_are(found.best_free)} of one kind"
    lacking = count(request.nodes - found.best_free, f"more free {noun}")
    more = (
        f"{lacking} of that kind" if found.could_ever_fit else f"no kind has {count(request.nodes, f'eligible {noun}')}"
    )
    return _with(found, message, more, "with spec.placement.mixed it would start now, on several kinds of nodes")


def _needs(request: Request) -> str:
    parts = [f"needs {_members(request)}"]
    if request.segment > 1 and request.segment_level is not None and request.segment_required:
        parts.append(f"in segments of {request.segment} within one {request.segment_level} each")
    if request.level is not None and request.required:
        parts.append(f"within one {request.level}")
    return " ".join(parts)


def _members(request: Request) -> str:
    if request.per_node == 1:
        return count(request.nodes, "node")
    return f"{count(request.nodes, 'place')} (at most {request.per_node} on a node)"


def _fewest(rooms: Sequence[int], members: int) -> int:
    """The fewest domains that have so much room together: the largest first."""
    parts = 0
    for room in sorted(rooms, reverse=True):
        if members <= 0:
            break
        parts, members = parts + 1, members - room
    return parts


def _with(found: Shortfall, message: str, *unblock: str) -> Shortfall:
    return replace(found, message=message, unblock=unblock)


def _name(domain: Domain) -> str:
    return "/".join(domain.path) or CLUSTER


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
