"""What all members of a gang must have alike: from what nodes' labels tell, and from what pods report when they start.

How they are compared is the contract's (`contract.alike`), as workers do it too. Here are what labels tell, and old libraries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from trainyard.api.names import LABEL_GPU_PRODUCT
from trainyard.contract import alike
from trainyard.contract.alike import ADAPTERS, HANGS, LOSES, MTU, PACE, RATE, Unlike, differing, version
from trainyard.contract.hardware import active_mtu
from trainyard.contract.network import Alike
from trainyard.network.adapters import devices, published
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.nvlink import CLIQUE, beyond_the_node
from trainyard.network.profiles.model import Transport
from trainyard.world.records import Node

NAMED = 3
"""Nodes of one condition that are named."""


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
    yield from differing("accelerators", {node.name: node.labels.get(LABEL_GPU_PRODUCT) for node in nodes}, PACE)
    if profile is None or not profile.transport.fast:
        return
    yield from _at_fault(nodes)
    machines = {node.name: profile.machine(node.labels) for node in nodes}
    named = {node.name: len(devices(network, pod, node)[0]) or None for node in nodes}
    counted = {name: machine.nics if machine is not None else None for name, machine in machines.items()}
    yield from differing(ADAPTERS, named if any(named.values()) else counted, HANGS)
    rates = {name: machine.nic_gbps if machine is not None else None for name, machine in machines.items()}
    yield from differing(RATE, rates, PACE)
    if profile.transport is Transport.ROCE:
        mtus = {node.name: _mtu(pod, node) for node in nodes}
        yield from differing(MTU, mtus, LOSES)
    if any(beyond_the_node(profile, node) for node in nodes):
        yield from _shares(nodes)


def _at_fault(nodes: Sequence[Node]) -> Iterator[str]:
    """What health checks of nodes say of their RDMA."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for fault in node.rdma_faults:
            found.setdefault(fault, []).append(node.name)
    for fault in sorted(found):
        names = found[fault]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield (
            f"condition {fault} of {', '.join(names[:NAMED])}{more}: by the node's health check its RDMA is at fault, and all "
            "members wait for the slowest; spec.placement.avoidNodes leaves it out"
        )


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


def compare(reports: Iterable[Report], *, roce: bool, cross_nic: bool = True, accelerators: int = 8) -> Unlike:
    """In what the pods of a gang differ, and among what only costs, what their library is too old for.

    roce: the network is RDMA over Ethernet. cross_nic: adapters of different rails may talk. accelerators: of each pod.
    """
    known = sorted(reports, key=lambda report: report.rank)
    found = alike.compare({report.node: report.alike for report in known})
    versions = {report.alike.nccl for report in known if report.alike.nccl is not None}
    if not versions:
        return found
    of = [report.alike for report in known]
    old = _too_old(min(versions), of, roce=roce, cross_nic=cross_nic, accelerators=accelerators)
    return replace(found, costly=(*found.costly, *old))


def _too_old(
    nccl: tuple[int, ...], found: Sequence[Alike], *, roce: bool, cross_nic: bool, accelerators: int
) -> Iterator[str]:
    name = f"NCCL {version(nccl)}"
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
