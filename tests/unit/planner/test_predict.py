"""What a placement is worth: shared uplinks, the slowest edge, and what a step exposes of its communication."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.fabric import FabricSpec
from trainyard.api.names import LABEL_GPU_PRODUCT, LABEL_INSTANCE_TYPE
from trainyard.planner import collectives, predict
from trainyard.planner.collectives import Collective
from trainyard.planner.links import Links, links_of
from trainyard.planner.machines import NETWORKS
from trainyard.planner.traffic import Traffic, by_levels
from trainyard.topology.tree import Level, Tree

LEVELS = (Level("spine", "s"), Level("leaf", "l"))
USABLE = NETWORKS["TCP"].usable
MIB = 2**20


def step(links, tree, nodes, processes=1, traffic=(), others=None) -> predict.Prediction:  # type: ignore[no-untyped-def]
    return predict.Predictor(links, tree, nodes, processes, others).step(traffic)


def a_tree(spines: int = 2, leaves: int = 2, nodes: int = 2) -> Tree:
    return Tree(
        LEVELS,
        {f"{s}{leaf}{n}": (f"s{s}", f"l{leaf}") for s in range(spines) for leaf in range(leaves) for n in range(nodes)},
    )


def the_lab(node: str = "2Gbps", leaf: str = "400Mbps", spine: str = "200Mbps") -> Links:
    levels = [
        {"name": "spine", "nodeLabel": "s", "bandwidth": spine},
        {"name": "leaf", "nodeLabel": "l", "bandwidth": leaf},
    ]
    fabric = FabricSpec.model_validate({"kind": "tcp", "levels": levels, "node": {"nicBandwidth": node}})
    return links_of(fabric, LEVELS)


ORDERED = tuple(a_tree().paths)
ALTERNATING = ("000", "100", "001", "101", "010", "110", "011", "111")


def seconds(nodes: tuple[str, ...], links: Links | None = None, size: float = 16 * MIB, **more: object) -> float:
    one = Traffic("gang", Collective.ALL_REDUCE, len(nodes), 1, size)
    return step(links or the_lab(), a_tree(), nodes, 1, [one], **more).seconds["gang"]  # type: ignore[arg-type]


def test_the_order_of_ranks_costs_what_the_uplinks_are_shared_by() -> None:
    planned, worst = seconds(ORDERED), seconds(ALTERNATING)
    assert planned == pytest.approx(2 * 7 / 8 * 16 * MIB / (25e6 * USABLE), rel=0.01)
    assert worst == pytest.approx(4 * planned, rel=0.01)


def by_level(links: Links) -> float:
    entries = [Traffic("gang", *entry) for entry in by_levels(Collective.ALL_REDUCE, 8, 1, 16 * MIB, (2, 2, 2))]
    return step(links, a_tree(), ORDERED, 1, entries).seconds["gang"]


def test_a_sum_by_levels_sends_over_each_link_what_the_levels_below_leave_of_it() -> None:
    links = the_lab(node="2Gbps", leaf="400Mbps", spine="100Mbps")
    whole, node, leaf, spine = 16 * MIB, 250e6 * USABLE, 50e6 * USABLE, 12.5e6 * USABLE
    # There and back: half of the message inside a leaf; of each half, of which two share the uplink, the half to the other leaf;
    # and at the top four quarters share a link, each of which is sent to the other spine once and half of it added up.
    expected = 2 * (whole / 2 / node) + 2 * (2 * whole / 4 / leaf) + 4 * whole / 4 / spine
    assert by_level(links) == pytest.approx(expected, rel=0.01)
    assert by_level(links) < 0.8 * seconds(ORDERED, links)


def test_where_the_upper_links_are_no_slower_a_sum_by_levels_gains_nothing() -> None:
    links = the_lab(node="2Gbps", leaf="2Gbps", spine="2Gbps")
    assert by_level(links) > seconds(ORDERED, links)


def test_within_a_leaf_its_uplink_does_not_matter() -> None:
    assert seconds(("000", "001")) == pytest.approx(16 * MIB / (250e6 * USABLE), rel=0.01)
    assert seconds(("000", "010")) == pytest.approx(16 * MIB / (50e6 * USABLE), rel=0.01)


def test_the_bottleneck_is_the_tier_that_holds_the_ring_up() -> None:
    def of(nodes: tuple[str, ...], processes: int = 1) -> str:
        return step(the_lab(), a_tree(), nodes, processes).bottleneck

    assert (of(ORDERED), of(ORDERED[:4]), of(ORDERED[:2])) == ("spine", "leaf", "node")
    assert of(("000",), 4) == predict.INSIDE


def test_a_job_beside_it_halves_the_uplink() -> None:
    tree = a_tree()
    spine = tree.index.at_depth[1][0]
    assert seconds(ORDERED, others={spine: 1}) == pytest.approx(2 * seconds(ORDERED), rel=0.01)


def test_groups_side_by_side_share_a_nodes_interfaces() -> None:
    links, tree = the_lab(), a_tree()
    pairs = [Traffic("replicate", Collective.ALL_REDUCE, 2, 4, 16 * MIB)]
    four_groups = step(links, tree, ("000", "001"), 4, pairs).seconds["replicate"]
    whole = [Traffic("replicate", Collective.ALL_REDUCE, 2, 1, 4 * 16 * MIB)]
    one_group = step(links, tree, ("000", "001"), 1, whole).seconds["replicate"]
    assert four_groups == pytest.approx(one_group, rel=0.01)


def test_an_axis_inside_the_nodes_never_meets_the_network() -> None:
    inside = [Traffic("shard", Collective.ALL_GATHER, 4, 1, 16 * MIB)]
    fast, slow = the_lab(), the_lab(node="1Mbps")
    assert step(fast, a_tree(), ORDERED, 4, inside).timed == step(slow, a_tree(), ORDERED, 4, inside).timed


def test_a_chain_of_stages_does_not_close() -> None:
    chain = [Traffic("pipeline", Collective.SEND_RECEIVE, 8, 1, 16 * MIB)]
    assert step(the_lab(), a_tree(), ORDERED, 1, chain).seconds["pipeline"] == pytest.approx(
        16 * MIB / (25e6 * USABLE), rel=0.01
    )


def test_several_members_on_one_node_are_one_stay() -> None:
    tree, links = a_tree(), the_lab()
    twice = step(links, tree, ("000", "000", "001", "001"), 1)
    once = step(links, tree, ("000", "001"), 2)
    assert (twice.bus_bandwidth, twice.bottleneck) == (once.bus_bandwidth, once.bottleneck)


def test_a_node_that_has_left_the_tree_shares_nothing() -> None:
    alone = step(the_lab(), a_tree(spines=3), ("000", "200"), 1)
    found = step(the_lab(), a_tree(), ("000", "gone"), 1)
    assert (found.bus_bandwidth, found.bottleneck) == (alone.bus_bandwidth, alone.bottleneck)
    assert found.bottleneck == "spine"


def test_a_cluster_without_tiers_is_held_up_by_its_nodes() -> None:
    tree = Tree((), {"a": (), "b": (), "c": ()})
    found = step(links_of(None, ()), tree, ("a", "b", "c"))
    assert found.bottleneck == predict.NODE
    assert found.bus_bandwidth == pytest.approx(1.25e9 * USABLE, rel=0.01)


def test_a_single_process_has_nobody_to_talk_to() -> None:
    found = step(the_lab(), a_tree(), ("000",), 1)
    assert (found.bus_bandwidth, found.seconds) == (0.0, {"gang": 0.0})


def test_an_axis_that_does_not_divide_the_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="an axis of 3 with stride 1 does not divide 8 processes"):
        step(the_lab(), a_tree(), ORDERED, 1, [Traffic("shard", Collective.ALL_GATHER, 3, 1, 1.0)])


def test_what_overlaps_is_hidden_as_long_as_something_is_computed() -> None:
    traffic = [
        Traffic("shard", Collective.ALL_GATHER, 8, 1, 16 * MIB, overlaps=True),
        Traffic("replicate", Collective.ALL_REDUCE, 8, 1, 16 * MIB),
    ]
    found = step(the_lab(), a_tree(), ORDERED, 1, traffic)
    gather, reduce = found.seconds["shard"], found.seconds["replicate"]
    hidden, half = found.step(10.0), found.step(gather / 2)
    assert hidden.exposed_seconds == pytest.approx(reduce)
    assert hidden.share == pytest.approx(reduce / (10.0 + reduce))
    assert half.exposed_seconds == pytest.approx(reduce + gather / 2)
    assert predict.summary(found).communication_share is None
    assert predict.summary(found, 10.0).communication_share == hidden.share


orders = st.permutations(ORDERED)


@given(orders, st.integers(0, 7))
def test_where_a_ring_begins_and_which_way_it_runs_changes_nothing(order: list[str], start: int) -> None:
    plain = seconds(tuple(order))
    assert seconds((*order[start:], *order[:start])) == pytest.approx(plain)
    assert seconds(tuple(order[::-1])) == pytest.approx(plain)


@given(orders)
def test_no_order_is_faster_than_depth_first(order: list[str]) -> None:
    assert seconds(tuple(order)) >= seconds(ORDERED) * (1 - 1e-9)


@given(orders, st.sampled_from([(8, 1), (4, 2), (2, 4), (2, 1), (4, 1)]), st.sampled_from(Collective))
def test_an_axis_takes_what_its_slowest_group_takes_alone_or_longer(
    order: list[str], axis: tuple[int, int], collective: Collective
) -> None:
    size, stride = axis
    together = step(the_lab(), a_tree(), order, 1, [Traffic("x", collective, size, stride, 1e8)]).seconds["x"]
    first = [order[n * stride] for n in range(size)]
    alone = step(the_lab(), a_tree(), first, 1, [Traffic("x", collective, size, 1, 1e8)]).seconds["x"]
    assert together >= alone * (1 - 1e-9)


@given(orders)
def test_bus_bandwidth_is_that_of_the_whole_gang(order: list[str]) -> None:
    found = step(the_lab(), a_tree(), order)
    took = found.seconds["gang"]
    factor = collectives.bus_factor(Collective.ALL_REDUCE, 8)
    assert found.bus_bandwidth == pytest.approx(factor * predict.NOMINAL_BYTES / took)
    assert found.bus_bandwidth <= 250e6


@pytest.mark.parametrize(
    ("order", "spine", "measured"),
    [
        (ORDERED, "200Mbps", 1.28),
        (ALTERNATING, "200Mbps", 5.51),
        (ORDERED, "100Mbps", 2.79),
        (ALTERNATING, "100Mbps", 11.5),
    ],
)
def test_an_emulated_fabric_is_predicted_within_15_percent(order: tuple[str, ...], spine: str, measured: float) -> None:
    """Seconds of gloo's all-reduce of 16 MiB over 8 network namespaces, links limited by tc tbf to the lab's rates."""
    assert seconds(order, the_lab(spine=spine)) == pytest.approx(measured, rel=0.15)


def racks(count: int, nodes: int = 18) -> tuple[Links, Tree]:
    """Racks of GB200, each one NVLink domain of 18 nodes with 4 accelerators and 4 interfaces of 400 Gb/s."""
    levels = (Level("leaf", "l"), Level("nvlink", "v"))
    tree = Tree(levels, {f"r{r}-{n}": ("l0", f"v{r}") for r in range(count) for n in range(nodes)})
    labels = {LABEL_GPU_PRODUCT: "NVIDIA-GB200", LABEL_INSTANCE_TYPE: "p6e-gb200.36xlarge"}
    return links_of(None, levels, [labels]), tree


def test_a_rack_that_nvlink_joins_is_as_one_node() -> None:
    links, tree = racks(1)
    found = step(links, tree, tuple(tree.paths), 4)
    assert (found.bottleneck, found.whole.nodes, found.whole.per_node) == ("nvlink", 1, 72)
    assert found.bus_bandwidth > 4 * 48e9  # more than the interfaces of a node carry
    assert links.edge(2).bytes_per_second == links.inside.bytes_per_second > links.edge(1).bytes_per_second


def test_between_racks_the_interfaces_of_all_nodes_count() -> None:
    links, tree = racks(2)
    found = step(links, tree, tuple(tree.paths), 4)
    assert (found.whole.nodes, found.whole.per_node) == (2, 72)
    assert found.whole.between.bytes_per_second == pytest.approx(18 * 4 * 48e9)
    one_each = step(links, tree, ("r0-0", "r1-0"), 4)
    assert one_each.whole.between.bytes_per_second == pytest.approx(4 * 48e9)


def test_where_every_nvlink_domain_is_a_node_it_is_as_without() -> None:
    links, tree = racks(4, nodes=1)
    assert step(links, tree, tuple(tree.paths), 4).bottleneck == "node"


@pytest.mark.parametrize(
    ("count", "gibibytes", "measured", "error"),
    [(1, 8, 841, 14), (2, 8, 793, 16), (2, 16, 820, 17), (20, 8, 381, 119), (20, 16, 405, 120)],
)
def test_the_error_against_published_racks_of_gb200_is_the_one_that_is_stated(
    count: int, gibibytes: int, measured: float, error: float
) -> None:
    """GB/s of bus bandwidth from CoreWeave's nccl-tests README (NCCL 2.26.2). That NCCL uses little of what the interfaces of 20
    racks carry together; the model does not know why."""
    links, tree = racks(count)
    world = 72 * count
    one = Traffic("gang", Collective.ALL_REDUCE, world, 1, gibibytes * 2**30)
    took = step(links, tree, tuple(tree.paths), 4, [one]).seconds["gang"]
    bus = collectives.bus_factor(Collective.ALL_REDUCE, world) * one.bytes / took / 1e9
    assert 100 * (bus / measured - 1) == pytest.approx(error, abs=1)
