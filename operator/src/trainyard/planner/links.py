"""How fast the network is: of a node, inside it, and up each tier; as the administrator said it, else as assumed.

All figures are per direction, in bytes a second (GB/s is 1e9), and usable: a rating times the share that the protocol leaves. An
assumed link says so and says why, so that nobody takes a guess for a measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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

T = TypeVar("T")


ACCELERATOR_USABLE: Final = 0.80
"""Of an accelerator link's rating: NCCL 2.30.7 (src/graph/topo.h) counts 240 of NVLink 3's 300 GB/s, 370 of NVLink 4's 450 and
722 of NVLink 5's 900."""
TIER_SECONDS: Final = 1e-6
"""What a tier adds to a message that has to climb it: two switches of about 0.3 us and the fibre to them and back (assumed)."""
LOOPBACK: Final = (4e9, 20e-6)
"""Between processes of a node without accelerators, which is TCP over the loopback interface (assumed)."""


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
    """

    bytes_per_second: float | None = None
    oversubscription: float = 1.0
    latency_seconds: float = TIER_SECONDS
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Links:
    """The network of one cluster.

    levels: names, broadest first. uplinks: of a domain of each. node: all network interfaces of a node together, with the latency
    between nodes of one narrowest domain. inside: from an accelerator to the others of its node. multicast: what share of
    `inside` a reduction in the node's switch reaches; 0 where there is none. joined: depth of the domains that are as one node to
    the accelerators, since their own links reach all of it; None where these end at the node. declared: whether the node's
    figures are the administrator's; source: where they are from.
    """

    levels: tuple[str, ...]
    uplinks: tuple[Uplink, ...]
    node: Link
    inside: Link
    multicast: float = 0.0
    joined: int | None = None
    declared: bool = False
    source: str = ""

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


def links_of(fabric: FabricSpec | None, levels: Sequence[Level], labels: Collection[Mapping[str, str]] = ()) -> Links:
    """The links of a cluster whose tiers are `levels`.

    What the Fabric says counts; what it leaves out is that of the machine most nodes say they are (by instance type or
    accelerator), else a stated guess. labels: of the nodes; without them nothing is known of the machines.
    """
    accelerator = accelerator_most(labels)
    machine = _machine(fabric, labels, accelerator)
    said = fabric.node if fabric is not None else NodeLinks()
    network = NETWORKS[_BY_KIND.get(fabric.kind, machine.network) if fabric is not None else machine.network]
    of_node, of_level = _node(said, machine, network), _said_of_levels(fabric)
    inside = _inside(said, accelerator)
    return Links(
        levels=tuple(level.name for level in levels),
        uplinks=tuple(_uplink(of_level.get(level.name), network.usable) for level in levels),
        node=of_node,
        inside=inside,
        joined=_joined(levels) if accelerator is not None or said.accelerator_bandwidth is not None else None,
        multicast=accelerator.multicast if accelerator is not None else 0.0,
        declared=said.nic_bandwidth is not None,
        source="declared by the Fabric" if said.nic_bandwidth is not None else machine.source,
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


def _joined(levels: Sequence[Level]) -> int | None:
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
