"""Pretended clusters as plain records, and how hypothesis draws them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from hypothesis import strategies as st
from trainyard.api import fabric
from trainyard.planner.rank import walk
from trainyard.topology.tree import Level, Tree, build
from trainyard.world.inventory import Inventory
from trainyard.world.records import Fabric, Membership, Node, Pod, Taint, World
from trainyard.world.room import Room

GPU = "nvidia.com/gpu"
LEVELS = (Level("spine", "net/spine"), Level("leaf", "net/leaf"))
FABRIC = Fabric(
    "net",
    fabric.FabricSpec(levels=tuple(fabric.Level(name=level.name, node_label=level.label) for level in LEVELS)),
)
MEMBER: Mapping[str, int] = {GPU: 8}
"""What a member asks for: a whole node."""
EMPTY: Mapping[str, int] = {GPU: 8}
FULL: Mapping[str, int] = {GPU: 0}


def a_node(
    name: str,
    *,
    spine: str | None = None,
    leaf: str | None = None,
    labels: Mapping[str, str] | None = None,
    gpus: int = 8,
    taints: Iterable[Taint] = (),
    ready: bool = True,
    cordoned: bool = False,
) -> Node:
    """A node with its place in the network, where it has one."""
    place = {"net/spine": spine, "net/leaf": leaf}
    return Node(
        name=name,
        uid=f"uid-{name}",
        labels={**{key: value for key, value in place.items() if value is not None}, **(labels or {})},
        allocatable={"cpu": 64_000, "memory": 1 << 40, "pods": 110, **({GPU: gpus} if gpus else {})},
        taints=tuple(taints),
        unschedulable=cordoned,
        ready=ready,
    )


def a_cluster(spines: str = "ab", leaves: int = 2, nodes_per_leaf: int = 2) -> dict[str, Node]:
    """Nodes named by their place: a1-0 is the first of leaf 1 of spine a. Leaf names repeat below every spine."""
    return {
        node.name: node
        for node in (
            a_node(f"{spine}{leaf}-{n}", spine=spine, leaf=f"leaf-{leaf}")
            for spine, leaf, n in product(spines, range(1, leaves + 1), range(nodes_per_leaf))
        )
    }


def a_tree(nodes: Mapping[str, Node]) -> Tree:
    """Their tree over spine and leaf."""
    return build(nodes.values(), LEVELS)


def a_room(nodes: Mapping[str, Node], free: Mapping[str, Mapping[str, int]]) -> Room:
    """What is left of a cluster when on every node so much is free; nothing on nodes that are not named."""
    pods = [
        a_pod(
            f"on-{node.name}",
            node=node.name,
            requests={
                name: amount - free.get(node.name, {}).get(name, amount if node.name in free else 0)
                for name, amount in node.allocatable.items()
            },
        )
        for node in nodes.values()
    ]
    world = World(nodes=nodes, pods={pod.uid: pod for pod in pods}, fabrics={FABRIC.name: FABRIC})
    return Room(Inventory.of(world))


def free_but(nodes: Mapping[str, Node], *taken: str) -> dict[str, Mapping[str, int]]:
    """Room for a member on every node but those."""
    return {name: FULL if name in taken else EMPTY for name in nodes}


def only_free(nodes: Mapping[str, Node], *these: str) -> dict[str, Mapping[str, int]]:
    """Room for a member on these nodes alone."""
    return {name: EMPTY if name in these else FULL for name in nodes}


def a_pod(
    name: str,
    *,
    node: str = "",
    planned: str | None = None,
    requests: Mapping[str, int] | None = None,
    phase: str = "Running",
) -> Pod:
    """A pod; planned: it is ours and its plan pins it there."""
    membership = None if planned is None else Membership("job", 1, 0, 0, planned, "digest")
    return Pod(
        namespace="default",
        name=name,
        uid=f"uid-{name}",
        created=0.0,
        node=node,
        phase=phase,
        requests=requests or {GPU: 1},
        membership=membership,
    )


@st.composite
def clusters(draw: st.DrawFn, most: int = 9, unlabelled: bool = True) -> dict[str, Node]:
    """A few nodes on up to three spines and leaves whose names repeat; some lack a label."""
    missing = [None] if unlabelled else []
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(["a", "b", "c", *missing]), st.sampled_from(["1", "2", "10", *missing])),
            min_size=1,
            max_size=most,
        )
    )
    return {
        node.name: node for node in (a_node(f"n{n}", spine=spine, leaf=leaf) for n, (spine, leaf) in enumerate(places))
    }


def some_of(draw: st.DrawFn, names: Iterable[str]) -> list[str]:
    """Any of the names, none to all."""
    return [name for name in names if draw(st.booleans())]


def in_rank_order(tree: Tree, nodes: Iterable[str], group: int = 1) -> tuple[str, ...]:
    """Nodes by name as the planner ranks them; group: so many consecutive ranks talk most to each other."""
    index = tree.index
    return tuple(index.names[position] for position in walk(index, [index.position[node] for node in nodes], group))
