"""How fast the network is: of a node, inside it, and up each tier; as it was seen lately, else as the administrator said it,
else as assumed.

All figures are per direction, in bytes a second (GB/s is 1e9), and usable: a rating times the share that the protocol leaves. An
assumed link says so and says why, so that nobody takes a guess for a measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from trainyard.api.fabric import FabricKind, FabricSpec, NodeLinks
from trainyard.api.fabric import Level as FabricLevel
from trainyard.api.names import LABEL_GPU_PRODUCT, LABEL_INSTANCE_TYPE
from trainyard.api.quantities import bytes_per_second, latency_seconds
from trainyard.planner.machines import (
    MACHINES,
    NETWORKS,
    NVLINK_SECONDS,
    UNKNOWN,
    UNKNOWN_TCP,
    Accelerator,
    Machine,
    Network,
    accelerator_of,
)
from trainyard.topology.dialects import NVLINK
from trainyard.topology.tree import Level
from trainyard.world.observed import NODE

T = TypeVar("T")


ACCELERATOR_USABLE: Final = 0.80
"""Of an accelerator link's rating: NCCL 2.30.7 (src/graph/topo.h) counts 240 of NVLink 3's 300 GB/s, 370 of NVLink 4's 450 and
722 of NVLink 5's 900."""
TIER_SECONDS: Final = 1e-6
"""What a tier adds to a message that has to climb it: two switches of about 0.3 us and the fibre to them and back (assumed)."""
LOOPBACK: Final = (4e9, 20e-6)
"""Between processes of a node without accelerators, which is TCP over the loopback interface (assumed)."""
LEAST_SHARE: Final = 0.01
"""Of what a link should carry. An observation of less is taken for this: a plan divides by it."""
MOST_SHARE: Final = 100.0
"""Of what a node is assumed to send where nobody knows its interfaces; where somebody does, their rating is the most."""


_BY_KIND: Final[Mapping[str, str]] = {"tcp": "TCP", "infiniband": "InfiniBand", "roce": "RoCE"}
"""The kind of network by the Fabric's kind; of a generic one, that of the machine."""


