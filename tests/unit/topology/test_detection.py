"""Which labels are taken for the network's."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node
from trainyard.api.fabric import FabricSpec
from trainyard.api.fabric import Level as FabricLevel
from trainyard.topology.detection import Carried, Detected, Spoken, detect
from trainyard.topology.dialects import DIALECTS
from trainyard.topology.fabrics import choose
from trainyard.topology.tree import build
from trainyard.world.records import Fabric

AWS = (
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
)
GKE = "cloud.google.com/gce-topology-"
TIER = "fabric.topograph.run/tier-"
CLIQUE = "nvidia.com/gpu.clique"
COMPUTE_DOMAIN = "resource.nvidia.com/computeDomain"
TOR = "volcano.sh/tor"


def speaking(labels, count=4, prefix="n", **also):
    """Nodes that carry these labels; two values of each."""
    return [a_node(f"{prefix}{n}", labels=dict.fromkeys(labels, f"v{n % 2}"), **also) for n in range(count)]


def named(detected: Detected):
    return [(level.name, level.label) for level in detected.levels]


def names(detected: Detected):
    return [level.name for level in detected.levels]


def fabric(name, levels=(), **selector):
    described = tuple(FabricLevel(name=level, node_label=f"my/{level}") for level in levels)
    return Fabric(name, FabricSpec(levels=described, node_selector=selector))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_each_dialect_is_recognised_by_its_labels(dialect):
    tiers = [f"{dialect.tiers}{n}" for n in (2, 1, 0)] if dialect.tiers else []
    found = detect(speaking([*tiers, *dialect.labels]))
    assert found.source == dialect.name
    assert [level.label for level in found.levels] == [*tiers, *(level.label for level in dialect.levels)]
    assert found.carried == (4,) * len(found.levels)
    assert not found.unused


@pytest.mark.parametrize(
    ("labels", "levels"),
    [
        (AWS, [("core", AWS[0]), ("spine", AWS[1]), ("leaf", AWS[2])]),
        ([f"{TIER}0", f"{TIER}1"], [("spine", f"{TIER}1"), ("leaf", f"{TIER}0")]),
        (
            [f"{GKE}host", f"{GKE}subblock", f"{GKE}block"],
            [("block", f"{GKE}block"), ("subblock", f"{GKE}subblock"), ("host", f"{GKE}host")],
        ),
        (["network.topology.nvidia.com/leaf"], [("leaf", "network.topology.nvidia.com/leaf")]),
        (["topology.kubernetes.io/zone"], [("zone", "topology.kubernetes.io/zone")]),
        ([*AWS, "topology.kubernetes.io/zone"], [("core", AWS[0]), ("spine", AWS[1]), ("leaf", AWS[2])]),
    ],
)
def test_the_broadest_level_comes_first_whichever_way_a_vendor_counts(labels, levels):
    assert named(detect(speaking(labels))) == levels


def test_where_no_label_tells_anything_there_are_no_levels():
    assert detect(speaking([])) == Detected(asked=4, equipped=True)


def test_an_empty_cluster_has_no_levels():
    assert detect([]) == Detected()


def test_a_level_left_over_on_a_few_nodes_is_none_and_is_named():
    stale = a_node("stale", labels={"network.topology.nvidia.com/core": "old", "network.topology.nvidia.com/leaf": "1"})
    found = detect([stale, *speaking(["network.topology.nvidia.com/leaf"])])
    assert names(found) == ["leaf"]
    assert [(c.level.label, c.nodes) for c in found.unused] == [("network.topology.nvidia.com/core", 1)]


def test_a_level_that_exactly_half_of_the_nodes_carry_is_none():
    assert names(detect([*speaking([TOR], 2), *speaking([], 2, "x")])) == []
    assert names(detect([*speaking([TOR], 3), *speaking([], 2, "x")])) == ["leaf"]


def test_a_label_with_no_value_tells_nothing():
    empty = [a_node(f"n{n}", labels={"backend.coreweave.cloud/fabric": "", TOR: "t"}) for n in range(3)]
    found = detect(empty)
    assert (found.source, names(found), found.others) == ("volcano", ["leaf"], ())


def test_nodes_without_accelerators_have_no_say():
    plain = speaking([TOR], count=9, prefix="p", gpus=0)
    found = detect([*plain, *speaking(AWS, count=3)])
    assert (found.source, found.asked, found.equipped, found.others) == ("aws", 3, True, ())


def test_where_no_node_has_accelerators_all_have_a_say():
    found = detect(speaking([TOR], gpus=0))
    assert (found.source, found.asked, found.equipped) == ("volcano", 4, False)


def test_of_two_schemes_the_better_covered_counts_and_the_other_is_named():
    both = [*AWS, f"{TIER}0", f"{TIER}1", f"{TIER}2"]
    late = [*speaking(both, 6), *speaking(AWS, 4, "late")]
    assert detect(late).source == "aws"
    assert detect(late).others == (Spoken("topograph", 6),)
    early = [*speaking(both, 6), *speaking([f"{TIER}0", f"{TIER}1", f"{TIER}2"], 4, "early")]
    assert detect(early).source == "topograph"
    assert detect(early).others == (Spoken("aws", 6),)


def test_one_label_on_a_node_more_does_not_outweigh_three_levels():
    nodes = [*speaking([f"{TIER}0", f"{TIER}1", f"{TIER}2", AWS[0]], 9), *speaking([AWS[0]], 1, "x")]
    assert detect(nodes).source == "topograph"


def test_a_dialect_that_shares_labels_with_the_one_that_counts_is_not_another():
    old = [f"network.topology.nvidia.com/{key}" for key in ("datacenter", "spine", "block", "accelerator")]
    found = detect(speaking(old))
    assert (found.source, names(found), found.others) == ("topograph-0.1", ["core", "spine", "leaf", "nvlink"], ())


def test_which_levels_count_is_said_with_how_many_nodes_carry_them():
    found = detect([*speaking([f"{TIER}1", f"{TIER}0"], 5), *speaking([f"{TIER}1"], 2, "x")])
    assert dict(zip(names(found), found.carried, strict=True)) == {"spine": 7, "leaf": 5}


# NVLink


def cliques(*values, labels=(), prefix="g"):
    return [a_node(f"{prefix}{n}", labels={CLIQUE: v, **dict.fromkeys(labels, "v")}) for n, v in enumerate(values)]


def test_the_clique_is_the_nvlink_level_of_a_network_that_has_none():
    found = detect(cliques("a.1", "a.1", "b.1", labels=AWS))
    assert (found.source, found.nvlink) == ("aws", "gpu-clique")
    assert named(found)[3:] == [("nvlink", CLIQUE)]
    assert found.carried == (3, 3, 3, 3)


def test_an_nvlink_domain_of_several_partitions_is_a_level_of_its_own():
    nodes = cliques("a.1", "a.2", "b.1", labels=[TOR])
    found = detect(nodes)
    assert names(found) == ["leaf", "nvlink-domain", "nvlink"]
    tree = build(nodes, found.levels)
    assert [tree.paths[f"g{n}"] for n in range(3)] == [("v", "a", "a.1"), ("v", "a", "a.2"), ("v", "b", "b.1")]


def test_a_network_that_tells_nvlink_itself_is_left_as_it_is():
    found = detect(cliques("a.1", "a.1", "b.1", labels=[*AWS, "topology.k8s.aws/ultraserver-id"]))
    assert (found.nvlink, named(found)[-1]) == ("", ("nvlink", "topology.k8s.aws/ultraserver-id"))


def test_an_nvlink_label_on_too_few_nodes_does_not_keep_the_clique_out():
    few = a_node("few", labels={"topology.k8s.aws/ultraserver-id": "u", CLIQUE: "a.1", **dict.fromkeys(AWS, "v")})
    found = detect([few, *cliques("a.1", "b.1", labels=AWS)])
    assert named(found)[-1] == ("nvlink", CLIQUE)
    assert [(c.level.label, c.nodes) for c in found.unused] == [("topology.k8s.aws/ultraserver-id", 1)]


def test_nvlink_lies_around_hosts():
    labels = [f"{GKE}block", f"{GKE}subblock", f"{GKE}host"]
    assert names(detect(cliques("a.1", "b.1", labels=labels))) == ["block", "subblock", "nvlink", "host"]


def placed(*places, key=CLIQUE):
    """Nodes by spine, leaf and clique."""
    labels = [dict(zip((f"{TIER}1", f"{TIER}0", key), place, strict=True)) for place in places]
    return [a_node(f"n{n}", labels=label) for n, label in enumerate(labels)]


def test_leaves_that_share_a_rack_lie_within_its_nvlink_domain():
    nodes = placed(("s", "l1", "a.1"), ("s", "l2", "a.1"), ("s", "l3", "b.1"), ("s", "l4", "b.1"))
    found = detect(nodes)
    assert names(found) == ["spine", "nvlink", "leaf"]
    tree = build(nodes, found.levels)
    assert tree.domain("n0", 2) == tree.domain("n1", 2) != tree.domain("n2", 2)
    stale = a_node("stale", labels={**nodes[0].labels, CLIQUE: "old.1"})
    assert names(detect([*nodes, stale])) == ["spine", "nvlink", "leaf"]


def test_a_leaf_of_several_nvlink_domains_lies_around_them_even_if_one_is_torn():
    whole = [("s", "l1", "a.1"), ("s", "l1", "b.1"), ("s", "l2", "c.1"), ("s", "l2", "d.1")]
    assert names(detect(placed(*whole))) == ["spine", "leaf", "nvlink"]
    assert names(detect(placed(*whole, ("s", "l2", "a.1")))) == ["spine", "leaf", "nvlink"]


def test_where_each_leaf_is_one_nvlink_domain_the_order_is_the_usual_one():
    assert names(detect(placed(("s", "l1", "a.1"), ("s", "l2", "b.1")))) == ["spine", "leaf", "nvlink"]


def test_names_that_may_be_counted_anew_in_each_leaf_say_nothing_of_the_order():
    nodes = placed(("s", "l1", "0"), ("s", "l2", "0"), key="topology.k8s.aws/ultraserver-id")
    assert names(detect(nodes)) == ["spine", "leaf", "nvlink"]


def test_nvlink_alone_is_below_zones_or_alone():
    zone = "topology.kubernetes.io/zone"
    assert names(detect(cliques("a.1", "b.1", labels=[zone]))) == ["zone", "nvlink"]
    assert names(detect(cliques("a.1", "b.1"))) == ["nvlink"]
    assert detect(cliques("a.1", "b.1")).source == ""


def test_another_dialect_may_tell_of_nvlink():
    found = detect(speaking([*AWS, "accelerator.topograph.run/domain", "accelerator.topograph.run/sub-domain"]))
    assert (found.source, found.nvlink, found.others) == ("aws", "topograph", ())
    assert names(found) == ["core", "spine", "leaf", "nvlink", "subdomain"]


def test_a_compute_domain_tells_of_nvlink_where_nothing_better_does():
    assert named(detect(speaking([TOR, COMPUTE_DOMAIN])))[1:] == [("nvlink", COMPUTE_DOMAIN)]
    assert named(detect(speaking([TOR, COMPUTE_DOMAIN, f"{COMPUTE_DOMAIN}.cliqueID"])))[1:] == [
        ("nvlink", f"{COMPUTE_DOMAIN}.cliqueID")
    ]
    assert named(detect(speaking([TOR, COMPUTE_DOMAIN, CLIQUE])))[1:] == [("nvlink", CLIQUE)]


# Fabrics


def test_a_fabric_wins_over_any_dialect_which_is_named():
    found = detect(speaking([*AWS, "my/row"]), [fabric("ours", ["hall", "row"])])
    assert (found.source, found.described) == ("ours", True)
    assert named(found) == [("hall", "my/hall"), ("row", "my/row")]
    assert found.carried == (0, 4)
    assert found.others == (Spoken("aws", 4),)


def test_a_fabric_of_a_dialects_labels_leaves_no_other():
    ours = Fabric(
        "ours", FabricSpec(levels=tuple(FabricLevel(name=f"l{n}", node_label=key) for n, key in enumerate(AWS)))
    )
    assert detect(speaking(AWS), [ours]).others == ()


def test_a_fabric_that_names_no_levels_leaves_the_dialect():
    assert detect(speaking(AWS), [fabric("settings-only")]).source == "aws"


def test_the_fabric_of_the_nodes_with_accelerators_counts():
    nodes = [a_node("a", labels={"net": "a"}), *(a_node(f"b{n}", labels={"net": "b"}, gpus=0) for n in range(3))]
    assert detect(nodes, [fabric("a", ["row"], net="a"), fabric("b", ["row"], net="b")]).source == "a"


def test_the_fabric_that_most_nodes_are_on_speaks_for_them():
    nodes = [*(a_node(f"a{n}", labels={"net": "a"}) for n in range(3)), a_node("b", labels={"net": "b"})]
    a, b, everything = fabric("a", net="a"), fabric("b", net="b"), fabric("everything")
    assert choose(nodes, [b, a]) is a
    assert choose(nodes, [a, everything]) is everything
    assert choose(nodes[:3], [everything, a]) is a
    assert choose(nodes, [fabric("c", net="c")]) is None
    assert choose(nodes, []) is None
    assert choose([], [everything]) is everything


# Rules

KEYS = (*AWS, f"{TIER}0", f"{TIER}1", "network.topology.nvidia.com/spine", TOR, CLIQUE, "topology.kubernetes.io/zone")


@st.composite
def mixed(draw: st.DrawFn):
    """Nodes on which some labels of several dialects are, some without a value."""
    values = st.sampled_from(["", "a.1", "a.2", "b.1"])
    many = draw(
        st.lists(st.tuples(st.dictionaries(st.sampled_from(KEYS), values), st.sampled_from([0, 8])), max_size=7)
    )
    return [a_node(f"n{n}", labels=labels, gpus=gpus) for n, (labels, gpus) in enumerate(many)]


@given(mixed(), st.randoms())
def test_what_is_detected_does_not_depend_on_the_order_of_nodes_or_labels(nodes, shuffle: random.Random):
    found = detect(nodes)
    shuffle.shuffle(nodes)
    turned = [
        a_node(n.name, labels=dict(reversed(n.labels.items())), gpus=n.allocatable.get("nvidia.com/gpu", 0))
        for n in nodes
    ]
    assert detect(turned) == found


@given(mixed())
def test_levels_of_dialects_are_carried_by_most_and_counted_as_one_would(nodes):
    found = detect(nodes)
    asked = [node for node in nodes if "nvidia.com/gpu" in node.allocatable] or nodes
    counts = tuple(sum(bool(node.labels.get(level.label)) for node in asked) for level in found.levels)
    assert found.carried == counts
    assert all(2 * count > len(asked) == found.asked for count in counts)
    assert all(2 * c.nodes <= len(asked) and c == Carried(c.level, c.nodes) for c in found.unused)
    assert len(set(names(found))) == len(found.levels)
    for other in found.others:
        dialect = next(d for d in DIALECTS if d.name == other.dialect)
        assert other.nodes == sum(any(v and dialect.speaks(k) for k, v in n.labels.items()) for n in asked)
