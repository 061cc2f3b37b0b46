"""Free gangs by size and level, and what is free for nobody: examples that can be counted by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import GPU, MEMBER, a_cluster, a_node, a_pod, a_room, clusters, only_free, some_of
from trainyard.planner.fragmentation import fragmentation, kinds
from trainyard.planner.search.fragments import SIZES
from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import World

WHOLE = demand({}, MEMBER)


def of(cluster, free, sizes):
    return fragmentation(a_room(cluster, free).supply(WHOLE), sizes)


def test_gangs_that_fit_at_once_are_counted_within_single_domains():
    """Free: two and one in the leaves of a, one and one in those of b."""
    cluster = a_cluster()
    found = of(cluster, only_free(cluster, "a1-0", "a1-1", "a2-0", "b1-0", "b2-0"), {1: 1.0, 2: 1.0, 4: 1.0})
    assert [(at.level, at.slots) for at in found.levels] == [
        ("cluster", {1: 5, 2: 2, 4: 1}),
        ("spine", {1: 5, 2: 2, 4: 0}),  # 3 of a and 2 of b
        ("leaf", {1: 5, 2: 1, 4: 0}),
    ]
    assert [(at.level, at.largest, at.domain, at.whole) for at in found.levels] == [
        ("cluster", 5, "cluster", 8),
        ("spine", 3, "a", 4),
        ("leaf", 2, "a/leaf-1", 2),
    ]
    assert (found.free, found.whole) == (5, 8)


def test_what_is_left_over_at_the_level_where_a_gang_would_be_is_of_no_use_to_it():
    """A pair belongs into a leaf, and the three leaves with a single free node have none for it; four belong into a spine."""
    cluster = a_cluster()
    found = of(cluster, only_free(cluster, "a1-0", "a1-1", "a2-0", "b1-0", "b2-0"), {1: 1.0, 2: 1.0, 4: 2.0})
    assert found.unusable == {1: 0.0, 2: 3 / 5, 4: 1.0}
    assert found.expected == pytest.approx((0.0 + 3 / 5 + 2 * 1.0) / 4)


def test_sizes_that_the_empty_cluster_could_not_hold_do_not_count():
    cluster = a_cluster()
    found = of(cluster, only_free(cluster, "a1-0", "a1-1"), {2: 1.0, 16: 100.0})
    assert found.unusable == {2: 0.0}
    assert found.expected == 0.0
    assert of(cluster, only_free(cluster, "a1-0"), {16: 1.0}).expected == 0.0


def test_where_nothing_is_free_nothing_is_of_no_use():
    cluster = a_cluster()
    found = of(cluster, only_free(cluster), SIZES)
    assert (found.free, found.expected) == (0, 0.0)
    assert {at.domain for at in found.levels} == {""}


def test_without_nodes_there_is_one_empty_level():
    found = fragmentation(Inventory().supply(WHOLE))
    assert [(at.level, at.largest, at.whole) for at in found.levels] == [("cluster", 0, 0)]
    assert found.unusable == {}


def test_accelerators_on_nodes_that_are_taken_in_part_are_of_no_use_to_gangs_of_whole_nodes():
    cluster = a_cluster(spines="a", leaves=1, nodes_per_leaf=4)
    pods = [a_pod("p", node="a1-0", requests={GPU: 6}), a_pod("q", node="a1-1", requests={GPU: 8})]
    (kind,) = kinds(Inventory.of(World(nodes=cluster, pods={pod.uid: pod for pod in pods})), {2: 1.0})
    assert (kind.name, kind.free, kind.total, kind.gangs.free) == ("8 nvidia.com/gpu", 18, 32, 2)
    assert kind.gangs.unusable == {2: pytest.approx(2 / 18)}  # the two that are free beside six


def test_nodes_of_different_kinds_do_not_make_a_gang_together():
    product = {"nvidia.com/gpu.product": "H100"}
    nodes = [a_node("a"), a_node("b"), a_node("c", gpus=4), a_node("d", gpus=0), a_node("e", ready=False)]
    nodes.append(a_node("f", labels=product))
    found = kinds(Inventory.of(World(nodes={node.name: node for node in nodes})))
    assert [(kind.name, kind.gangs.free, kind.total) for kind in found] == [
        ("4 nvidia.com/gpu", 1, 4),
        ("8 nvidia.com/gpu", 2, 16),
        ("8 nvidia.com/gpu, H100", 1, 8),
    ]


@st.composite
def holdings(draw):
    cluster = draw(clusters(most=12))
    return cluster, only_free(cluster, *some_of(draw, cluster))


@given(holdings(), st.dictionaries(st.integers(1, 6), st.floats(0.1, 10), min_size=1))
def test_as_many_gangs_fit_as_can_be_taken_out_one_by_one(holding, sizes):
    cluster, free = holding
    supply = a_room(cluster, free).supply(WHOLE)
    for depth, at in enumerate(fragmentation(supply, sizes).levels):
        for size in sizes:
            left, gangs = {n: supply.free_in[n] for n in supply.index.at_depth[depth]}, 0
            while any(room >= size for room in left.values()):
                left[max(left, key=lambda n: left[n])] -= size
                gangs += 1
            assert at.slots[size] == gangs
            assert (at.slots[size] > 0) == (at.largest >= size)


@given(holdings())
def test_an_empty_cluster_of_equal_leaves_is_whole_and_shares_are_shares(holding):
    cluster, free = holding
    found = of(cluster, free, SIZES)
    assert all(0.0 <= share <= 1.0 for share in (found.expected, *found.unusable.values()))
    even = a_cluster(spines="abcd", leaves=2, nodes_per_leaf=8)
    assert of(even, only_free(even, *even), SIZES).expected == 0.0
