"""Who of a gang talks to whom: the axes of its mesh, as rings over members.

Every axis is a set of rings that run at once, over consecutive members or over such as are a stride apart. Those of one axis wait
for the slowest edge that any of them has; over the uplinks all of them go. What a placement costs is then the mean of what `cost`
says for a single ring, weighted by the bytes of a step along each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.collectives import Collective, bus_factor
from trainyard.planner.cost import Cost, Edges
from trainyard.planner.request import Request
from trainyard.topology.tree import Index

NEGLIGIBLE: Final = 1e-6
"""Share of a step's bytes below which it does not matter where an axis goes: what controls the job, not what trains."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Rings over `size` members each, `stride` apart in rank. at_node: share of a step's bytes that a member sends along it;
    at_uplink: the same where each ring counts by itself."""

    size: int
    stride: int
    at_node: float
    at_uplink: float

    @property
    def extent(self) -> int:
        """Over how many consecutive ranks a ring extends."""
        return self.size * self.stride


def axes(request: Request) -> tuple[Axis, ...]:
    """The axes that leave nodes; () where all that is said goes around the whole gang, as one ring does."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for traffic in request.traffic:
        if traffic.collective is Collective.STORE or traffic.size * traffic.stride <= request.processes:
            continue
        stride = max(1, traffic.stride // request.processes)
        size = max(
            2,
            traffic.size
            if traffic.stride >= request.processes
            else _ceil(traffic.size * traffic.stride, request.processes),
        )
        size = min(size, _ceil(request.nodes, stride))
        sent = traffic.bytes * traffic.count * bus_factor(traffic.collective, traffic.size)
        here, there = found.get((size, stride), (0.0, 0.0))
        rings = min(traffic.stride, request.processes)
        found[size, stride] = here + sent * rings, there + sent * rings * stride
    whole = sum(here for here, _ in found.values())
    if whole <= 0 or all(stride == 1 and size >= request.nodes for size, stride in found):
        return ()
    return tuple(
        Axis(*key, here / whole, there / whole)
        for key, (here, there) in sorted(found.items())
        if here > NEGLIGIBLE * whole
    )


def ring_edges(index: Index, ranked: Sequence[int], axis: Axis) -> tuple[int, ...]:
    """By depth, 0 first and the nodes last, how many edges of the axis' rings leave a domain. ranked: positions."""
    following = _following(len(ranked), axis)
    at = list(ranked)
    edges = [sum(a != at[n] for a, n in zip(at, following, strict=True))]
    at = [index.innermost[position] for position in ranked]
    for _ in index.at_depth:
        edges.append(sum(a != at[n] for a, n in zip(at, following, strict=True)))
        at = [index.domains[number].parent for number in at]
    return tuple(reversed(edges))


def talk_cost(index: Index, ranked: Sequence[int], talk: Sequence[Axis], edges: Edges, several: bool) -> Cost:
    """The mean over the axes. several: as in `cost.cost`."""
    pace = uplinks = 0.0
    for axis in talk:
        left = ring_edges(index, ranked, axis)
        pace += axis.at_node * edges.pace(max(depth for depth, number in enumerate(left) if not number))
        counted = range(1, len(left) if several else len(left) - 1)
        uplinks += axis.at_uplink * sum(left[depth] * edges.uplink(depth) for depth in counted)
    return Cost(len(ranked), pace, uplinks)


def talk_bound(
    talk: Sequence[Axis], members: int, edges: Edges, least: float, narrowest: Callable[[int], int]
) -> float:
    """No placement costs less than this. least: nor this, if all went around the whole gang; narrowest: the greatest depth of a
    domain that has room for so many.

    Each axis has rings of a size that a domain with so much room can hold. And all axes together join all members, so that every
    domain that the gang touches is left by a ring of one of them, and the slowest edge is in one.
    """
    together = sum(axis.at_node for axis in talk if axis.size >= members)
    apart = sum(axis.at_node * members * edges.pace(narrowest(axis.size)) for axis in talk if axis.size < members)
    weakest = min(min(axis.at_node, axis.at_uplink) for axis in talk)
    return max(together * least + apart, weakest * least)


def _following(members: int, axis: Axis) -> list[int]:
    """By rank, who comes next in its ring; the last ring of an axis that does not divide the gang is shorter."""
    following = []
    for rank in range(members):
        first = rank - rank % axis.extent + rank % axis.stride
        after = rank + axis.stride
        following.append(after if after < min(first + axis.extent, members) else first)
    return following


def _ceil(number: int, by: int) -> int:
    return -(-number // by)
