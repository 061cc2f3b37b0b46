"""What all members of a gang must have alike: from what nodes' labels tell, and from what pods report when they start.

Collectives over unlike adapters hang: since NCCL 2.30.3 a difference is ignored by default (NCCL_IGNORE_NET_MISMATCH).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.api.names import LABEL_GPU_PRODUCT
from trainyard.contract.hardware import active_mtu
from trainyard.contract.natural import natural
from trainyard.contract.network import Alike
from trainyard.network.adapters import devices, published
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.nvlink import CLIQUE, beyond_the_node
from trainyard.network.profiles.model import Transport
from trainyard.world.records import Node


@dataclass(frozen=True, slots=True)
class Report:
    """What the pod of a node rank found of its network when it started."""

    node: str
    rank: int
    alike: Alike


def before_admission(network: Network, pod: Pod, nodes: Sequence[Node]) -> Iterator[str]:
    """In what the nodes of a gang differ that must be alike, as far as labels and annotations tell."""
    profile = network.profile
    if pod.backend is not Backend.NCCL or not pod.many or len(nodes) < 2:
        return
    yield from _unlike(
        "accelerators", {node.name: node.labels.get(LABEL_GPU_PRODUCT) for node in nodes}, "the slowest sets the pace"
    )
    if profile is None or not profile.transport.fast:
        return
    machines = {node.name: profile.machine(node.labels) for node in nodes}
    hang = "NCCL ignores the difference, and collectives hang"
    named = {node.name: len(devices(network, pod, node)[0]) or None for node in nodes}
    counted = {name: machine.nics if machine is not None else None for name, machine in machines.items()}
    yield from _unlike("number of adapters", named if any(named.values()) else counted, hang)
    rates = {name: machine.nic_gbps if machine is not None else None for name, machine in machines.items()}
    yield from _unlike("Gb/s of each adapter", rates, "the slowest sets the pace")
    if profile.transport is Transport.ROCE:
        mtus = {node.name: _mtu(pod, node) for node in nodes}
        yield from _unlike("MTU of the adapters", mtus, "large messages are lost, and collectives hang")
    if any(beyond_the_node(profile, node) for node in nodes):
        yield from _shares(nodes)


def _mtu(pod: Pod, node: Node) -> int | None:
    """What the adapters of a node send at once, by the MTU of their interfaces; None where no driver tells."""
    known = [adapter.mtu for adapter in published(pod, node) if adapter.mtu is not None]
    return active_mtu(min(known)) if known else None


def _shares(nodes: Sequence[Node]) -> Iterator[str]:
    """Groups across NVLink domains are as large as the smallest share of a domain."""
    shares = Counter(node.labels[CLIQUE] for node in nodes if CLIQUE in node.labels)
    if len(set(shares.values())) > 1:
        listed = ", ".join(f"{count} of {clique}" for clique, count in sorted(shares.items()))
        yield f"NVLink domains: the gang takes {listed}; with equally many of each, reductions inside them are as large as can be"


@dataclass(frozen=True, slots=True)
class Unlike:
    """What came of comparing the members of a gang. fatal: why they cannot train together. nodes: names of those to blame, where
    that can be told. costly: what they had better have alike, or be newer in."""

    fatal: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    costly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Trait:
    """hangs: a gang that differs in it never does a step."""

    name: str
    of: Callable[[Alike], Hashable]
    so: str
    hangs: bool = False


_LIKE: Final = (
    _Trait("link layer", lambda of: of.link_layer, "InfiniBand and Ethernet do not reach each other", hangs=True),
    _Trait(
        "number of adapters", lambda of: of.adapters, "NCCL ignores the difference, and collectives hang", hangs=True
    ),
    _Trait("Gb/s of each adapter", lambda of: of.rate_gbps, "the slowest sets the pace"),
    _Trait("MTU of the adapters", lambda of: of.mtu, "large messages are lost, and collectives hang", hangs=True),
    _Trait("MTU of the interface", lambda of: of.interface_mtu, "large packets are lost on the way to the smaller one"),
    _Trait("address family", lambda of: of.family, "adapters do not reach each other", hangs=True),
    _Trait("NCCL version", lambda of: _version(of.nccl), "NCCL refuses to start", hangs=True),
    _Trait("GPUDirect", lambda of: of.gpudirect, "the slowest sets the pace"),
)


def compare(reports: Sequence[Report], *, roce: bool, cross_nic: bool = True, accelerators: int = 8) -> Unlike:
    """What `at_start` says, told apart by what comes of it, and who is in the minority."""
    fatal, blamed = list[str](), list[str]()
    for trait in (trait for trait in _LIKE if trait.hangs):
        of = {report.node: trait.of(report.alike) for report in sorted(reports, key=lambda report: report.rank)}
        fatal += _unlike(trait.name, of, trait.so)
        counts = Counter(value for value in of.values() if value is not None).most_common()
        if len(counts) > 1 and counts[0][1] > counts[1][1]:
            blamed += [node for node, value in of.items() if value not in (None, counts[0][0])]
    lines = at_start(reports, roce=roce, cross_nic=cross_nic, accelerators=accelerators)
    costly = tuple(line for line in lines if line not in fatal)
    return Unlike(tuple(fatal), tuple(dict.fromkeys(blamed)), costly)


def at_start(reports: Iterable[Report], *, roce: bool, cross_nic: bool = True, accelerators: int = 8) -> Iterator[str]:
    """In what the pods of a gang differ that must be alike, and what their library is too old for.

    roce: the network is RDMA over Ethernet. cross_nic: adapters of different rails may talk. accelerators: of each pod.
    """
    known = sorted(reports, key=lambda report: report.rank)
    for trait in _LIKE:
        yield from _unlike(trait.name, {report.node: trait.of(report.alike) for report in known}, trait.so)
    versions = {report.alike.nccl for report in known if report.alike.nccl is not None}
    if versions:
        yield from _too_old(
            min(versions), [report.alike for report in known], roce=roce, cross_nic=cross_nic, accelerators=accelerators
        )


def _too_old(
    nccl: tuple[int, ...], found: Sequence[Alike], *, roce: bool, cross_nic: bool, accelerators: int
) -> Iterator[str]:
    name = f"NCCL {_version(nccl)}"
    indexes = {index for of in found for index in of.gid_indexes}
    if roce and nccl < (2, 21):
        yield f"{name}: takes row 0 of an adapter's table of addresses, which is RoCE v1 or link-local; 2.21 finds the right one"
        if len(indexes) > 1:
            rows = ", ".join(str(index) for index in sorted(indexes))
            yield f"{name}: the right row is another on different adapters ({rows}), and one NCCL_IB_GID_INDEX is not enough"
    elif roce and nccl < (2, 26, 2) and max(indexes, default=0) > 3:
        yield f"{name}: looks no further than the first gap of a table of addresses; 2.26.2 does"
    if nccl <= (2, 22, 3) and any(of.gpudirect for of in found):
        yield f"{name}: may overlook that GPUDirect is there and run at a tenth of the rate; 2.22.4 does not"
    if (2, 20) <= nccl < (2, 24) and cross_nic:
        yield f"{name}: builds alternating rings wrongly where rails may talk to each other; 2.24 does not"
    if nccl < (2, 18) and accelerators == 1:
        yield f"{name}: with one accelerator a pod all take the same adapter; 2.18 spreads them"


def _unlike(what: str, of: Mapping[str, Hashable], so: str) -> Iterator[str]:
    """A sentence where the known values are not one and the same: those of few nodes by name."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for node, value in of.items():
        if value is not None:
            groups[value].append(node)
    if len(groups) < 2:
        return
    ordered = sorted(groups, key=lambda value: (-len(groups[value]), str(value)))
    most = groups[ordered[0]]
    parts = [f"{ordered[0]} on {f'{len(most)} nodes' if len(most) > 1 else most[0]}"]
    parts += [f"{value} on {_some(groups[value])}" for value in ordered[1:]]
    yield f"{what}: {', '.join(parts)}; {so}"


def _some(nodes: Sequence[str]) -> str:
    ordered = sorted(nodes, key=natural)
    return ", ".join(ordered) if len(ordered) <= 3 else f"{', '.join(ordered[:3])} and {len(ordered) - 3} more"


def _version(nccl: tuple[int, ...] | None) -> str | None:
    return None if nccl is None else ".".join(str(part) for part in nccl)
