"""What a waiting gang itself could do without, to start: a broader level, fewer members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from trainyard.api.prose import count, length
from trainyard.contract.natural import natural
from trainyard.planner.advice.suppose import Supposition
from trainyard.planner.advice.ways import HOUR, MOST_OF_A_KIND, Case, Kind, Trials, Way, of_kinds, short
from trainyard.planner.place import Placement, place, required_depth
from trainyard.planner.request import Request
from trainyard.world.supply import Supply
from trainyard.world.supply import supply as a_supply

UNKNOWN_SLOWDOWN: Final = 1.25
"""How many times the step time a broader level is taken to cost where it cannot be predicted; it orders the ways, and is not
said."""


def relax(trials: Trials) -> Iterator[Way]:
    """The narrowest broader level that has a place; where the level does not exist, the narrowest of those that do."""
    case, tree = trials.case, trials.case.room.inventory.tree
    request = case.request
    if request.level is None or not request.required:
        return
    asked = tree.depth(request.level)
    for depth in range((asked if asked is not None else len(tree.levels) + 1) - 1, -1, -1):
        level = tree.levels[depth - 1].name if depth else ""
        found = trials.plan(trials.otherwise(within(request, level)))
        if found is None:
            continue
        slower = _slowdown(case, found) if asked is not None else None
        over = (
            f", over {count(found.spans[request.level], f'{request.level} domain')}"
            if request.level in found.spans
            else ""
        )
        most = "at most " if case.pace is not None and case.pace.alone else ""
        predicted = f": {most}{slower:.2f} times the step time, as predicted{over}" if slower is not None else over
        cost = max(0.0, 1 - 1 / (slower or UNKNOWN_SLOWDOWN)) * HOUR * case.size
        yield Way(Kind.RELAX, cost, said(level) + predicted, within=level)
        return


def limit(trials: Trials) -> Iterator[Way]:
    """The longest maxRuntime with which it may have enough of the nodes that are kept for later."""
    case = trials.case
    for longest in sorted(set(case.lent.values()), reverse=True)[:MOST_OF_A_KIND]:
        lent = {node for node, most in case.lent.items() if most >= longest}
        without = {node: key for node, key in case.without.items() if node not in lent}
        if trials.plan(Supposition(case.room, case.request, without, case.outlook)) is not None:
            jobs = sorted({case.without[node] for node in lent if node in case.without}, key=natural)
            text = (
                f"spec.maxRuntime: {length(longest)} or less, to be gone when {short(jobs)} needs the nodes kept for it"
            )
            yield Way(Kind.LIMIT, 0.0, text, time=longest)
            return


def within(request: Request, level: str) -> Request:
    """The same with another required level; "": with none."""
    return replace(request, level=level) if level else replace(request, required=False)


def said(level: str) -> str:
    """What has to be written for that."""
    return f"spec.placement.within.level: {level}" if level else "spec.placement.within.required: false"


def broader(supply: Supply, request: Request) -> str | None:
    """The narrowest level that could hold a gang if all were empty, where the one that it requires could not; "" for the whole
    cluster. None where there is no need, or no help."""
    tree = supply.tree
    asked = required_depth(tree, request)
    if asked == 0:
        return None
    for depth in range(asked if asked is not None else len(tree.levels), -1, -1):
        if _ever(supply, request, depth):
            return None if depth == asked else (tree.levels[depth - 1].name if depth else "")
    return None


def ever(supply: Supply, request: Request) -> bool:
    """Whether a gang would have a place if the eligible nodes were empty, by the counts."""
    depth = required_depth(supply.tree, request)
    return depth is not None and _ever(supply, request, depth)


def _ever(supply: Supply, request: Request, depth: int) -> bool:
    numbers = supply.index.at_depth[depth]
    return any(kind.whole_in[n] >= request.nodes for kind in of_kinds(supply, request) for n in numbers)


def shrink(trials: Trials) -> Iterator[Way]:
    """The most members that have a place now. The counts say how many; where they are not the whole truth, the rest is halved."""
    case = trials.case
    depth = required_depth(case.room.inventory.tree, case.request)
    if depth is None:
        return
    supply = trials.base.supply
    low, members, of = 1, 0, case.request.nodes
    most = size = min(of - 1, max((supply.free_in[number] for number in supply.index.at_depth[depth]), default=0))
    while low <= most:
        if trials.plan(trials.otherwise(replace(case.request, nodes=size, minimum=0))) is not None:
            members, low = size, size + 1
        else:
            most = size - 1
        size = (low + most + 1) // 2
    if members:
        text = f"run with {members} of {count(of, 'node')}: spec.minNodes: {members}"
        yield Way(Kind.SHRINK, (1 - members / of) * HOUR * case.size, text, members=members)


def _slowdown(case: Case, found: Placement) -> float | None:
    """The predicted step time of a placement over that of the gang where it wants to be, if all of that were empty."""
    if case.pace is None:
        return None
    wanted = where_it_wants_to_be(case)
    if wanted is None:
        return None
    usual = case.pace.seconds(wanted.nodes)
    return case.pace.seconds(found.nodes) / usual if usual > 0.0 else None


def where_it_wants_to_be(case: Case) -> Placement | None:
    """The gang's place if nobody else was there; None where it would have none even so."""
    seen = case.room.supply(case.request.demand)
    vacant = a_supply(seen.tree, list(seen.whole), list(seen.whole), list(seen.reasons), seen.kinds)
    found = place(vacant, case.request, case.outlook)
    return found if isinstance(found, Placement) else None
