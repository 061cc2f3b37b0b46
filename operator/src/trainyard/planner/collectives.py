"""How long a collective takes: alpha-beta times by algorithm, each with its source.

A time is a number of steps times the latency of a step, plus bytes over bandwidth. n members on k nodes, g of them on each; S
bytes in all (the whole buffer of an all-reduce, the gathered one of an all-gather, as nccl-tests counts). Constants are those
that NCCL 2.30.7 counts with itself (src/graph/tuning.cc); none is fitted to a measurement. tests/unit/planner/test_collectives.py
keeps the error against 68 published measurements, row by row.

What the model leaves out: that messages of 1 to 256 MB do not get the whole bandwidth. There it is up to half too fast within a
node and, against measurements over EFA, up to three times too fast between nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2, sqrt
from typing import Final

from trainyard.planner.links import Link


class Collective(StrEnum):
    """What is done together."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    """Each member a part of its own to every other."""
    BROADCAST = "broadcast"
    SEND_RECEIVE = "send-receive"
    """Each member to the next, the last one to nobody; and on the way back, from each to the one before."""
    STORE = "store"
    """Each process by itself, to storage outside of the gang."""


class Algorithm(StrEnum):
    """How an all-reduce is done."""

    RING = "ring"
    TREE = "tree"
    SWITCH = "switch"
    """Reduced in the switch of each node (NVLS), and over a tree between nodes (NVLSTree)."""


LAUNCH_SECONDS: Final = 8.4e-6
"""To start a ring or a tree (NCCL, baseLatencies, protocol Simple)."""
RING_PLATEAU: Final = 1.4
"""The latency of an all-reduce over a ring between nodes is so many times the sum of its steps (NCCL, plateau effect of ring)."""
TREE_USABLE: Final = 0.92
"""Share of the bandwidth that a tree uses (NCCL)."""
SWITCH_SECONDS: Final = 25e-6
"""One reduction in the switch of a node (NCCL, hwLatencies: NVLS)."""
SWITCH_TREE_SECONDS: Final = 6.9e-6
"""What a step between nodes takes longer after a reduction in the switch: 20.9 us (NCCL, NVLSTree over NET), not 14."""
SWITCH_MEMBERS: Final = 5
"""From how many accelerators of a node on a reduction in its switch is faster than a ring (measured on H200; B200 from 6)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Who takes part, and over what.

    members: processes; nodes: on how many. between: from a node to the next one of the ring, all that the group may use of its
    interfaces, with the latency of a step; inside: from a process to another of its node. multicast: share of `inside` that a
    reduction in the node's switch reaches; 0 where the switch cannot reduce.
    """

    members: int
    nodes: int
    between: Link
    inside: Link
    multicast: float = 0.0

    @property
    def per_node(self) -> int:
        """The most members on one node, if they are spread evenly."""
        return -(-self.members // self.nodes)


def seconds(collective: Collective, group: Group, size_bytes: float) -> float:
    """How long one collective takes. Nothing where there is nobody to talk to."""
    if collective is Collective.STORE:
        return size_bytes * group.per_node / group.between.bytes_per_second
    if group.members < 2:
        return 0.0
    match collective:
        case Collective.ALL_REDUCE:
            return all_reduce(group, size_bytes)
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return ring(group, size_bytes, rounds=1)
        case Collective.BROADCAST:
            return broadcast(group, size_bytes)
        case _:
            return send_receive(group, size_bytes)


def all_reduce(group: Group, size_bytes: float, algorithms: Collection[Algorithm] = tuple(Algorithm)) -> float:
    """By the fastest of the algorithms that the group can use, which is what NCCL's tuner aims at."""
    times = [ring(group, size_bytes, rounds=2)] if Algorithm.RING in algorithms else []
    if Algorithm.TREE in algorithms and group.nodes > 1:
        times.append(tree(group, size_bytes))
    if Algorithm.SWITCH in algorithms and group.multicast > 0.0 and group.per_node >= SWITCH_MEMBERS:
        times.append(switch(group, size_bytes))
    if not times:
        raise ValueError(f"none of {', '.join(sorted(algorithms)) or 'no algorithms'} is possible for {group}")
    return min(times)


