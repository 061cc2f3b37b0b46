"""A placement of nodes that are given, in the order in which they are given: what it costs, and how good it could be at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainyard.planner import rank
from trainyard.planner.cost import Cost, Edges, touched
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import Placement
from trainyard.planner.request import Request
from trainyard.planner.search.axes import axes, talk_bound, talk_cost
from trainyard.world.supply import Supply

_ALONE: Final = 1


def placed(supply: Supply, request: Request, nodes: Sequence[str], outlook: Outlook = PLAIN) -> Placement:
    """The placement of a gang on these nodes, all of which are in the tree.

    Its ranks need not be in the order that `place` would give them, so every edge of the ring that leaves a domain is paid for.
    The bound is that of an empty cluster: what is free elsewhere is not looked at.
    """
    tree, edges = supply.tree, outlook.edges(len(supply.tree.levels))
    crossings = rank.crossings(tree, nodes)
    cost = _cost(supply, request, nodes, [*crossings.values()], edges)
    bound = _bound(supply, request, len(nodes), edges)
    talk = axes(replace(request, nodes=len(nodes)))
    if talk:
        positions = [tree.index.position[node] for node in nodes]
        cost = talk_cost(tree.index, positions, talk, edges, request.per_node > 1)
        bound = talk_bound(talk, len(nodes), edges, bound, lambda members: _narrowest(supply, request, members))
    return Placement(nodes=tuple(nodes), spans=rank.spans(tree, nodes), crossings=crossings, cost=cost, bound=bound)


def _cost(supply: Supply, request: Request, nodes: Sequence[str], crossings: Sequence[int], edges: Edges) -> Cost:
    """As in `cost`, by the edges of the ring instead of the domains that it touches; depth first these are as many."""
    index = supply.index
    spread = touched(index, (index.position[node] for node in nodes))
    span = max(depth for depth, domains in enumerate(spread) if domains == 1)
    uplinks = sum(crossed * edges.uplink(depth) for depth, crossed in enumerate(crossings, start=1))
    if request.per_node > 1:
        hops = sum(a != b for a, b in zip(nodes, (*nodes[1:], *nodes[:1]), strict=True))
        uplinks += hops * edges.uplink(len(crossings) + 1)
    return Cost(len(nodes), edges.pace(span) if len(nodes) > _ALONE else 0.0, uplinks)


def _bound(supply: Supply, request: Request, members: int, edges: Edges) -> float:
    """The narrowest span that one domain could have if it were empty, and below it the fewest domains that hold all members."""
    if members <= _ALONE:
        return 0.0
    index, whole = supply.index, supply.whole_in
    levels = len(index.at_depth) - 1
    fewest = [_fewest([whole[number] for number in numbers], members) for numbers in index.at_depth]
    fewest.append(-(-members // request.per_node))
    span = max((depth for depth, domains in enumerate(fewest) if domains <= 1), default=0)
    counted = range(1, levels + 2 if request.per_node > 1 else levels + 1)
    return members * edges.pace(span) + sum(fewest[d] * edges.uplink(d) for d in counted if fewest[d] > 1)


def _narrowest(supply: Supply, request: Request, members: int) -> int:
    """The greatest depth of a domain, or of a node, that would have room for so many if it were empty; 0 where none would."""
    if members <= request.per_node and any(slots >= members for slots in supply.whole):
        return len(supply.index.at_depth)
    depths = range(len(supply.index.at_depth) - 1, 0, -1)
    roomy = (depth for depth in depths if any(supply.whole_in[n] >= members for n in supply.index.at_depth[depth]))
    return next(roomy, 0)


def _fewest(sizes: Sequence[int], members: int) -> int:
    """Of domains of these sizes the largest first; 1 where all are too small, which claims nothing."""
    taken = 0
    for size in sorted(sizes, reverse=True):
        if members <= 0:
            return taken
        taken, members = taken + 1, members - size
    return taken if members <= 0 else 1
