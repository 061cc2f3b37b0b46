"""Segments, spares, several members on a node, kinds of nodes, and what decides between places that cost the same."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import EMPTY, FULL, GPU, MEMBER, a_cluster, a_node, a_room, free_but, only_free
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import Placement, Shortfall, place
from trainyard.planner.request import Request
from trainyard.world.records import Node


def gang(nodes: int, **also) -> Request:
    return Request("default/train", nodes, also.pop("requests", MEMBER), **also)


def asked(cluster, free, wanted, outlook=PLAIN) -> Placement | Shortfall:
    return place(a_room(cluster, free).supply(wanted.demand), wanted, outlook)


def placed(cluster, free, wanted, outlook=PLAIN) -> Placement:
    found = asked(cluster, free, wanted, outlook)
    assert isinstance(found, Placement), found
    return found


def leaf_of(node: str) -> str:
    return node.split("-", maxsplit=1)[0]


def racks(count: int, nodes: int = 18) -> dict[str, Node]:
    return a_cluster(spines="a", leaves=count, nodes_per_leaf=nodes)


# Segments ----------------------------------------------------------------------------------------------------------------


def test_a_segment_is_never_cut():
    cluster = racks(3, nodes=4)
    free = free_but(cluster, "a1-0", "a2-0")
    found = placed(cluster, free, gang(8, segment=2, segment_level="leaf"))
    assert Counter(map(leaf_of, found.nodes)) == {"a3": 4, "a1": 2, "a2": 2}
    assert [leaf_of(node) for node in found.nodes] == ["a3"] * 4 + ["a1"] * 2 + ["a2"] * 2


def test_room_that_holds_no_whole_segment_is_of_no_use():
    cluster = racks(3, nodes=3)
    found = asked(cluster, free_but(cluster), gang(8, segment=2, segment_level="leaf"))
    assert isinstance(found, Shortfall)
    assert found.message == (
        "needs 8 nodes in segments of 2 within one leaf each; 9 are eligible, 9 of them are free; they hold 3 whole segments"
    )
    assert found.unblock == ("room for 1 more segment of 2",)
    assert (found.could_ever_fit, found.holds) == (False, ())


def test_segments_that_are_only_wished_for_are_kept_where_they_can_be():
    cluster = racks(3, nodes=3)
    wish = {"segment": 2, "segment_level": "leaf", "segment_required": False}
    assert len(placed(cluster, free_but(cluster), gang(8, **wish)).nodes) == 8
    leaves = Counter(map(leaf_of, placed(cluster, free_but(cluster), gang(6, **wish)).nodes))
    assert leaves == {"a1": 2, "a2": 2, "a3": 2}


def test_the_last_segment_may_be_shorter_and_holds_the_last_ranks():
    cluster = racks(2, nodes=4)
    found = placed(cluster, free_but(cluster), gang(7, segment=4, segment_level="leaf"))
    assert [leaf_of(node) for node in found.nodes] == ["a1"] * 4 + ["a2"] * 3


def test_a_segment_level_that_no_cluster_has_is_waited_for():
    cluster = racks(2, nodes=4)
    assert isinstance(asked(cluster, free_but(cluster), gang(4, segment=2, segment_level="row")), Shortfall)


# Spares ------------------------------------------------------------------------------------------------------------------


def test_a_rack_of_18_of_which_16_are_wanted_keeps_2_as_spares():
    cluster = racks(3)
    free = free_but(cluster, "a1-0", "a1-1", "a2-0")  # 16, 17 and 18 are free
    found = placed(cluster, free, gang(16, segment=16, segment_level="leaf", spares=2))
    assert {leaf_of(node) for node in found.nodes} == {"a3"}
    assert [leaf_of(node) for node in found.spares] == ["a3", "a3"]
    assert not set(found.spares) & set(found.nodes)


def test_spares_are_dealt_out_to_the_racks_of_the_gang():
    cluster = racks(4)
    found = placed(cluster, free_but(cluster, "a1-0", "a1-1"), gang(32, segment=16, segment_level="leaf", spares=4))
    assert len({leaf_of(node) for node in found.nodes}) == 2
    assert Counter(map(leaf_of, found.spares)) == dict.fromkeys({leaf_of(node) for node in found.nodes}, 2)


def test_spares_cost_the_gang_nothing_and_are_as_many_as_there_are():
    cluster = racks(2, nodes=4)
    found = placed(cluster, free_but(cluster, "a2-0"), gang(3, spares=4))
    assert {leaf_of(node) for node in (*found.nodes, *found.spares)} == {"a1"}
    assert len(found.spares) == 1
    assert placed(cluster, only_free(cluster, "a1-0", "a1-1"), gang(2, spares=1)).spares == ()


def test_spares_stay_in_the_domain_that_the_gang_shares():
    cluster = a_cluster(spines="ab", leaves=2, nodes_per_leaf=3)
    found = placed(cluster, free_but(cluster), gang(5, spares=3))
    assert {node[0] for node in (*found.nodes, *found.spares)} == {"a"}
    assert len(found.spares) == 1


# Several members on a node -----------------------------------------------------------------------------------------------


def test_members_that_share_nodes_touch_as_few_as_hold_them():
    cluster = racks(2, nodes=3)
    free = {**free_but(cluster), "a1-0": {GPU: 2}, "a1-1": {GPU: 4}, "a1-2": {GPU: 6}, "a2-0": FULL}
    found = placed(cluster, free, gang(5, requests={GPU: 2}, per_node=4))
    assert Counter(found.nodes) in ({"a1-2": 3, "a1-1": 2}, {"a2-1": 4, "a2-2": 1}, {"a2-2": 4, "a2-1": 1})
    assert found.spans["leaf"] == 1


def test_no_node_gets_more_members_than_it_may():
    cluster = racks(1, nodes=2)
    assert Counter(placed(cluster, free_but(cluster), gang(4, requests={GPU: 1}, per_node=2)).nodes) == {
        "a1-0": 2,
        "a1-1": 2,
    }
    found = asked(cluster, free_but(cluster), gang(5, requests={GPU: 1}, per_node=2))
    assert isinstance(found, Shortfall)
    assert found.message == "needs 5 places (at most 2 on a node); 4 are eligible, 4 of them are free"
    assert found.unblock == ("1 more eligible place",)


# Kinds of nodes ----------------------------------------------------------------------------------------------------------


def two_kinds() -> dict[str, Node]:
    """Two leaves below one spine, the nodes of each taking turns between two products."""
    product = "nvidia.com/gpu.product"
    return {
        node.name: node
        for node in (
            a_node(f"a{leaf}-{n}", spine="a", leaf=str(leaf), labels={product: "H100" if n % 2 else "A100"})
            for leaf in (1, 2)
            for n in range(6)
        )
    }


def test_nodes_of_two_kinds_are_never_mixed_unless_asked():
    cluster = two_kinds()
    products = {
        cluster[node].labels["nvidia.com/gpu.product"] for node in placed(cluster, free_but(cluster), gang(4)).nodes
    }
    assert len(products) == 1
    mixed = placed(cluster, free_but(cluster), gang(4, mixed=True))
    assert mixed.spans["leaf"] == 1


def test_the_kind_with_the_cheaper_place_is_taken():
    cluster = two_kinds()
    free = free_but(cluster, "a1-0", "a2-0")  # three H100 are free in each leaf, two A100
    found = placed(cluster, free, gang(3))
    assert (set(found.nodes), found.span) in [({"a1-1", "a1-3", "a1-5"}, "leaf"), ({"a2-1", "a2-3", "a2-5"}, "leaf")]


def test_what_is_free_of_two_kinds_does_not_add_up():
    cluster = two_kinds()
    found = asked(cluster, free_but(cluster, "a1-0"), gang(7))
    assert isinstance(found, Shortfall)
    assert found.message == "needs 7 nodes; 12 are eligible, 11 of them are free; 6 of these are of one kind"
    assert found.unblock == (
        "no kind has 7 eligible nodes",
        "with spec.placement.mixed it would start now, on several kinds of nodes",
    )
    assert (found.could_ever_fit, found.holds) == (False, ())


def test_a_gang_waits_for_the_kind_that_could_hold_it():
    cluster = two_kinds()
    found = asked(cluster, free_but(cluster, "a1-0", "a1-1"), gang(6))
    assert isinstance(found, Shortfall)
    assert found.unblock[0] == "1 more free node of that kind"
    assert found.could_ever_fit
    assert len(found.holds) == 5


def test_a_node_with_fewer_accelerators_is_of_another_kind():
    cluster = {n: a_node(n, spine="a", leaf="1", gpus=gpus) for n, gpus in [("x", 8), ("y", 8), ("z", 4)]}
    free = {name: dict(node.allocatable) for name, node in cluster.items()}
    assert isinstance(asked(cluster, free, gang(3, requests={GPU: 4})), Shortfall)
    assert isinstance(asked(cluster, free, gang(3, requests={GPU: 4}, mixed=True)), Placement)


def test_to_members_without_accelerators_all_nodes_are_alike():
    cluster = two_kinds()
    free = {name: {"cpu": 4000, GPU: 8} for name in cluster}
    assert len(placed(cluster, free, gang(12, requests={"cpu": 1000})).nodes) == 12


# What decides between equals ---------------------------------------------------------------------------------------------


def test_a_node_in_doubt_is_avoided_where_that_costs_nothing():
    cluster = racks(2, nodes=3)
    free = free_but(cluster, "a1-0")
    doubt = Outlook(doubtful=frozenset({"a1-1"}))
    assert placed(cluster, free, gang(2)).nodes == ("a1-1", "a1-2")
    assert {leaf_of(node) for node in placed(cluster, free, gang(2), doubt).nodes} == {"a2"}


def test_a_node_in_doubt_is_taken_before_the_gang_is_spread_further():
    cluster = racks(2, nodes=3)
    doubt = Outlook(doubtful=frozenset({"a1-1", "a2-0"}))
    found = placed(cluster, free_but(cluster), gang(3), doubt)
    assert found.span == "leaf"


def test_in_a_leaf_the_nodes_in_doubt_are_taken_last():
    cluster = racks(1, nodes=4)
    doubt = Outlook(doubtful=frozenset({"a1-0", "a1-2"}))
    assert set(placed(cluster, free_but(cluster), gang(3), doubt).nodes) >= {"a1-1", "a1-3"}


def test_an_uplink_that_others_use_is_left_to_them():
    cluster = racks(3, nodes=3)
    wanted = gang(6)
    supply = a_room(cluster, free_but(cluster)).supply(wanted.demand)
    first = supply.index.at_depth[-1][0]
    busy = Outlook(uplinks={first: 2})
    assert {leaf_of(node) for node in place(supply, wanted).nodes} == {"a1", "a2"}
    assert {leaf_of(node) for node in place(supply, wanted, busy).nodes} == {"a2", "a3"}


def test_the_sizes_of_gangs_to_come_decide_which_hole_is_filled():
    cluster = racks(3, nodes=6)
    free = dict.fromkeys(cluster, FULL)
    for leaf, count in (("a1", 6), ("a2", 5), ("a3", 3)):
        free |= {f"{leaf}-{n}": EMPTY for n in range(count)}
    # Two nodes are wanted; what is left of 6 still holds a gang of 4, what is left of 5 or 3 does not hold what it held.
    assert {leaf_of(n) for n in placed(cluster, free, gang(2), Outlook(gang_sizes={4: 1.0})).nodes} == {"a3"}
    assert {leaf_of(n) for n in placed(cluster, free, gang(2), Outlook(gang_sizes={3: 1.0})).nodes} == {"a2"}


def test_the_fullest_domain_is_filled_up_first():
    cluster = a_cluster(spines="ab", leaves=2, nodes_per_leaf=4)
    free = free_but(cluster, "b1-0", "b2-0")
    assert {node[0] for node in placed(cluster, free, gang(6)).nodes} == {"b"}


# Faults ------------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_members_on_ten_nodes_are_refused_in_words():
    cluster = racks(1, nodes=10)
    found = asked(cluster, free_but(cluster), gang(100_000))
    assert isinstance(found, Shortfall)
    assert found.message == "needs 100000 nodes; 10 are eligible, 10 of them are free"


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 3))
def test_nodes_and_spares_are_free_and_apart(nodes, spares, segment):
    cluster = a_cluster(spines="ab", leaves=2, nodes_per_leaf=3)
    taken = ("a1-0", "b2-1")
    found = asked(
        cluster, free_but(cluster, *taken), gang(nodes * segment, segment=segment, segment_level="leaf", spares=spares)
    )
    if isinstance(found, Placement):
        held = (*found.nodes, *found.spares)
        assert len(held) == len(set(held))
        assert not set(held) & set(taken)
        assert len(found.nodes) == nodes * segment
        assert len(found.spares) <= spares
