"""What a scrape says of the network's labels."""

from __future__ import annotations

from dataclasses import replace

from support.clusters import a_node
from trainyard.api.fabric import FabricKind, FabricSpec, Level, NodeLinks, Observed, ObservedBy, ObservedLink
from trainyard.planner.machines import NETWORKS
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


def test_what_was_measured_on_a_fabric_is_told_by_level_with_its_time() -> None:
    level = Level(name="leaf", node_label=LEAF, bandwidth="1Gbps")
    spec = FabricSpec(kind=FabricKind.TCP, levels=(level,), node=NodeLinks(nics=1, nic_bandwidth="10Gbps"))
    half = 0.5 * NETWORKS["TCP"].usable * 1e9 / 8
    row = ObservedLink(level="leaf", bandwidth=half, by=ObservedBy.MEASURE, job="team/m", nodes=2, time=1000.0)
    world = a_world(labelled("a", None, "l"), lab=Fabric("lab", spec, observed=Observed(links=(row,))))
    metrics, of = Metrics("0.1.0"), {"fabric": "lab", "level": "leaf"}
    metrics.cycled(world, 0.001)
    share = metrics.registry.get_sample_value("trainyard_fabric_observed_ratio", of)
    assert share is not None
    assert round(share, 2) == 0.5
    assert metrics.registry.get_sample_value("trainyard_fabric_observed_timestamp_seconds", of) == 1000.0
    metrics.cycled(a_world(), 0.001)
    assert metrics.registry.get_sample_value("trainyard_fabric_observed_ratio", of) is None
