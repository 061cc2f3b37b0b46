"""What a network adds to the pods besides variables: devices, annotations, rights, and containers beside the one that trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import ceil

from trainyard.api.fabric import PodAdditions
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.profiles.model import Host, Machine, Profile, Resource, Transport
from trainyard.world.records import Node

IPC_LOCK = "IPC_LOCK"
"""Without it a container may lock 64 KiB, and adapters cannot register memory."""


@dataclass(frozen=True, slots=True)
class Additions:
    """What is added. usable: what the profile cannot do without is there, by these or by the job's own template."""

    pod: PodAdditions = field(default_factory=PodAdditions)
    host_network: bool = False
    privileged: bool = False
    usable: bool = True
    warnings: tuple[str, ...] = ()


def additions(network: Network, pod: Pod, nodes: Sequence[Node]) -> Additions:
    """Of the Fabric, and of the profile for gangs of several nodes whose collectives NCCL carries.

    Rights on the node come with a profile only where an administrator's Fabric names it: recognising a machine gives nobody
    anything.
    """
    of_fabric = network.fabric.pod_additions if network.fabric is not None else PodAdditions()
    profile = network.profile
    fast = pod.backend is Backend.NCCL and pod.many
    if not fast:
        return Additions(of_fabric.but(resources={}, capabilities=()))
    if profile is None or not profile.transport.fast:
        wanted = {name: amount for name, amount in of_fabric.resources.items() if name not in pod.limits}
        return Additions(of_fabric.but(resources=wanted))
    missing = () if network.granted else tuple(_missing(profile.host, pod))
    if missing and profile.host.required:
        return Additions(of_fabric, usable=False, warnings=(_not_granted(profile, missing),))
    host = profile.host if network.granted else Host()
    resources, doubts = _resources(profile, pod, nodes, of_fabric.resources)
    locks = (IPC_LOCK,) if profile.transport.verbs or profile.transport is Transport.EFA else ()
    return Additions(
        pod=PodAdditions(
            volumes=_named(host.volumes, of_fabric.volumes),
            volume_mounts=(*_elsewhere(host.volume_mounts, of_fabric.volume_mounts), *of_fabric.volume_mounts),
            env=of_fabric.env,
            annotations={**_annotations(profile, pod, nodes), **of_fabric.annotations},
            resources={
                name: amount for name, amount in {**resources, **of_fabric.resources}.items() if name not in pod.limits
            },
            capabilities=tuple(dict.fromkeys((*locks, *host.capabilities, *of_fabric.capabilities))),
            init_containers=_named(host.init_containers, of_fabric.init_containers),
        ),
        host_network=host.host_network,
        privileged=host.privileged,
        warnings=doubts,
    )


def _missing(host: Host, pod: Pod) -> Iterator[str]:
    """What of a profile's needs on the node the job's template does not bring itself."""
    if host.host_network and not pod.host_network:
        yield "the host's network"
    for mount in host.volume_mounts:
        if str(mount["mountPath"]) not in pod.hosts:
            yield str(mount["mountPath"])


def _not_granted(profile: Profile, missing: Iterable[str]) -> str:
    return (
        f"the nodes are recognised as {profile.name} ({profile.title}), but its pods need {', '.join(missing)} of their nodes, "
        f"which only a Fabric with spec.profile: {profile.name} gives; until then collectives run over sockets"
    )


def _annotations(profile: Profile, pod: Pod, nodes: Sequence[Node]) -> Mapping[str, str]:
    kinds = _machines(profile, nodes)
    found = dict(profile.annotations)
    for machine in kinds:
        found |= machine.annotations
    times = min((_share(machine.nics, machine.accelerators, pod) for machine in kinds), default=0)
    return found | {name: ",".join([value] * times) for name, value in profile.annotations_per_nic.items() if times}


def _machines(profile: Profile, nodes: Sequence[Node]) -> Sequence[Machine]:
    """The kinds of machines among these nodes."""
    found = (profile.machine(node.labels) for node in nodes)
    by_type = {machine.instance_types: machine for machine in found if machine is not None}
    return [by_type[kind] for kind in sorted(by_type)]


def _resources(
    profile: Profile, pod: Pod, nodes: Sequence[Node], said: Mapping[str, str]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Devices of the profile that neither the container nor the Fabric (said) asks for, and what is wrong with those of the
    container."""
    found: dict[str, str] = {}
    doubts: list[str] = []
    for name, resource in profile.resources.items():
        asked = next((have for pattern in resource.unless if (have := pod.asks(pattern)) is not None), None)
        count = _count(name, resource, profile, pod, nodes)
        if asked is not None:
            if asked == name and not resource.shared and count is not None and pod.amount(name) != count:
                doubts.append(_another_count(name, count, pod, nodes))
        elif count is not None and not any(fnmatchcase(have, p) for have in said for p in resource.unless):
            lacking = [node.name for node in nodes if node.allocatable.get(name, 0) < count]
            if lacking:
                doubts.append(_not_offered(name, count, lacking, nodes, profile))
            else:
                found[name] = str(count)
    if found and (pod.amount("memory") or pod.amount("cpu")):  # the API server takes huge pages only beside one of them
        for name, amount in profile.fixed_resources.items():
            if all(node.allocatable.get(name, 0) for node in nodes):
                found[name] = amount
    return found, tuple(doubts)


def _count(name: str, resource: Resource, profile: Profile, pod: Pod, nodes: Sequence[Node]) -> int | None:
    """How many a pod takes: the whole node's, in proportion to the accelerators that it takes. None: nobody knows."""
    if resource.shared:
        return 1
    kinds = _machines(profile, nodes)
    counts = [_share(resource.per_node or machine.nics, machine.accelerators, pod) for machine in kinds]
    if not counts and resource.per_node is not None:
        counts = [_share(resource.per_node, 8, pod)]
    if not counts and nodes:
        return min(node.allocatable.get(name, 0) for node in nodes) or None
    return min(counts, default=None)


def _share(of_node: int, accelerators: int, pod: Pod) -> int:
    return max(1, ceil(of_node * min(1.0, pod.accelerators / accelerators)))


def _another_count(name: str, count: int, pod: Pod, nodes: Sequence[Node]) -> str:
    return (
        f"{name}: the container asks for {pod.limits[name]}; {pod.accelerators} accelerators of these nodes have {count}, "
        "and fewer leave accelerators without an interface near them"
    )


def _not_offered(name: str, count: int, lacking: Sequence[str], nodes: Sequence[Node], profile: Profile) -> str:
    who = (
        f"{len(lacking)} of {len(nodes)} nodes ({', '.join(sorted(lacking)[:3])}{', ...' if len(lacking) > 3 else ''})"
    )
    return (
        f"{name}: {who} offer fewer than {count}, so it is not asked for; without a device of this network the job fails at "
        f"once, as it should, unless the template brings one ({profile.title})"
    )


def _named(
    ours: Iterable[Mapping[str, object]], others: Iterable[Mapping[str, object]]
) -> tuple[dict[str, object], ...]:
    """Each name once; the Fabric's where both have one."""
    return tuple({str(one.get("name")): dict(one) for one in (*ours, *others)}.values())


def _elsewhere(
    ours: Iterable[Mapping[str, object]], others: Iterable[Mapping[str, object]]
) -> Iterator[dict[str, object]]:
    taken = {str(mount.get("mountPath")).rstrip("/") for mount in others}
    return (dict(mount) for mount in ours if str(mount.get("mountPath")).rstrip("/") not in taken)
