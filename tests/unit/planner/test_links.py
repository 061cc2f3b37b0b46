"""What the network is taken for: what the administrator says, what labels tell, and what is assumed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.fabric import FabricSpec
from trainyard.api.names import LABEL_GPU_PRODUCT, LABEL_INSTANCE_TYPE
from trainyard.cycle.observe import over_interfaces
from trainyard.planner.links import LEAST_SHARE, LOOPBACK, Links, links_of
from trainyard.planner.machines import ACCELERATORS, MACHINES, NETWORKS, accelerator_of
from trainyard.topology.dialects import NVLINK
from trainyard.topology.tree import Level, Tree
from trainyard.world.observed import NODE

LEVELS = (Level("spine", "s"), Level("leaf", "l"))


def a_fabric(
    leaf: dict[str, object] | None = None, spine: dict[str, object] | None = None, **spec: object
) -> FabricSpec:
    return FabricSpec.model_validate(
        {
            "kind": "tcp",
            "levels": [
                {"name": "spine", "nodeLabel": "s", **(spine or {})},
                {"name": "leaf", "nodeLabel": "l", **(leaf or {})},
            ],
            **spec,
        }
    )


LAB = a_fabric({"bandwidth": "400Mbps"}, {"bandwidth": "200Mbps"}, node={"nicBandwidth": "2Gbps"})
TCP = NETWORKS["TCP"].usable


def test_what_the_fabric_says_counts_less_what_the_protocol_takes() -> None:
    links = links_of(LAB, LEVELS)
    assert [links.edge(depth).bytes_per_second for depth in (0, 1, 2)] == pytest.approx(
        [25e6 * TCP, 50e6 * TCP, 250e6 * TCP]
    )
    assert links.edge(3).bytes_per_second == LOOPBACK[0]
    assert links.declared
    assert [uplink.declared for uplink in links.uplinks] == [True, True]


def test_an_oversubscribed_tier_leaves_each_node_its_share() -> None:
    links = links_of(
        a_fabric({"oversubscription": 2}, {"oversubscription": 4}, node={"nicBandwidth": "80Gbps"}), LEVELS
    )
    node = 10e9 * TCP
    assert [links.edge(depth).bytes_per_second for depth in (0, 1, 2)] == pytest.approx([node / 8, node / 2, node])
    assert links.capacity(2, nodes=16) == pytest.approx(16 * node / 2)
    assert links.capacity(1, nodes=64) == pytest.approx(64 * node / 8)


def test_a_message_takes_longer_with_every_tier_it_climbs() -> None:
    links = links_of(a_fabric({"latency": "2us"}, {"latency": "3us"}, node={"latency": "10us"}), LEVELS)
    assert [links.edge(depth).latency_seconds for depth in (0, 1, 2)] == pytest.approx([15e-6, 12e-6, 10e-6])


@pytest.mark.parametrize(
    ("instance", "gigabytes"),
    [("p5.48xlarge", 384), ("p4de.24xlarge", 48), ("Standard_ND96asr_v4", 192), ("a3-ultragpu-8g", 372)],
)
def test_a_machine_is_known_by_its_instance_type(instance: str, gigabytes: float) -> None:
    links = links_of(None, LEVELS, [{LABEL_INSTANCE_TYPE: instance}] * 3 + [{LABEL_INSTANCE_TYPE: "m5.large"}])
    assert links.node.bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert not links.declared
    assert links.source == MACHINES[instance].source


def test_what_is_assumed_says_so() -> None:
    unknown = links_of(None, LEVELS, [{LABEL_GPU_PRODUCT: "NVIDIA-H200"}])
    assert unknown.node.bytes_per_second == pytest.approx(384e9)
    assert unknown.source.startswith("assumed: ")
    assert not any(uplink.declared for uplink in unknown.uplinks)
    assert links_of(None, ()).source == "assumed: one 10 Gb/s Ethernet interface"


def test_the_fabric_wins_over_the_machine_field_by_field() -> None:
    fabric = a_fabric(kind="generic", node={"nics": 4})
    links = links_of(fabric, LEVELS, [{LABEL_INSTANCE_TYPE: "p6-b200.48xlarge", LABEL_GPU_PRODUCT: "NVIDIA-B200"}])
    assert links.node.bytes_per_second == pytest.approx(4 * 48e9)
    assert links.inside.bytes_per_second == pytest.approx(721.8e9)
    said = links_of(a_fabric(node={"acceleratorBandwidth": "450GB/s"}), LEVELS, [{LABEL_GPU_PRODUCT: "NVIDIA-B200"}])
    assert said.inside.bytes_per_second == pytest.approx(360e9)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-H100-PCIe", "H100-PCIE"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "A100-SXM4-80GB"),
        ("NVIDIA-GB200", "GB200"),
        ("NVIDIA-B200", "B200"),
        ("Tesla-T4", None),
        ("", None),
    ],
)
def test_an_accelerator_is_known_by_the_label_of_feature_discovery(product: str, name: str | None) -> None:
    found = accelerator_of({LABEL_GPU_PRODUCT: product})
    assert (found and found.name) == name


def test_every_accelerator_is_found_by_its_own_name() -> None:
    assert [accelerator_of({LABEL_GPU_PRODUCT: known.name}) for known in ACCELERATORS] == list(ACCELERATORS)


ratios = st.floats(1.0, 8.0)
bandwidths = st.sampled_from(["100Mbps", "1Gbps", "50GB/s"])
tiers = st.one_of(
    st.fixed_dictionaries({"oversubscription": ratios}), st.fixed_dictionaries({"bandwidth": bandwidths}), st.just({})
)


@given(tiers, tiers)
def test_a_broader_domain_is_never_nearer(leaf: dict[str, object], spine: dict[str, object]) -> None:
    links = links_of(a_fabric(leaf, spine, node={"nicBandwidth": "1Gbps"}), LEVELS)
    edges = [links.edge(depth) for depth in (2, 1, 0)]
    assert [e.bytes_per_second for e in edges] == sorted((e.bytes_per_second for e in edges), reverse=True)
    assert [e.latency_seconds for e in edges] == sorted(e.latency_seconds for e in edges)


@given(
    st.permutations(
        [
            {LABEL_INSTANCE_TYPE: "p5.48xlarge"},
            {LABEL_INSTANCE_TYPE: "p4de.24xlarge"},
            {LABEL_GPU_PRODUCT: "NVIDIA-H100"},
            {},
        ]
    )
)
def test_the_order_of_nodes_changes_nothing(labels: list[dict[str, str]]) -> None:
    assert links_of(None, LEVELS, labels) == links_of(None, LEVELS, sorted(labels, key=str))


@pytest.mark.parametrize(("kind", "network"), [("tcp", "TCP"), ("infiniband", "InfiniBand"), ("roce", "RoCE")])
def test_the_fabrics_kind_says_what_its_protocol_leaves(kind: str, network: str) -> None:
    links = links_of(a_fabric(kind=kind, node={"nics": 8, "nicBandwidth": "400Gbps"}), LEVELS)
    assert links.node.bytes_per_second == pytest.approx(400e9 * NETWORKS[network].usable)
    assert links.node.latency_seconds == NETWORKS[network].latency_seconds


# What was observed ------------------------------------------------------------------------------------------------------------


def edges(links: Links) -> list[float]:
    """Broadest first."""
    return [links.edge(depth).bytes_per_second for depth in range(len(LEVELS) + 1)]


def test_what_was_seen_counts_before_what_is_declared_be_it_less_or_more() -> None:
    links = links_of(LAB, LEVELS, observed={"spine": 20e6, "leaf": 60e6, "node": 200e6})
    assert edges(links) == pytest.approx([20e6, 60e6, 200e6])
    assert links.capacity(1, nodes=4) == pytest.approx(20e6)
    assert links.seen == f"spine {20 / 25 / TCP:.2f}, leaf {60 / 50 / TCP:.2f}, node {200 / 250 / TCP:.2f}"
    assert links.said == f"declared by the Fabric; observed: {links.seen} of that"


def test_levels_of_which_nothing_was_seen_stay_as_declared() -> None:
    said, seen = links_of(LAB, LEVELS), links_of(LAB, LEVELS, observed={"leaf": 30e6})
    assert edges(seen) == pytest.approx([edges(said)[0], 30e6, edges(said)[2]])
    assert links_of(LAB, LEVELS, observed={}) == said


def test_nothing_is_faster_than_the_interfaces_of_a_node_nor_infinitely_slow() -> None:
    fast = links_of(LAB, LEVELS, observed={"spine": 1e12, "leaf": 1e12, "node": 1e12})
    assert edges(fast) == pytest.approx([250e6] * 3)
    slow = links_of(LAB, LEVELS, observed={"spine": 1e-9, "leaf": 1e-9, "node": 1e-9})
    assert all(
        edge == pytest.approx(LEAST_SHARE * said)
        for edge, said in zip(edges(slow), edges(links_of(LAB, LEVELS)), strict=True)
    )


def test_where_nobody_knows_the_interfaces_what_was_seen_is_better_than_a_guess() -> None:
    assert links_of(FabricSpec(), LEVELS, observed={"node": 48e9 * 16}).node.bytes_per_second == pytest.approx(
        48e9 * 16
    )
    known = links_of(FabricSpec(), LEVELS, [{LABEL_INSTANCE_TYPE: "p5.48xlarge"}], {"node": 48e9 * 16})
    assert known.node.bytes_per_second == pytest.approx(400e9)


def test_one_node_alone_on_a_shared_way_up_does_not_make_it_less_shared() -> None:
    fabric = a_fabric({"oversubscription": 4}, node={"nicBandwidth": "80Gbps"})
    said = links_of(fabric, LEVELS)
    alone = links_of(fabric, LEVELS, observed={"leaf": 9e9})
    assert edges(alone) == edges(said)
    assert alone.capacity(2, nodes=16) == said.capacity(2, nodes=16)
    assert edges(links_of(fabric, LEVELS, observed={"leaf": 1e9}))[1] == pytest.approx(1e9)


def test_slower_nodes_do_not_make_the_switches_slower() -> None:
    fabric = a_fabric({"oversubscription": 4}, {"oversubscription": 2}, node={"nicBandwidth": "80Gbps"})
    said, slow = links_of(fabric, LEVELS), links_of(fabric, LEVELS, observed={"node": 10e9 * TCP / 2})
    assert edges(slow) == pytest.approx([*edges(said)[:2], edges(said)[2] / 2])
    assert slow.capacity(2, nodes=16) == pytest.approx(said.capacity(2, nodes=16))
    slowest = links_of(fabric, LEVELS, observed={"node": 10e9 * TCP / 6})
    assert edges(slowest) == pytest.approx([edges(said)[0], 10e9 * TCP / 6, 10e9 * TCP / 6])
    assert slowest.capacity(1, nodes=64) == pytest.approx(said.capacity(1, nodes=64))


def test_what_one_node_sends_over_a_large_way_up_does_not_shrink_it_for_the_others() -> None:
    fabric = a_fabric({"bandwidth": "12.8Tbps"}, node={"nicBandwidth": "80Gbps"})
    seen = links_of(fabric, LEVELS, observed={"leaf": 5e9})
    assert edges(seen)[1] == pytest.approx(5e9)
    assert seen.capacity(2, nodes=32) == links_of(fabric, LEVELS).capacity(2, nodes=32)


shares = st.floats(0.0, 3.0)
seen_shares = st.dictionaries(st.sampled_from(["spine", "leaf", "node"]), shares, max_size=3)


@given(tiers, tiers, seen_shares)
def test_whatever_was_seen_a_broader_domain_is_never_nearer_and_no_link_beyond_its_bounds(
    leaf: dict[str, object], spine: dict[str, object], of: dict[str, float]
) -> None:
    fabric = a_fabric(leaf, spine, node={"nicBandwidth": "1Gbps"})
    said = links_of(fabric, LEVELS)
    found = links_of(fabric, LEVELS, observed=speeds_of(said, of))
    assert edges(found) == sorted(edges(found))
    assert all(0.0 < edge <= 125e6 * 1.001 for edge in edges(found))
    assert all(found.capacity(depth, 8) > 0.0 for depth in (1, 2))


@given(tiers, tiers, seen_shares, st.sampled_from(["spine", "leaf", "node"]), shares, shares)
def test_the_more_was_seen_of_a_level_the_more_it_carries(
    leaf: dict[str, object], spine: dict[str, object], of: dict[str, float], level: str, one: float, other: float
) -> None:
    fabric = a_fabric(leaf, spine, node={"nicBandwidth": "1Gbps"})
    said = links_of(fabric, LEVELS)
    less, more = (
        edges(links_of(fabric, LEVELS, observed=speeds_of(said, {**of, level: share})))
        for share in sorted((one, other))
    )
    assert all(a <= b * (1 + 1e-9) for a, b in zip(less, more, strict=True))


def speeds_of(links: Links, of: dict[str, float]) -> dict[str, float]:
    names = ("spine", "leaf", "node")
    return {name: edges(links)[names.index(name)] * share for name, share in of.items()}


def test_what_goes_over_nvlink_says_nothing_of_the_interfaces() -> None:
    levels = (Level("leaf", "l"), Level(NVLINK, "n"))
    labels = [{LABEL_GPU_PRODUCT: "NVIDIA-GB200", LABEL_INSTANCE_TYPE: "p5.48xlarge"}]
    said = links_of(None, levels, labels)
    seen = links_of(FabricSpec(), levels, labels, {"node": 1e9, NVLINK: 200e9, "leaf": 100e9})
    assert seen.node == said.node
    assert seen.edge(2) == said.edge(2) == said.inside
    assert [seen.edge(depth).bytes_per_second for depth in (0, 1)] == pytest.approx([100e9, 200e9])
    assert [level for level, _ in seen.observed] == ["leaf", NVLINK]
    assert over_interfaces(Tree(levels)) == ["leaf", NVLINK]
    assert over_interfaces(Tree(LEVELS)) == ["spine", "leaf", NODE]
