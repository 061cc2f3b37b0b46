"""Which labels are taken for the network's."""

import re

import pytest
from support.clusters import a_node
from trainyard.api.fabric import FabricSpec
from trainyard.api.fabric import Level as FabricLevel
from trainyard.api.model import LABEL_PATTERN
from trainyard.topology.dialects import DIALECTS, ZONES, detect
from trainyard.topology.fabrics import choose
from trainyard.world.records import Fabric

AWS = (
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
)

GKE = "cloud.google.com/gce-topology-"


def speaking(labels, count=4, **also):
    """Nodes that carry these labels."""
    return [a_node(f"n{n}", labels=dict.fromkeys(labels, f"v{n % 2}"), **also) for n in range(count)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_each_dialect_is_recognised_by_its_labels(dialect):
    assert detect(speaking([level.label for level in dialect.levels])) == dialect.levels


@pytest.mark.parametrize(
    ("labels", "levels"),
    [
        (AWS, [("core", AWS[0]), ("spine", AWS[1]), ("leaf", AWS[2])]),
        (
            ["fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"],
            [("spine", "fabric.topograph.run/tier-1"), ("leaf", "fabric.topograph.run/tier-0")],
        ),
        (
            [f"{GKE}host", f"{GKE}subblock", f"{GKE}block"],
            [("block", f"{GKE}block"), ("subblock", f"{GKE}subblock"), ("host", f"{GKE}host")],
        ),
        (["network.topology.nvidia.com/leaf"], [("leaf", "network.topology.nvidia.com/leaf")]),
        (["topology.kubernetes.io/zone"], [("zone", "topology.kubernetes.io/zone")]),
        ([*AWS, "topology.kubernetes.io/zone"], [("core", AWS[0]), ("spine", AWS[1]), ("leaf", AWS[2])]),
        ([], []),
    ],
)
def test_the_broadest_level_comes_first_whichever_way_a_vendor_counts(labels, levels):
    assert [(level.name, level.label) for level in detect(speaking(labels))] == levels


def test_names_of_levels_can_be_said_in_a_job():
    for dialect in (*DIALECTS, ZONES):
        names = [level.name for level in dialect.levels]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(LABEL_PATTERN[1:-1], name) for name in names)


def test_a_level_left_over_on_a_few_nodes_is_not_one():
    stale = a_node("stale", labels={"network.topology.nvidia.com/core": "old", "network.topology.nvidia.com/leaf": "1"})
    assert [level.name for level in detect([stale, *speaking(["network.topology.nvidia.com/leaf"])])] == ["leaf"]


def test_nodes_without_accelerators_have_no_say():
    plain = speaking(["volcano.sh/tor"], count=9, gpus=0)
    assert [level.label for level in detect([*plain, *speaking(AWS, count=3)])] == list(AWS)


def test_where_no_node_has_accelerators_all_have_a_say():
    assert [level.label for level in detect(speaking(["volcano.sh/tor"], gpus=0))] == ["volcano.sh/tor"]


def test_an_empty_cluster_has_no_levels():
    assert detect([]) == ()


def fabric(name, levels=(), **selector):
    described = tuple(FabricLevel(name=level, node_label=f"my/{level}") for level in levels)
    return Fabric(name, FabricSpec(levels=described, node_selector=selector))


def test_a_fabric_wins_over_any_dialect():
    found = detect(speaking(AWS), [fabric("ours", ["hall", "row"])])
    assert [(level.name, level.label) for level in found] == [("hall", "my/hall"), ("row", "my/row")]


def test_a_fabric_that_names_no_levels_leaves_the_dialect():
    assert [level.label for level in detect(speaking(AWS), [fabric("settings-only")])] == list(AWS)


def test_the_fabric_that_most_nodes_are_on_speaks_for_them():
    nodes = [*(a_node(f"a{n}", labels={"net": "a"}) for n in range(3)), a_node("b", labels={"net": "b"})]
    a, b, everything = fabric("a", net="a"), fabric("b", net="b"), fabric("everything")
    assert choose(nodes, [b, a]) is a
    assert choose(nodes, [a, everything]) is everything
    assert choose(nodes[:3], [everything, a]) is a
    assert choose(nodes, [fabric("c", net="c")]) is None
    assert choose(nodes, []) is None
    assert choose([], [everything]) is everything
