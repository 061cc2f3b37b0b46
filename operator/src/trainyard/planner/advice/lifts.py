"""What nodes would bring that a gang may not have as they are: cordoned, not ready, tainted, or avoided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from trainyard.api.prose import count
from trainyard.planner.advice.ways import PERSON, Kind, Trials, Way, name_of, short
from trainyard.planner.place import AVOIDED, required_depth
from trainyard.world.records import Node

MOST_TAINTS: Final = 4
"""How many kinds of taints are tried, those of most nodes first."""

_NOT_READY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CORDONED: Final = ("node.kubernetes.io/unschedulable",)
"""The taints that the control plane puts on such nodes, and takes off with them."""


def lifts(trials: Trials) -> Iterator[Way]:
    """For each thing that keeps nodes out, what would start the gang if it did not: the fewest nodes of one domain where each
    is an affair of its own, all of them where the job decides."""
    depth = required_depth(trials.case.room.inventory.tree, trials.case.request)
    if depth is None:
        return
    groups: dict[tuple[Kind, str], dict[int, int]] = {}
    reasons, names = trials.base.supply.reasons, trials.base.supply.index.names
    for position, reason in enumerate(reasons):
        lifted = _lifted(trials, trials.case.room.inventory.nodes[names[position]], reason) if reason else None
        if lifted is not None:
            kind, taint, room = lifted
            groups.setdefault((kind, taint), {})[position] = room
    taints = 0
    for (kind, taint), gains in sorted(groups.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        if kind is not Kind.TOLERATE:
            yield from _fewest(trials, kind, gains, depth)
        elif taints < MOST_TAINTS:
            taints += 1
            yield from _tolerate(trials, taint, gains)


def _lifted(trials: Trials, node: Node, reason: str) -> tuple[Kind, str, int] | None:
    """Which single change would make a node eligible, the key of the taint where that is it, and for how many members it then
    has room; None where it takes more than one change, or there is no room anyway."""
    kind, taint, changed = Kind.AVOID, "", node
    if reason != AVOIDED:
        if not node.ready:
            kind, changed = Kind.READY, replace(_untainted(node, *_NOT_READY), ready=True)
        elif node.unschedulable:
            kind, changed = Kind.UNCORDON, replace(_untainted(node, *_CORDONED), unschedulable=False)
        else:
            taint = next((t.key for t in node.taints if reason == f"taint {t.key} not tolerated"), "")
            if not taint:
                return None
            kind, changed = Kind.TOLERATE, _untainted(node, taint)
    room = trials.base.demand.fit(trials.case.room.free(node.name))
    if room == 0 or trials.base.demand.why_not(changed) is not None:
        return None
    avoided = node.name in trials.case.request.avoid and kind is not Kind.AVOID
    return None if avoided or node.name in trials.case.without else (kind, taint, room)


def _untainted(node: Node, *keys: str) -> Node:
    return replace(node, taints=tuple(taint for taint in node.taints if taint.key not in keys))


def _fewest(trials: Trials, kind: Kind, gains: Mapping[int, int], depth: int) -> Iterator[Way]:
    """The fewest nodes of one domain, and of one kind, that make a place there once they are eligible."""
    supply, needed = trials.base.supply, trials.case.request.nodes
    innermost, domains = supply.index.innermost, supply.index.domains
    alike: dict[tuple[int, str], list[int]] = {}
    for position in sorted(gains, key=lambda p: (-gains[p], p)):
        number = innermost[position]
        while domains[number].depth > depth:
            number = domains[number].parent
        alike.setdefault((number, trials.kind_of(position)), []).append(position)
    best: list[int] | None = None
    where = 0
    for (number, of), positions in sorted(alike.items()):
        chosen, lacking = [], needed - _free(trials, number, of)
        for position in positions:
            if lacking <= 0:
                break
            chosen.append(position)
            lacking -= gains[position]
        if lacking <= 0 and chosen and (best is None or len(chosen) < len(best)):
            best, where = chosen, number
    if best is None:
        return
    supposed = trials.base.fork()
    supposed.admit(best)
    if trials.plan(supposed) is None:
        return
    nodes = tuple(supply.index.names[position] for position in sorted(best))
    inside_of = name_of(trials, where)
    cost = PERSON * trials.case.size
    match kind:
        case Kind.READY:
            verb = "becomes" if len(nodes) == 1 else "become"
            yield Way(kind, cost, f"{short(nodes)} of {inside_of} {verb} ready", nodes=nodes)
        case Kind.UNCORDON:
            yield Way(kind, cost, f"uncordon {short(nodes)} of {inside_of}", nodes=nodes)
        case _:
            yield Way(kind, 0.0, f"take {short(nodes)} of {inside_of} off spec.placement.avoidNodes", nodes=nodes)


def _tolerate(trials: Trials, taint: str, gains: Mapping[int, int]) -> Iterator[Way]:
    supposed = trials.base.fork()
    supposed.admit(gains)
    if trials.plan(supposed) is None:
        return
    more = count(len(gains), "more node")
    text = f"a new job that tolerates the taint {taint}: {more} with room"
    yield Way(Kind.TOLERATE, PERSON * trials.case.size, text, taint=taint)


def _free(trials: Trials, number: int, kind: str) -> int:
    """How many members fit on the nodes of one kind in a domain."""
    supply = trials.base.supply
    domain = supply.index.domains[number]
    return sum(supply.slots[p] for p in range(domain.first, domain.end) if trials.kind_of(p) == kind)
