"""What a scrape says of the network's labels."""

from __future__ import annotations

from dataclasses import replace

from support.clusters import a_node
from trainyard.api.fabric import FabricSpec, Level
from trainyard.telemetry.metrics import Metrics
from trainyard.telemetry.topology import Layout
from trainyard.world.records import Fabric, Node, World

SPINE, LEAF = "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"


def a_world(*nodes: Node, **fabrics: Fabric) -> World:
    return World(nodes={node.name: node for node in nodes}, fabrics=fabrics)


def labelled(name: str, spine: str | None, leaf: str | None, **others: str) -> Node:
    place = {SPINE: spine, LEAF: leaf}
    return a_node(name, labels={key: value for key, value in place.items() if value is not None} | others)


def value(world: World, name: str, **labels: str) -> float | None:
    metrics = Metrics("0.1.0")
    metrics.cycled(world, 0.001)
    return metrics.registry.get_sample_value(f"trainyard_topology_{name}", labels)


WORLD = a_world(
    labelled("a", "s1", "l1"),
    labelled("b", "s2", "l1", **{"volcano.sh/tor": "t"}),
    labelled("c", "s2", "l2"),
    labelled("d", "s2", None),
)


def test_the_dialect_that_counts_is_the_label_of_the_info_series() -> None:
    assert value(WORLD, "info", source="topograph", described_by="labels", nvlink="") == 1
    ours = Fabric("ours", FabricSpec(levels=(Level(name="row", node_label="my/row"),)))
    assert (
        value(a_world(*WORLD.nodes.values(), ours=ours), "info", source="ours", described_by="fabric", nvlink="") == 1
    )
    assert value(a_world(a_node("a")), "info", source="", described_by="nothing", nvlink="") == 1
    clique = a_world(labelled("a", "s", "l", **{"nvidia.com/gpu.clique": "u.1"}))
    assert value(clique, "info", source="topograph", described_by="labels", nvlink="gpu-clique") == 1


def test_a_standby_that_has_seen_no_node_does_not_contradict_the_leader() -> None:
    assert value(a_world(), "info", source="", described_by="nothing", nvlink="") is None


def test_gaps_domains_and_conflicts_are_counted_by_level() -> None:
    assert value(WORLD, "nodes", level="leaf", state="labelled") == 3
    assert value(WORLD, "nodes", level="leaf", state="unlabelled") == 1
    assert value(WORLD, "nodes", level="spine", state="unlabelled") == 0
    assert value(WORLD, "domains", level="spine") == 2
    assert value(WORLD, "domains", level="leaf") == 3
    assert value(WORLD, "conflicts", level="leaf") == 1
    assert value(WORLD, "conflicts", level="spine") == 0


def test_dialects_that_do_not_count_are_told_by_how_many_nodes_carry_them() -> None:
    assert value(WORLD, "other_dialect_nodes", dialect="volcano") == 1
    assert value(WORLD, "other_dialect_nodes", dialect="aws") is None


def test_the_tree_is_made_anew_for_other_nodes_alone() -> None:
    layout = Layout()
    tree = layout.of(WORLD).tree
    assert layout.of(replace(WORLD, pods={})).tree is tree
    assert layout.of(replace(WORLD, nodes=dict(WORLD.nodes))).tree is not tree
    assert layout.of(a_world(labelled("z", "s", "l"))).tree.paths == {"z": ("s", "l")}
