"""The foot of the topology page."""

from __future__ import annotations

from support.clusters import FABRIC, GPU, a_cluster, a_node, a_pod
from trainyard.cli.gangs import gangs_lines
from trainyard.planner.fragmentation import kinds
from trainyard.world.inventory import Inventory
from trainyard.world.records import Node, Pod, World


def lines(nodes: dict[str, Node], *pods: Pod) -> list[str]:
    world = World(nodes, {pod.uid: pod for pod in pods}, fabrics={FABRIC.name: FABRIC})
    return list(gangs_lines(kinds(Inventory.of(world), {2: 0.5, 4: 0.25, 16: 0.1})))


def test_gangs_stand_by_level_and_size_with_the_largest_and_what_is_of_no_use() -> None:
    taken = [a_pod("p", node="a1-0", requests={GPU: 8}), a_pod("q", node="b1-0", requests={GPU: 8})]
    assert lines(a_cluster(), *taken) == [
        "Nodes of 8 nvidia.com/gpu: 6 of 8 free for gangs, 48 of 64 accelerators free",
        "  GANGS WITHIN ONE    2     4  16  LARGEST  WHERE",
        "  cluster             3     1   -        6  cluster",
        "  spine               2     0   -        3  a",
        "  leaf                2     -   -        2  a/leaf-2",
        "  of no use         33%  100%   -           56% of what is free, sizes weighted by 1/size",
    ]


def test_a_kind_of_which_no_node_can_be_used_has_no_lines() -> None:
    assert lines({"a": a_node("a", cordoned=True), "b": a_node("b", gpus=0)}) == []