def ring(group: Group, size_bytes: float, rounds: int) -> float:
    """A ring over all members: one round is an all-gather or a reduce-scatter, two are an all-reduce.

    t = rounds x ((n - k) a_inside + k' a_between) + rounds x (n - 1)/n x S / B, k' = k - 1 (Patarasuk and Yuan 2009; latencies as
    NCCL sums them). B is what a node sends, or g/(g-1) of what a process sends inside: of g rings, of which each leaves the node
    through another interface, a process has g - 1 going on inside.
    """
    n, k, g = group.members, group.nodes, group.per_node
    if k == 1:
        bandwidth = group.inside.bytes_per_second
    elif g == 1:
        bandwidth = group.between.bytes_per_second
    else:
        bandwidth = min(group.between.bytes_per_second, group.inside.bytes_per_second * g / (g - 1))
    latency = LAUNCH_SECONDS + rounds * (
        (n - k) * group.inside.latency_seconds + (k - 1) * group.between.latency_seconds
    )
    if k > 1 and rounds == 2:
        latency *= RING_PLATEAU
    return latency + rounds * (n - 1) / n * size_bytes / bandwidth


def tree(group: Group, size_bytes: float) -> float:
    """All-reduce over two binary trees of nodes in which every node is a leaf of one, with a chain inside each node.

    t = (sqrt(a) + sqrt(S / B))^2, a = 2 ((g - 1) a_inside + ceil(log2 k) a_between): a message in pieces of the best size
    (Sanders, Speck and Traeff 2009). A node sends S with one other node and 2 S with more; a process inside sends S up the chain
    and S down.
    """
    g, k = group.per_node, group.nodes
    latency = 2 * ((g - 1) * group.inside.latency_seconds + ceil(log2(k)) * group.between.latency_seconds)
    bandwidth = group.between.bytes_per_second / (1 if k == 2 else 2)
    if g > 1:
        bandwidth = min(bandwidth, group.inside.bytes_per_second / 2)
    return LAUNCH_SECONDS + _in_pieces(latency, size_bytes / (bandwidth * TREE_USABLE))


def switch(group: Group, size_bytes: float) -> float:
    """All-reduce in the switch of each node (NVLS), and over a tree between nodes (NVLSTree).

    The switch pulls S bytes from every process, each of which keeps the sum of its g-th part and sends that to all through the
    switch: S (g + 1)/g bytes in each direction, over the share of the link that NCCL counts with. Between nodes as in `tree`.
    """
    g, k = group.per_node, group.nodes
    bandwidth = group.inside.bytes_per_second * group.multicast * g / (g + 1)
    latency = SWITCH_SECONDS
    if k > 1:
        bandwidth = min(bandwidth, group.between.bytes_per_second / (1 if k == 2 else 2))
        latency += 2 * ceil(log2(k)) * (group.between.latency_seconds + SWITCH_TREE_SECONDS)
    return _in_pieces(latency, size_bytes / bandwidth)


def broadcast(group: Group, size_bytes: float) -> float:
    """From one member along the ring: t = (sqrt((n - k) a_inside + (k - 1) a_between) + sqrt(S / B))^2, a chain with pieces of
    the best size (Sanders, Speck and Traeff 2009)."""
    n, k = group.members, group.nodes
    latency = (n - k) * group.inside.latency_seconds + (k - 1) * group.between.latency_seconds
    bandwidth = group.inside.bytes_per_second
    if k > 1:
        bandwidth = group.between.bytes_per_second if n == k else min(group.between.bytes_per_second, bandwidth)
    return LAUNCH_SECONDS + _in_pieces(latency, size_bytes / bandwidth)


def send_receive(group: Group, size_bytes: float) -> float:
    """From each member to the next, all at once: t = a + S / B of the slowest way."""
    link = group.between if group.nodes > 1 else group.inside
    return link.latency_seconds + size_bytes / link.bytes_per_second


def bus_factor(collective: Collective, members: int) -> float:
    """What nccl-tests multiplies S / t by, so that the result is comparable with the bandwidth of a link (PERFORMANCE.md)."""
    match collective:
        case Collective.ALL_REDUCE:
            return 2 * (members - 1) / members
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return (members - 1) / members
        case Collective.BROADCAST | Collective.SEND_RECEIVE | Collective.STORE:
            return 1.0


def wire_factor(collective: Collective, members: int, backend: str) -> float:
    """Bytes that a member sends for each byte of the whole buffer, the mean over the members.

    A ring sends what `bus_factor` says. gloo's reduce-scatter is its all-reduce, of which each member keeps a part: it sends
    twice (ProcessGroupGloo, reduce_scatter). backend: gloo or nccl.
    """
    if members < 2:
        return 0.0
    if backend == "gloo" and collective is Collective.REDUCE_SCATTER:
        collective = Collective.ALL_REDUCE
    return bus_factor(collective, members)


def _in_pieces(latency_seconds: float, transfer_seconds: float) -> float:
    """A pipeline with pieces of the best size: neither so many that their latencies add up, nor so few that it stays empty."""
    return (sqrt(latency_seconds) + sqrt(transfer_seconds)) ** 2
