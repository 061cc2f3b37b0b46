"""What NCCL is told of the adapters: which network must be there, which adapters, and how switches know their packets.

For gangs of several nodes on a network that is faster than sockets. A GID index is never written: it is a row of a table that
each pod has its own of, and NCCL since 2.21 finds it by address family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainyard.api.fabric import FabricSpec, Rails, Rdma
from trainyard.api.names import ANNOTATION_HCAS
from trainyard.api.template import is_accelerator
from trainyard.contract.matcher import exactly
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.profiles.model import Profile, Roce
from trainyard.network.reading import integer
from trainyard.network.roce import gives_up_seconds, longest_timeout, traffic_class
from trainyard.network.settings import Setting, Source
from trainyard.world.records import Adapter, Node

_RAILS = {
    Rails.ISOLATED: ("0", "an adapter reaches those of its own rail alone"),
    Rails.ONE: ("1", "all adapters are on the same switches"),
}


def in_use(network: Network, pod: Pod, usable: bool) -> Profile | None:
    """The profile whose adapters the pods use; None where they use none. usable: what the profile needs is there."""
    profile = network.profile
    fast = profile is not None and profile.transport.fast and pod.backend is Backend.NCCL and pod.many and usable
    return None if not fast or profile is None or over_sockets(profile, _said(network, pod)) else profile


def adapters(network: Network, profile: Profile, pod: Pod, timeout_seconds: float) -> Iterator[Setting]:
    """Settings of the adapters, the same on all machines."""
    if profile.net is not None and _has_net(profile, _said(network, pod).get("NCCL_NET_PLUGIN")):
        why = f"without {profile.net} the job should fail at once: NCCL would fall back to sockets and say nothing"
        yield _derived("NCCL_NET", profile.net, why)
    if profile.transport.verbs:
        why = "a rank with another number of adapters fails at once: NCCL since 2.30.3 would go on, and hang"
        yield _derived("NCCL_IGNORE_NET_MISMATCH", "0", why)
        yield from _packets(network, profile)
        yield from _timeout(network, profile, timeout_seconds)
    rails = _rdma(network.fabric).rails or profile.rails
    if rails in _RAILS:
        value, why = _RAILS[rails]
        yield _derived("NCCL_CROSS_NIC", value, why)


def _has_net(profile: Profile, plugin: str | None) -> bool:
    """Whether the profile's network is there with this NCCL_NET_PLUGIN. Of somebody's own plugin nobody knows its name; NCCL's
    own, IB, needs none."""
    own = profile.env.get("NCCL_NET_PLUGIN")
    return plugin is None or plugin == own or (plugin.lower() == "none" and profile.net == "IB")


def over_sockets(profile: Profile, said: Mapping[str, str]) -> bool:
    """Whether somebody switched the fast network off; demanding it all the same would make the job fail."""
    if said.get("NCCL_NET", "").lower() == "socket":
        return True
    return profile.transport.verbs and bool(integer(said.get("NCCL_IB_DISABLE", "")).value)


def devices(network: Network, pod: Pod, node: Node | None) -> tuple[tuple[str, ...], str]:
    """The adapters of the compute network on a node, and how they are known; () where their names are not: the launcher then
    finds them in the pod.

    So it does for a pod with a part of a machine's accelerators, since which ones those are is known only there.
    """
    annotated = node.annotations.get(ANNOTATION_HCAS, "") if node is not None else ""
    listed = tuple(name.strip() for name in annotated.split(",") if name.strip())
    if listed:
        return listed, f"the node's annotation {ANNOTATION_HCAS}"
    said = _rdma(network.fabric).devices
    if said:
        return said, "the fabric's adapters"
    machine = network.profile.machine(node.labels) if network.profile is not None and node is not None else None
    if machine is not None and machine.devices and pod.accelerators >= machine.accelerators:
        assert network.profile is not None
        return machine.devices, f"the adapters of this machine in the profile {network.profile.name}"
    near = published(pod, node)
    if near:
        return tuple(adapter.name for adapter in near), "the adapters under the PCIe roots of the node's accelerators"
    return (), ""


def published(pod: Pod, node: Node | None) -> tuple[Adapter, ...]:
    """The adapters that a node's driver says are near its accelerators; () where nobody says, or the pod has its devices from
    elsewhere: a part of the accelerators, or a claim of its own, whose devices the driver picks."""
    if node is None or pod.claims or pod.accelerators < all_accelerators(node):
        return ()
    return tuple(adapter for adapter in node.adapters if adapter.near)


def all_accelerators(node: Node) -> int:
    """How many accelerators a node offers."""
    return sum(amount for name, amount in node.allocatable.items() if is_accelerator(name))


def named(network: Network, profile: Profile, pod: Pod, node: Node | None) -> Iterator[Setting]:
    """Which adapters, on one node."""
    if not profile.transport.verbs:
        return
    names, why = devices(network, pod, node)
    if names:
        yield _derived("NCCL_IB_HCA", exactly(names), f"{why}, as whole names: without = mlx5_1 would mean mlx5_10 too")


def _packets(network: Network, profile: Profile) -> Iterator[Setting]:
    """By what switches know the packets. On InfiniBand that is the subnet manager's business, a service level aside."""
    said, roce = _rdma(network.fabric), profile.roce
    if roce is not None:
        family = said.address_family or roce.address_family
        why = "the adapters' addresses are of this family; NCCL finds the row of each adapter's table by it"
        yield _derived("NCCL_IB_ADDR_FAMILY", family, why)
        within = said.address_range or (roce.address_range if family is roce.address_family else None)
        if within is not None:
            yield _derived("NCCL_IB_ADDR_RANGE", within, "the network of the adapters' addresses")
        yield from _class(said, roce, profile)
    level = said.service_level if said.service_level is not None else roce.service_level if roce is not None else None
    if level is not None:
        yield _derived("NCCL_IB_SL", str(level), f"the service level {_whose(said.service_level is not None, profile)}")


