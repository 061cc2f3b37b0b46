"""The nodes that a job could have, apart by network and by what the network adds to its pods: a gang is planned within one part.

Members of NCCL's on two networks would hang, and what a network adds (interfaces, huge pages) is taken from the node like
anything else, so it has to be known before a node is promised. Nodes of one network that offer another number of devices are
another part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.api.names import LABEL_INSTANCE_TYPE
from trainyard.network.additions import Additions, additions
from trainyard.network.choice import AUTO, Network, Unclear, by_network, choose_network
from trainyard.network.container import Backend, Pod
from trainyard.world.records import Fabric, Node


@dataclass(frozen=True, slots=True)
class Part:
    """network: what it is called. nodes: names. additions: what the pods of a gang on any of the nodes get at most, one entry for
    each of the networks that they are on."""

    network: str
    nodes: tuple[str, ...]
    additions: tuple[Additions, ...]


def is_apart(pod: Pod) -> bool:
    """Whether all members have to be on one network."""
    return pod.many and pod.backend is Backend.NCCL


def parts(
    pod: Pod, nodes: Iterable[Node], fabrics: Mapping[str, Fabric], asked: str = AUTO
) -> tuple[Part, ...] | Unclear:
    """The part with most nodes first; one part with all nodes where the members' network does not matter.

    Nodes that name a network which does not exist are in no part; where there are no others, the answer is what they name.
    """
    nothing = choose_network((), fabrics, asked)
    if isinstance(nothing, Unclear):
        return nothing
    found: dict[tuple[object, ...], tuple[Network, list[Node], Additions]] = {}
    unclear: Unclear | None = None
    for network, there in by_network(nodes, fabrics, asked):
        if isinstance(network, Unclear):
            unclear = unclear or network
            continue
        for alike in _alike(network, pod, there):
            added = additions(network, pod, alike[:1])
            key = (network.name, tuple(sorted(added.pod.resources.items())))
            found.setdefault(key, (network, [], added))[1].extend(alike)
    if not found:
        return unclear or ()
    if not is_apart(pod):
        names = tuple(node.name for _, there, _ in found.values() for node in there)
        return (Part("", names, tuple(added for *_, added in found.values())),)
    ordered = sorted(found, key=lambda key: (-len(found[key][1]), str(key)))
    return tuple(
        Part(found[key][0].name, tuple(node.name for node in found[key][1]), (found[key][2],)) for key in ordered
    )


def _alike(network: Network, pod: Pod, nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Nodes to which the network adds the same: of one kind of machine, offering as many of its devices."""
    profile = network.profile
    if not is_apart(pod) or profile is None or not profile.transport.fast:
        yield nodes
        return
    alike: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        offers = node.allocatable
        devices = tuple(offers.get(name, 0) for name in profile.resources)
        beside = tuple(offers.get(name, 0) > 0 for name in profile.fixed_resources)
        alike.setdefault((node.labels.get(LABEL_INSTANCE_TYPE, ""), devices, beside), []).append(node)
    yield from alike.values()
