"""Clusters made from a seed: fat trees, rail-optimised pods, racks of NVL72.

Each is a tuple of node records with the labels of a dialect that Trainyard knows, as the informers would hand them over.
`occupied` puts a foreign pod that takes the whole node on a share of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

from trainyard.world.records import Node, Pod, Resources, World

GPU: Final = "nvidia.com/gpu"
ALLOCATABLE: Final[Resources] = {
    "cpu": 190_000,
    "memory": 2_000 << 30,
    "ephemeral-storage": 6_000 << 30,
    "pods": 110,
    GPU: 8,
    "rdma/ib": 8,
}
"""A node with eight accelerators and as many NICs."""

MEMBER: Final[Resources] = {"cpu": 96_000, "memory": 1_000 << 30, GPU: 8, "rdma/ib": 8, "pods": 1}
"""What a member that takes a whole node asks."""

NVL_NODES: Final = 18
"""Nodes of an NVL72 rack, four accelerators each."""

NVL_ALLOCATABLE: Final[Resources] = {**ALLOCATABLE, GPU: 4, "rdma/ib": 4}
NVL_MEMBER: Final[Resources] = {**MEMBER, GPU: 4, "rdma/ib": 4}


def fat_tree(nodes: int, hosts: int = 20, leaves: int = 25, spines: int = 5) -> tuple[Node, ...]:
    """So many nodes below a three-level tree, filled from the left: `hosts` on a leaf switch, `leaves` below a spine,
    `spines` below a core. With the defaults a leaf has 20 nodes, a spine 500, a core 2,500."""

    def labels(number: int) -> Mapping[str, str]:
        leaf = number // hosts
        spine = leaf // leaves
        return {
            "fabric.topograph.run/tier-2": f"core-{spine // spines}",
            "fabric.topograph.run/tier-1": f"spine-{spine}",
            "fabric.topograph.run/tier-0": f"leaf-{leaf}",
        }

    return tuple(_node(number, labels(number)) for number in range(nodes))


def rail_pods(pods: int, units: int = 4, hosts: int = 32) -> tuple[Node, ...]:
    """A rail-optimised fabric: the i-th NIC of every node of a scalable unit is on the unit's i-th leaf switch, so that the
    unit is what a leaf is elsewhere: `hosts` nodes, all one switch away from each other. `units` of them form a pod with its
    own spines."""

    def labels(number: int) -> Mapping[str, str]:
        unit = number // hosts
        return {
            "ib.coreweave.cloud/fabric": "fabric-0",
            "ib.coreweave.cloud/superpod": f"pod-{unit // units}",
            "ib.coreweave.cloud/leafgroup": f"unit-{unit}",
        }

    return tuple(_node(number, labels(number)) for number in range(pods * units * hosts))


def nvl72(racks: int, racks_per_leaf: int = 4, leaves: int = 8) -> tuple[Node, ...]:
    """Racks of 18 nodes that share an NVLink domain; `racks_per_leaf` of them on a leaf, `leaves` below a spine."""

    def labels(number: int) -> Mapping[str, str]:
        rack = number // NVL_NODES
        leaf = rack // racks_per_leaf
        return {
            "fabric.topograph.run/tier-1": f"spine-{leaf // leaves}",
            "fabric.topograph.run/tier-0": f"leaf-{leaf}",
            "accelerator.topograph.run/domain": f"rack-{rack}",
        }

    return tuple(_node(number, labels(number), NVL_ALLOCATABLE) for number in range(racks * NVL_NODES))


def world(nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> World:
    """A world of these and nothing else."""
    return World(nodes={node.name: node for node in nodes}, pods={pod.uid: pod for pod in pods})


def occupied(nodes: Sequence[Node], share: float, seed: int) -> World:
    """A world in which a foreign pod takes the accelerators of so large a share of the nodes, drawn at random."""
    drawn = Random(seed).sample(range(len(nodes)), round(len(nodes) * share))
    return world(nodes, (foreign(nodes[number], f"foreign-{number}") for number in sorted(drawn)))


def foreign(node: Node, name: str) -> Pod:
    """A pod that is not ours and takes all accelerators of a node."""
    requests = {"cpu": 64_000, "memory": 512 << 30, GPU: node.allocatable[GPU], "pods": 1}
    return Pod("other", name, f"uid-{name}", 0.0, node.name, "Running", requests)


def _node(number: int, labels: Mapping[str, str], allocatable: Resources = ALLOCATABLE) -> Node:
    name = f"node-{number}"
    return Node(name, f"uid-{name}", {"kubernetes.io/hostname": name, **labels}, allocatable)
