"""The topology page."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node as a_record
from support.clusters import clusters
from trainyard.api.fabric import FabricSpec, Level
from trainyard.cli.data import topology_data, written
from trainyard.cli.yard import MOST_NODES, topology_page
from trainyard.world.records import Degraded, Fabric, Membership, Node, Pod, World

SPINE, LEAF = "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"


def a_node(name: str, *path: str, ready: bool = True, cordoned: bool = False, **allocatable: int) -> Node:
    labels = dict(zip((SPINE, LEAF), path, strict=False))
    offered = {"nvidia.com/gpu": 8, "cpu": 64000} | allocatable
    return Node(name, name, labels, offered, ready=ready, unschedulable=cordoned)


def a_member(job: str, member: int, node: str, gpus: int = 8, rank: int = 0) -> Pod:
    own = Membership(f"uid-{job}", 1, member, rank, node, "d")
    name = f"{job}-{member}"
    return Pod("team", name, name, 0.0, "", "Pending", {"nvidia.com/gpu": gpus}, membership=own)


def a_world(*nodes: Node, pods: tuple[Pod, ...] = (), **fabrics: Fabric) -> World:
    return World(nodes={n.name: n for n in nodes}, pods={pod.uid: pod for pod in pods}, fabrics=fabrics)


def table(page: str) -> list[str]:
    """The lines of domains and nodes."""
    lines = page.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("DOMAIN"))
    return lines[first : next(n for n, line in enumerate(lines) if line.startswith("READY: "))]


def head(page: str) -> list[str]:
    """What is said of the labels, without empty lines."""
    return [line for line in page[: page.index("DOMAIN  ")].splitlines() if line]


def test_a_node_that_is_marked_counts_as_one_that_cannot_be_had() -> None:
    marked = replace(a_node("n1", "s", "l1"), degraded=Degraded(1.0))
    world = a_world(marked, replace(marked, name="n2", ready=False), replace(marked, name="n3", unschedulable=True))
    assert table(topology_page(world))[1:] == [
        "cluster    3      0                            0      0 of 24",
        "spine s    3      0                            0      0 of 24",
        "  leaf l1  3      0                            0      0 of 24",
        "    n1            network degraded                    8 of 8",
        "    n2            not ready, network degraded         8 of 8",
        "    n3            cordoned, network degraded          8 of 8",
    ]


def test_programs_are_told_each_nodes_place_room_and_members() -> None:
    nodes = a_node("n1", "s", "l1"), a_node("n2", "s", cordoned=True), a_node("n3", "s", "l1")
    world = a_world(*nodes, pods=(a_member("lm", 0, "n1", gpus=6),))
    data = json.loads(written(topology_data(world)))
    assert [level["name"] for level in data["levels"]] == ["spine", "leaf"]
    found = {node["name"]: node for node in data["nodes"]}
    first, second = found["n1"], found["n2"]
    assert (first["domains"], first["free"]["nvidia.com/gpu"], first["members"]) == (
        {"spine": "s", "leaf": "l1"},
        2,
        ["team/lm-0"],
    )
    assert (second["domains"], second["unschedulable"], second["members"]) == ({"spine": "s"}, True, [])
    (kind,) = data["gangs"]
    assert (kind["free"], [(at["level"], at["largest"]) for at in kind["levels"]]) == (
        1,
        [("cluster", 1), ("spine", 1), ("leaf", 1)],
    )


def test_domains_stand_with_their_room_and_below_them_nodes_and_members() -> None:
    world = a_world(
        a_node("n1", "s", "l1"),
        a_node("n2", "s", "l1"),
        a_node("n10", "s", "l2", cordoned=True),
        a_node("n9", "s", "l2", ready=False),
        pods=(a_member("lm", 0, "n2", gpus=6, rank=3), a_member("lm", 1, "n10")),
    )
    assert table(topology_page(world)) == [
        "DOMAIN     NODES  READY      EMPTY  FREE nvidia.com/gpu  GANGS",
        "cluster    4      2          1      10 of 32             team/lm x2",
        "spine s    4      2          1      10 of 32             team/lm x2",
        "  leaf l1  2      2          1      10 of 16             team/lm x1",
        "    n1            ready             8 of 8",
        "    n2            ready             2 of 8               team/lm-0 (rank 3)",
        "  leaf l2  2      0          0      0 of 16              team/lm x1",
        "    n9            not ready         8 of 8",
        "    n10           cordoned          0 of 8               team/lm-1 (rank 0)",
    ]


def test_leaves_of_one_name_under_two_spines_are_two_and_said_to_be() -> None:
    page = topology_page(a_world(*(a_node(f"{s}{n}", s, "l") for s in "ab" for n in range(2))), nodes=False)
    assert [line.strip().split("  ")[0] for line in table(page)[2:]] == ["spine a", "leaf l", "spine b", "leaf l"]
    assert "leaf: 1 name below more than one parent, there a domain each: l" in head(page)


def test_nodes_that_lack_a_label_stand_together_after_the_domains_and_are_named() -> None:
    nodes = a_node("a", "s"), a_node("b", "s", "z"), a_node("c", "s", ""), a_node("d", "s", "z"), a_node("e", "s", "z")
    page = topology_page(a_world(*nodes, a_node("f"), a_node("g", "s", "z")))
    lines = [line.rstrip().split("  ready")[0].rstrip() for line in table(page)]
    assert [line.split()[0] for line in lines[2:]] == ["spine", "leaf", *"bdeg", "leaf", "a", "c", "spine", "f"]
    assert lines[8].strip().startswith("leaf without a label  2 ")
    assert lines[11].startswith("spine without a label   1 ")
    assert "spine: 1 accelerator node without its label; such a node shares no spine with any other: f" in head(page)
    assert (
        "leaf: 3 accelerator nodes without its label (1 with an empty value); such a node shares no leaf with any other: a, c, f"
        in head(page)
    )


def test_of_a_large_cluster_domains_stand_alone_unless_nodes_are_asked_for() -> None:
    nodes = [a_node(f"n{n}", f"s{n % 2}", f"l{n % 8}") for n in range(MOST_NODES + 1)]
    page = topology_page(a_world(*nodes))
    assert len(table(page)) == 1 + 1 + 2 + 8
    assert len(table(topology_page(a_world(*nodes), nodes=True))) == 1 + 1 + 2 + 8 + len(nodes)
    assert len(table(topology_page(a_world(*nodes[1:])))) == 1 + 1 + 2 + 8 + MOST_NODES
    assert len(table(topology_page(a_world(*nodes[1:]), nodes=False))) == 1 + 1 + 2 + 8


def test_a_level_whose_domains_are_single_nodes_has_lines_only_beside_them() -> None:
    keys = [f"cloud.google.com/gce-topology-{level}" for level in ("block", "subblock", "host")]
    nodes = [a_record(f"n{n}", labels=dict(zip(keys, ("b", f"s{n % 2}", f"h{n}"), strict=True))) for n in range(4)]
    assert [line.split()[0] for line in table(topology_page(a_world(*nodes), nodes=False))[2:]] == ["block"] + [
        "subblock"
    ] * 2
    assert sum("host h" in line for line in table(topology_page(a_world(*nodes)))) == 4


def test_many_gangs_are_a_number_and_few_are_named_in_natural_order() -> None:
    world = a_world(a_node("a", "s", "l"), pods=tuple(a_member(f"lm{n}", 0, "a", 1) for n in (10, 9, 2)))
    assert table(topology_page(world))[1].endswith("team/lm2 x1, team/lm9 x1, team/lm10 x1")
    world = a_world(a_node("a", "s", "l"), pods=tuple(a_member(f"lm{n}", 0, "a", 1) for n in range(4)))
    assert table(topology_page(world))[1].endswith("4 gangs")


def test_accelerators_of_several_kinds_are_told_apart() -> None:
    slices = {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 7}
    lines = table(topology_page(a_world(a_node("a", "s", "l"), a_node("b", "s", "l", **slices))))
    assert lines[0].split()[-2:] == ["FREE", "GANGS"]
    assert "8 of 8 nvidia.com/gpu, 7 of 7 nvidia.com/mig-1g.10gb" in lines[1]
    assert lines[-1].endswith("7 of 7 nvidia.com/mig-1g.10gb")


def test_a_cluster_whose_labels_say_nothing_is_a_list_of_nodes_with_their_processors() -> None:
    assert topology_page(a_world(Node("a", "a", {}, {"cpu": 64000}))).splitlines() == [
        "1 node; levels: none is known",
        "Told by nothing: no label of the nodes is one that is known; a Fabric can name the labels",
        "",
        "DOMAIN   NODES  READY  FREE cpu  GANGS",
        "cluster  1      1      64 of 64",
        "a               ready  64 of 64",
        "READY: and not cordoned; FREE count these nodes alone.",
    ]


def test_a_cluster_without_nodes_has_no_table() -> None:
    assert topology_page(a_world()).startswith("0 nodes; levels: none is known\n")


# What is said of the labels


def test_the_dialect_its_levels_and_how_complete_they_are() -> None:
    page = topology_page(a_world(*(a_node(f"n{n}", "s", f"l{n // 3}") for n in range(8))))
    assert head(page) == [
        "8 nodes; levels: spine > leaf",
        "Told by the labels of topograph; complete on 8 accelerator nodes",
        "LEVEL  LABEL                        NODES WITH IT  DOMAINS  NODES IN ONE",
        "spine  fabric.topograph.run/tier-1  8 of 8         1        8",
        "leaf   fabric.topograph.run/tier-0  8 of 8         3        2 to 3, median 3",
    ]


def test_nodes_without_accelerators_are_on_the_page_but_are_no_gap() -> None:
    page = topology_page(a_world(a_node("a", "s", "l"), Node("cpu", "cpu", {}, {"cpu": 8000})))
    assert head(page)[:2] == [
        "2 nodes; levels: spine > leaf",
        "Told by the labels of topograph; complete on 1 accelerator node",
    ]
    assert table(page)[-1].split() == ["cpu", "ready", "-"]


def test_labels_that_do_not_count_are_named_with_the_reason() -> None:
    both = [a_record(f"n{n}", labels={SPINE: "s", LEAF: "l", "volcano.sh/tor": "t"}) for n in range(2)]
    rare = a_record("x", labels={SPINE: "s", LEAF: "l", "fabric.topograph.run/tier-2": "c"})
    said = head(topology_page(a_world(*both, rare)))
    assert "core: fabric.topograph.run/tier-2 is on 1 of 3 nodes, too few to count" in said
    assert "volcano: on 2 accelerator nodes as well, not used: its labels tell less" in said


def test_a_fabric_whose_label_nobody_carries_is_said_to_be_so() -> None:
    ours = Fabric("ours", FabricSpec(levels=(Level(name="row", node_label="my/rwo"),)))
    said = head(topology_page(a_world(a_node("a", "s", "l"), a_node("b", "s", "l"), ours=ours)))
    assert said[1] == "Told by the Fabric ours, which most nodes are on; incomplete on 2 of 2 accelerator nodes"
    assert "row: no accelerator node has its label my/rwo; such a node shares no row with any other: a, b" in said
    assert "topograph: on 2 accelerator nodes as well, not used: the Fabric wins" in said


def test_an_nvlink_domain_across_leaves_is_said_to_be_broken_up() -> None:
    key = "nvidia.com/gpu.clique"
    places = [("l0", "u1.1"), ("l0", "u2.1"), ("l1", "u2.1"), ("l1", "u3.1")]
    nodes = [a_record(f"n{n}", labels={LEAF: leaf, key: clique}) for n, (leaf, clique) in enumerate(places)]
    said = head(topology_page(a_world(*nodes)))
    assert said[1] == "Told by the labels of topograph; NVLink by those of gpu-clique; complete on 4 accelerator nodes"
    assert any("NVLink is broken up so, unless a Fabric puts it above: u2.1" in line for line in said)


def test_many_names_are_the_first_and_a_number() -> None:
    nodes = [a_node(f"n{n}", "s", "l") for n in range(9)] + [a_node(f"x{n}", "s") for n in range(8)]
    assert any(line.endswith("x0, x1, x2, x3, x4 and 3 more") for line in head(topology_page(a_world(*nodes))))


FABRIC = Fabric(
    "net", FabricSpec(levels=(Level(name="spine", node_label="net/spine"), Level(name="leaf", node_label="net/leaf")))
)


@given(clusters(), st.booleans(), st.randoms())
def test_every_node_is_counted_once_whatever_the_order(
    nodes: dict[str, Node], each: bool, shuffle: random.Random
) -> None:
    page = topology_page(a_world(*nodes.values(), net=FABRIC), each)
    mixed = list(nodes.values())
    shuffle.shuffle(mixed)
    assert topology_page(a_world(*mixed, net=FABRIC), each) == page
    spines = [line for line in table(page) if line.startswith("spine")]
    if spines:
        start = table(page)[0].index("NODES")
        assert sum(int(line[start:].split()[0]) for line in spines) == len(nodes)
    named = [line.split()[0] for line in table(page) if line.split()[0] in nodes]
    assert sorted(named) == (sorted(nodes) if each else [])