def _class(said: Rdma, roce: Roce, profile: Profile) -> Iterator[Setting]:
    dscp = said.dscp if said.dscp is not None else roce.dscp
    if dscp is None:
        return
    # The two bits of a profile belong to its DSCP, not to another.
    ecn = said.ecn if said.ecn is not None else roce.ecn if said.dscp is None else 0
    whose = _whose(said.dscp is not None, profile)
    why = f"DSCP {dscp} {whose}: {dscp} << 2 | {ecn}, since the DSCP is the upper six bits of the traffic class"
    yield _derived("NCCL_IB_TC", str(traffic_class(dscp, ecn)), why)


def _timeout(network: Network, profile: Profile, limit_seconds: float) -> Iterator[Setting]:
    """Adapters give up before the process group does: after it, nobody hears which adapter it was."""
    said = _rdma(network.fabric).timeout
    wanted = said if said is not None else profile.timeout
    if wanted is None:
        return
    written = min(wanted, longest_timeout(limit_seconds))
    seconds = gives_up_seconds(written)
    why = f"an adapter gives up after {seconds:.0f} s {_whose(said is not None, profile)}"
    if written < wanted:
        why = (
            f"{wanted} {_whose(said is not None, profile)} would be {gives_up_seconds(wanted):.0f} s, longer than the process "
            f"group's {limit_seconds:g} s; with {written} an adapter gives up after {seconds:.0f} s, and says which it was"
        )
    yield _derived("NCCL_IB_TIMEOUT", str(written), why)


def _said(network: Network, pod: Pod) -> Mapping[str, str]:
    """What Fabric and job say of variables; the job wins."""
    of_fabric = {v.name: v.value for v in network.fabric.env} if network.fabric is not None else {}
    return {**of_fabric, **pod.said}


def _rdma(fabric: FabricSpec | None) -> Rdma:
    return fabric.rdma if fabric is not None else Rdma()


def _whose(of_fabric: bool, profile: Profile) -> str:
    return "of the Fabric" if of_fabric else f"of the profile {profile.name}"


def _derived(name: str, value: str, reason: str) -> Setting:
    return Setting(name, value, Source.DERIVED, reason)
