"""The topology page."""

from __future__ import annotations

from trainyard.cli.yard import topology_page
from trainyard.world.records import Membership, Node, Pod, World

SPINE, LEAF = "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"


def a_node(name: str, *path: str, ready: bool = True, **allocatable: int) -> Node:
    labels = dict(zip((SPINE, LEAF), path, strict=False))
    return Node(name, name, labels, {"nvidia.com/gpu": 8, "cpu": 64000} | allocatable, ready=ready)


def a_world(*nodes: Node, pods: tuple[Pod, ...] = ()) -> World:
    return World(nodes={node.name: node for node in nodes}, pods={pod.uid: pod for pod in pods})


def test_members_stand_beside_the_node_that_they_take_room_on_bound_or_not() -> None:
    member = Pod(
        "team", "lm-0", "u", 0.0, "", "Pending", {"nvidia.com/gpu": 6}, membership=Membership("j", 1, 0, 3, "b", "d")
    )
    page = topology_page(a_world(a_node("a", "s", "l"), a_node("b", "s", "l"), pods=(member,)))
    assert page.splitlines()[3:] == [
        "    a  8 of 8 nvidia.com/gpu free",
        "    b  2 of 8 nvidia.com/gpu free, team/lm-0 (rank 3)",
    ]


def test_leaves_of_one_name_under_two_spines_are_two() -> None:
    page = topology_page(a_world(a_node("a", "s1", "l"), a_node("b", "s2", "l")))
    assert [line.strip() for line in page.splitlines() if line.strip().startswith(("spine", "leaf"))] == [
        "spine s1",
        "leaf l",
        "spine s2",
        "leaf l",
    ]


def test_a_node_that_lacks_a_label_and_is_not_ready_says_so() -> None:
    nodes = a_node("a", "s", "l"), a_node("b", "s", "l"), a_node("c", "s", ready=False)
    page = topology_page(a_world(*nodes))
    assert "  leaf without a label\n    c  8 of 8 nvidia.com/gpu free, not ready\n" in page


def test_a_cluster_whose_labels_say_nothing_is_a_list_of_nodes_with_their_processors() -> None:
    assert topology_page(a_world(a_node("a", **{"nvidia.com/gpu": 0}))).splitlines() == [
        "1 nodes; levels: none is known: no label of the nodes tells of any",
        "a  64 of 64 cpu free",
    ]