class Link(NamedTuple):
    """A way between two processes: what it carries per direction, and how long a short message takes."""

    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Uplink:
    """What joins one domain of a tier to the rest.

    bytes_per_second: of all its links together, None where only a ratio is known. oversubscription: how many times the bandwidth
    of what is below the domain is that of the uplink. latency_seconds: what a message takes longer that leaves the domain.
    declared: whether an administrator said so; observed: whether somebody measured it. per_node: the most that one node was seen
    to send over it where that is less than its share of it; None where it is not.
    """

    bytes_per_second: float | None = None
    oversubscription: float = 1.0
    latency_seconds: float = TIER_SECONDS
    declared: bool = False
    observed: bool = False
    per_node: float | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The network of one cluster.

    levels: names, broadest first. uplinks: of a domain of each. node: all network interfaces of a node together, with the latency
    between nodes of one narrowest domain. inside: from an accelerator to the others of its node. multicast: what share of
    `inside` a reduction in the node's switch reaches; 0 where there is none. joined: depth of the domains that are as one node to
    the accelerators, since their own links reach all of it; None where these end at the node. declared: whether the node's
    figures are the administrator's; source: where they are from. observed: for each level that was measured lately, and `NODE`,
    which share of what is declared or assumed one node was seen to send; bandwidths are those that were seen.
    """

    levels: tuple[str, ...]
    uplinks: tuple[Uplink, ...]
    node: Link
    inside: Link
    multicast: float = 0.0
    joined: int | None = None
    declared: bool = False
    source: str = ""
    observed: tuple[tuple[str, float], ...] = ()

    @property
    def said(self) -> str:
        """Where the figures are from, in words."""
        return f"{self.source}; observed: {self.seen} of that" if self.observed else self.source

    @property
    def seen(self) -> str:
        """By level, the share that one node was seen to send; "" where nothing was measured lately."""
        return ", ".join(f"{level} {share:.2f}" for level, share in self.observed)

    def edge(self, depth: int) -> Link:
        """The way between two processes that share a domain of this depth and none narrower.

        Depth 0: they share the cluster alone; the number of levels: the narrowest domain; one more: the node. Of a way up that is
        oversubscribed, what is left for each node while all of them use it; of one whose bandwidth is known, at most that. Within
        a domain that the accelerators' own links join it is those.
        """
        if depth > len(self.levels) or (self.joined is not None and depth >= self.joined):
            return self.inside
        crossed = self.uplinks[depth:]
        share, most = self.node.bytes_per_second, self.node.bytes_per_second
        for uplink in crossed:
            share /= uplink.oversubscription
            if uplink.bytes_per_second is not None:
                most = min(most, uplink.bytes_per_second)
            if uplink.per_node is not None:
                most = min(most, uplink.per_node)
        latency = self.node.latency_seconds + sum(uplink.latency_seconds for uplink in crossed)
        return Link(min(share, most), latency)

    def capacity(self, depth: int, nodes: int) -> float:
        """Bytes a second that one domain of this depth (1 to the number of levels), with so many nodes, can send out.

        Where only a ratio is known, of what its nodes have, divided by the ratios on the way up.
        """
        uplink = self.uplinks[depth - 1]
        if uplink.bytes_per_second is not None:
            return uplink.bytes_per_second
        below = nodes * self.node.bytes_per_second
        for narrower in self.uplinks[depth - 1 :]:
            below /= narrower.oversubscription
        return below


def links_of(
    fabric: FabricSpec | None,
    levels: Sequence[Level],
    labels: Collection[Mapping[str, str]] = (),
    observed: Mapping[str, float] | None = None,
) -> Links:
    """The links of a cluster whose tiers are `levels`.

    What the Fabric says counts; what it leaves out is that of the machine most nodes say they are (by instance type or
    accelerator), else a stated guess. labels: of the nodes; without them nothing is known of the machines. observed: by level,
    and `NODE`, what one node was seen to send, bytes a second; counts before both.
    """
    accelerator = accelerator_most(labels)
    machine = _machine(fabric, labels, accelerator)
    said = fabric.node if fabric is not None else NodeLinks()
    network = NETWORKS[_BY_KIND.get(fabric.kind, machine.network) if fabric is not None else machine.network]
    of_node, of_level = _node(said, machine, network), _said_of_levels(fabric)
    inside = _inside(said, accelerator)
    links = Links(
        levels=tuple(level.name for level in levels),
        uplinks=tuple(_uplink(of_level.get(level.name), network.usable) for level in levels),
        node=of_node,
        inside=inside,
        joined=joined_at(levels) if accelerator is not None or said.accelerator_bandwidth is not None else None,
        multicast=accelerator.multicast if accelerator is not None else 0.0,
        declared=said.nic_bandwidth is not None,
        source="declared by the Fabric" if said.nic_bandwidth is not None else machine.source,
    )
    known = said.nic_bandwidth is not None or machine not in (UNKNOWN, UNKNOWN_TCP)
    most = of_node.bytes_per_second / network.usable if known else MOST_SHARE * of_node.bytes_per_second
    return _as_seen(links, observed, most) if observed else links


def _as_seen(links: Links, observed: Mapping[str, float], most: float) -> Links:
    """The links as somebody measured them, from the nodes up. most: what a node's interfaces can send at all.

    A domain's uplink that one node can fill carries what was seen, be that more or less than was said. Of a larger one, or one of
    which a ratio is known, one node's messages tell nothing of the whole: a node is given what was seen where that is less than
    its share. No way up is faster than what lies below it.
    """
    depths, shares = len(links.levels), list[tuple[str, float]]()
    seen = observed.get(NODE) if links.joined is None else None  # within an NVLink domain no interface is used
    now = links
    if seen is not None:
        usual = links.node.bytes_per_second
        node = min(max(seen, LEAST_SHARE * usual), most)
        now = _of_another_node(now, node)
        shares.append((NODE, node / usual))
    for depth in range((depths if links.joined is None else links.joined) - 1, -1, -1):
        level = links.levels[depth]
        seen = observed.get(level)
        if seen is None:
            continue
        said, usual = links.uplinks[depth], links.edge(depth).bytes_per_second
        seen = max(seen, LEAST_SHARE * usual)
        filled = said.bytes_per_second is not None and said.bytes_per_second <= _without(links, depth)
        below = _without(now, depth)
        if filled:
            uplink = replace(said, bytes_per_second=min(seen, below), observed=True)
        else:
            share = now.edge(depth).bytes_per_second
            uplink = replace(said, per_node=seen if seen < share else None, observed=True)
        now = replace(now, uplinks=(*now.uplinks[:depth], uplink, *now.uplinks[depth + 1 :]))
        shares.append((level, now.edge(depth).bytes_per_second / usual))
    return replace(now, observed=tuple(reversed(shares)))


def _of_another_node(links: Links, bytes_per_second: float) -> Links:
    """The links with nodes that send so much.

    A ratio says what a domain's uplink carries of what its nodes should send. That stays, so the ratio becomes smaller as the
    nodes do, the narrowest tier's first.
    """
    left, uplinks = bytes_per_second / links.node.bytes_per_second, list(links.uplinks)
    for depth in range(len(uplinks) - 1, -1, -1):
        said = uplinks[depth].oversubscription
        if said > 1.0:
            uplinks[depth] = replace(uplinks[depth], oversubscription=max(1.0, said * left))
            left *= said / uplinks[depth].oversubscription
    return replace(links, node=links.node._replace(bytes_per_second=bytes_per_second), uplinks=tuple(uplinks))


def _without(links: Links, depth: int) -> float:
    """What one node could send over a way up if its broadest tier were no limit."""
    free = replace(links.uplinks[depth], bytes_per_second=None, oversubscription=1.0, per_node=None)
    return (
        replace(links, uplinks=(*links.uplinks[:depth], free, *links.uplinks[depth + 1 :])).edge(depth).bytes_per_second
    )


def _machine(
    fabric: FabricSpec | None, labels: Collection[Mapping[str, str]], accelerator: Accelerator | None
) -> Machine:
    if fabric is not None and fabric.kind is FabricKind.TCP:
        return UNKNOWN_TCP
    named = _most(Counter(of.get(LABEL_INSTANCE_TYPE, "") for of in labels), MACHINES.get)
    if named is not None:
        return named
    return UNKNOWN if accelerator is not None or fabric is not None else UNKNOWN_TCP


def joined_at(levels: Sequence[Level]) -> int | None:
    """The depth of the NVLink domains; None where no level tells of them."""
    return next((depth for depth, level in enumerate(levels, start=1) if level.name == NVLINK), None)


def _node(said: NodeLinks, machine: Machine, network: Network) -> Link:
    nics = said.nics if said.nics is not None else (machine.nics if said.nic_bandwidth is None else 1)
    rated = bytes_per_second(said.nic_bandwidth) if said.nic_bandwidth is not None else machine.nic_bytes_per_second
    latency = latency_seconds(said.latency) if said.latency is not None else network.latency_seconds
    return Link(nics * rated * network.usable, latency)


def _inside(said: NodeLinks, accelerator: Accelerator | None) -> Link:
    if said.accelerator_bandwidth is not None:
        latency = accelerator.link_seconds if accelerator is not None else NVLINK_SECONDS
        return Link(bytes_per_second(said.accelerator_bandwidth) * ACCELERATOR_USABLE, latency)
    if accelerator is None:
        return Link(*LOOPBACK)
    return Link(accelerator.link_bytes_per_second, accelerator.link_seconds)


def accelerator_most(labels: Collection[Mapping[str, str]]) -> Accelerator | None:
    """The accelerator that most nodes with these labels have; None where none is known."""
    return _most(
        Counter(of.get(LABEL_GPU_PRODUCT, "") for of in labels),
        lambda product: accelerator_of({LABEL_GPU_PRODUCT: product}),
    )


def _most(said: Counter[str], known: Callable[[str], T | None]) -> T | None:
    """What most labels name of what is known; of equals the first by name; None where nothing is known."""
    for name in sorted(said, key=lambda name: (-said[name], name)):
        found = known(name)
        if found is not None:
            return found
    return None


def _said_of_levels(fabric: FabricSpec | None) -> Mapping[str, FabricLevel]:
    return {} if fabric is None else {level.name: level for level in fabric.levels}


def _uplink(said: FabricLevel | None, usable: float) -> Uplink:
    if said is None:
        return Uplink()
    return Uplink(
        bytes_per_second=bytes_per_second(said.bandwidth) * usable if said.bandwidth is not None else None,
        oversubscription=said.oversubscription if said.oversubscription is not None else 1.0,
        latency_seconds=latency_seconds(said.latency) if said.latency is not None else TIER_SECONDS,
        declared=said.bandwidth is not None or said.oversubscription is not None,
    )
