"""What every pod gets: the interface by which the ranks meet, and what makes a failure speak."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.api.names import ANNOTATION_INTERFACE
from trainyard.contract.matcher import exactly
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.profiles.model import Transport
from trainyard.network.settings import Setting, Source
from trainyard.world.records import Node

FLIGHT_RECORDS = "2000"
"""Collectives that torch remembers of each rank; its own default since 2.13, and none before."""


def meeting(network: Network, pod: Pod, node: Node | None, host_network: bool) -> Iterator[Setting]:
    """By which interface the pod on a node meets the others. host_network: given by the profile."""
    found = interface(network, node, pod.host_network or host_network)
    if found is not None:
        name, why = found
        # gloo takes plain names; NCCL takes prefixes unless told that a name is whole.
        yield _derived("GLOO_SOCKET_IFNAME", name, f"{why}; gloo would ask the host name")
        if pod.backend is Backend.NCCL:
            whole = f"{why}, as a whole name: without = eth1 would mean eth10 as well"
            yield _derived("NCCL_SOCKET_IFNAME", exactly([name]), whole)


def speaking(network: Network, pod: Pod) -> Iterator[Setting]:
    """What NCCL says, and how a failure of it ends; the same on every node."""
    if pod.backend is not Backend.NCCL:
        return
    family = network.fabric.address_family if network.fabric is not None else None
    if family is not None:
        yield _derived("NCCL_SOCKET_FAMILY", family, "the fabric's address family; NCCL takes the first that it finds")
    if network.profile is not None and network.profile.transport is Transport.TCP:
        why = "a fabric of kind tcp has no RDMA devices worth looking for"
        yield _derived("NCCL_IB_DISABLE", "1", why)
    yield _derived("NCCL_DEBUG", "WARN", "NCCL says nothing by itself, not even why it fails")
    why = "a collective that fails ends the process, after its flight record is written; 1 would lose the record"
    yield _derived("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", why)
    yield _derived("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a collective that times out leaves its flight record")
    # The name before 2.8 (pytorch#152563), TORCH_NCCL_TRACE_BUFFER_SIZE, is the launcher's to write: newer ones read it too
    # (FlightRecorder.hpp of 2.15), but every process then warns that it is deprecated, and only the pod knows its torch.
    why = "the last collectives of each rank, for the flight record; torch before 2.13 keeps none by itself"
    yield _derived("TORCH_FR_BUFFER_SIZE", FLIGHT_RECORDS, why)


def interface(network: Network, node: Node | None, host_network: bool) -> tuple[str, str] | None:
    """The interface by which the pod on a node meets the others, and how that is known; None where it is not.

    On the host's network names are the node's, so that of a profile, which is the pod's, does not count.
    """
    if host_network and node is not None and node.annotations.get(ANNOTATION_INTERFACE):
        return node.annotations[ANNOTATION_INTERFACE], f"the node's annotation {ANNOTATION_INTERFACE}"
    if network.fabric is not None and network.fabric.interface is not None:
        return network.fabric.interface, "the fabric's interface"
    if network.profile is not None and network.profile.interface is not None and not host_network:
        return network.profile.interface, f"the interface of pods in the profile {network.profile.name}"
    return None


def _derived(name: str, value: str, reason: str) -> Setting:
    return Setting(name, value, Source.DERIVED, reason)
