"""Which nodes a gang gets, and how a refusal counts."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import (
    FULL,
    MEMBER,
    a_cluster,
    a_node,
    a_room,
    a_tree,
    clusters,
    free_but,
    only_free,
    some_of,
)
from trainyard.api.training_job import TrainingJobSpec
from trainyard.planner.place import Placement, Shortfall
from trainyard.planner.place import place as place_on
from trainyard.planner.request import Request, request
from trainyard.planner.search.branch import MOST_STATES
from trainyard.world.records import Taint


def gang(nodes: int, **also) -> Request:
    return Request("default/train", nodes, MEMBER, **also)


def place(cluster, free, wanted) -> Placement | Shortfall:
    return place_on(a_room(cluster, free).supply(wanted.demand), wanted)


def placed(cluster, free, wanted) -> Placement:
    found = place(cluster, free, wanted)
    assert isinstance(found, Placement), found
    return found


def refused(cluster, free, wanted) -> Shortfall:
    found = place(cluster, free, wanted)
    assert isinstance(found, Shortfall), found
    return found


# Cases -------------------------------------------------------------------------------------------------------------------


def test_a_gang_that_a_leaf_holds_stays_in_one():
    cluster = a_cluster()
    found = placed(cluster, free_but(cluster), gang(2))
    assert found.nodes == ("a1-0", "a1-1")
    assert (found.span, found.spans, found.crossings) == ("leaf", {"spine": 1, "leaf": 1}, {"spine": 0, "leaf": 0})


def test_a_gang_too_large_for_a_leaf_stays_below_one_spine():
    cluster = a_cluster()
    found = placed(cluster, free_but(cluster, "a1-0"), gang(4))
    assert found.nodes == ("b1-0", "b1-1", "b2-0", "b2-1")
    assert (found.span, found.spans, found.crossings) == ("spine", {"spine": 1, "leaf": 2}, {"spine": 0, "leaf": 2})


def test_a_gang_too_large_for_a_spine_takes_the_whole_cluster():
    cluster = a_cluster()
    found = placed(cluster, free_but(cluster), gang(8))
    assert (found.span, found.spans) == ("cluster", {"spine": 2, "leaf": 4})


def test_the_leaf_with_least_room_that_fits_is_taken():
    cluster = a_cluster(spines="a", leaves=3, nodes_per_leaf=4)
    free = free_but(cluster, "a2-0", "a3-0", "a3-1", "a3-2")
    assert placed(cluster, free, gang(3)).nodes == ("a2-1", "a2-2", "a2-3")
    assert placed(cluster, free, gang(1)).nodes == ("a3-3",)


def test_the_rest_of_a_split_gang_goes_where_it_leaves_least():
    cluster = a_cluster(spines="a", leaves=3, nodes_per_leaf=4)
    free = free_but(cluster, "a2-0", "a3-0", "a3-1")
    found = placed(cluster, free, gang(6))
    assert set(found.nodes) == {"a1-0", "a1-1", "a1-2", "a1-3", "a3-2", "a3-3"}
    assert found.nodes[:4] == ("a1-0", "a1-1", "a1-2", "a1-3")


def test_a_required_level_is_never_left():
    cluster = a_cluster()
    free = only_free(cluster, "a1-0", "a1-1", "b1-0", "b1-1")
    assert placed(cluster, free, gang(4)).span == "cluster"
    assert placed(cluster, free, gang(4, level="spine")).span == "cluster"
    assert refused(cluster, free, gang(4, level="spine", required=True)).needed == 4


def test_within_a_required_level_the_narrowest_domain_still_counts():
    cluster = a_cluster()
    assert placed(cluster, free_but(cluster), gang(2, level="spine", required=True)).span == "leaf"


def test_a_level_that_is_wished_for_has_the_fewest_domains_even_across_broader_ones():
    cluster = a_cluster(spines="abc", leaves=4, nodes_per_leaf=3)
    free = only_free(cluster, "a1-0", "a2-0", "a3-0", "a4-0", "b1-0", "b1-1", "b1-2", "c1-0")
    assert placed(cluster, free, gang(4)).spans == {"spine": 1, "leaf": 4}
    assert placed(cluster, free, gang(4, level="leaf")).spans == {"spine": 2, "leaf": 2}


def test_a_wish_for_a_level_that_does_not_exist_is_no_obstacle():
    cluster = a_cluster()
    assert placed(cluster, free_but(cluster), gang(2, level="rack")).span == "leaf"


def test_nodes_that_share_a_leaf_name_alone_are_not_neighbours():
    cluster = {n: a_node(n, spine=spine, leaf="1") for n, spine in [("x", "a"), ("y", "b")]}
    assert placed(cluster, free_but(cluster), gang(2)).spans == {"spine": 2, "leaf": 2}


def test_nodes_without_labels_are_used_and_count_one_by_one():
    cluster = {n: a_node(n) for n in ("n1", "n2", "n10")}
    found = placed(cluster, free_but(cluster), gang(3))
    assert (found.nodes, found.spans) == (("n1", "n2", "n10"), {"spine": 3, "leaf": 3})


def test_one_member_a_node_however_much_is_free():
    cluster = {"big": a_node("big", gpus=64)}
    assert refused(cluster, {"big": {"nvidia.com/gpu": 64}}, gang(2)).eligible == 1


def test_a_node_whose_room_is_not_known_has_none():
    cluster = a_cluster()
    assert refused(cluster, {}, gang(1)).free == 0


def test_the_spec_says_what_is_asked():
    spec = TrainingJobSpec.model_validate(
        {
            "nodes": 3,
            "placement": {"within": {"level": "leaf", "required": True}, "avoidNodes": ["bad"]},
            "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "2"}}}]}},
        }
    )
    asked = request("default/train", spec, avoid=["worse"])
    assert asked.requests == {"nvidia.com/gpu": 8, "cpu": 2000, "pods": 1}
    assert (asked.nodes, asked.level, asked.required, asked.avoid) == (3, "leaf", True, {"bad", "worse"})


# Why not -----------------------------------------------------------------------------------------------------------------


def test_a_refusal_says_how_many_there_are_and_how_many_are_free():
    cluster = a_cluster()
    found = refused(cluster, free_but(cluster, "a1-0", "a1-1", "a2-0", "b1-0", "b1-1", "b2-0"), gang(4))
    assert found.message == "needs 4 nodes; 8 are eligible, 2 of them are free"
    assert found.unblock == ("2 more free nodes",)
    assert (found.best_domain, found.best_free, found.best_total) == ("cluster", 2, 8)
    assert found.could_ever_fit


def test_a_refusal_within_a_level_names_the_domain_that_comes_closest():
    cluster = a_cluster()
    found = refused(cluster, only_free(cluster, "b1-0", "b2-1"), gang(4, level="spine", required=True))
    assert found.message == (
        "needs 4 nodes within one spine; 8 are eligible, 2 of them are free; the best spine, b, has 2 free of 4"
    )
    assert found.unblock == ("2 more free nodes in spine b",)
    assert found.holds == ("b1-0", "b2-1")


def test_a_refusal_says_what_the_required_level_costs():
    cluster = a_cluster()
    free = only_free(cluster, "a1-0", "a1-1", "b1-0", "b1-1")
    found = refused(cluster, free, gang(4, level="spine", required=True))
    assert found.unblock == (
        "2 more free nodes in spine a",
        "without spec.placement.within.required it would start now, over 2 domains of level spine",
    )


def test_a_leaf_is_named_with_its_spine():
    cluster = a_cluster()
    found = refused(cluster, only_free(cluster, "b2-1"), gang(2, level="leaf", required=True))
    assert "the best leaf, b/leaf-2, has 1 free of 2" in found.message


def test_a_domain_that_could_never_hold_the_gang_is_not_the_best():
    cluster = {
        **{n: a_node(n, spine="small", leaf="1") for n in ("s1", "s2")},
        **{n: a_node(n, spine="large", leaf="1") for n in ("l1", "l2", "l3")},
    }
    found = refused(cluster, only_free(cluster, "s1", "s2", "l1"), gang(3, level="spine", required=True))
    assert (found.best_domain, found.holds) == ("large", ("l1",))


def test_a_gang_that_no_domain_could_hold_keeps_nothing_from_others():
    cluster = a_cluster()
    found = refused(cluster, free_but(cluster), gang(6, level="spine", required=True))
    assert (found.could_ever_fit, found.holds) == (False, ())
    assert found.unblock[0] == "no spine has 6 eligible nodes: a broader spec.placement.within.level"


def test_too_few_eligible_nodes_are_explained_by_what_keeps_the_others_out():
    cluster = {
        "ok": a_node("ok"),
        "off": a_node("off", ready=False),
        "drained": a_node("drained", cordoned=True),
        "small-1": a_node("small-1", gpus=4),
        "small-2": a_node("small-2", gpus=4),
        "kept": a_node("kept", taints=[Taint("team", "other", "NoSchedule")]),
    }
    found = refused(cluster, free_but(cluster), gang(2))
    assert found.message == (
        "needs 2 nodes; 1 is eligible, 1 of them is free; 2 are out: offers less than the 8 nvidia.com/gpu of a member; "
        "1 is out: cordoned; 1 is out: not ready"
    )
    assert found.unblock == ("1 more eligible node",)
    assert not found.could_ever_fit


def test_a_required_level_that_does_not_exist_is_answered_with_those_that_do():
    cluster = a_cluster()
    found = refused(cluster, free_but(cluster), gang(2, level="rack", required=True))
    assert found.message == (
        "needs 2 nodes within one rack, but no level is called so; the cluster's levels are: spine, leaf"
    )
    assert (found.could_ever_fit, found.holds) == (False, ())


def test_an_empty_cluster_is_answered_as_well():
    assert refused({}, {}, gang(1)).message == "needs 1 node; 0 are eligible, 0 of them are free"


# What holds in general ---------------------------------------------------------------------------------------------------


@st.composite
def situations(draw):
    """A cluster, what is free of it, and a gang that wants some of it."""
    cluster = draw(clusters())
    free = free_but(cluster, *some_of(draw, cluster))
    level = draw(st.sampled_from([None, "spine", "leaf"]))
    return cluster, free, gang(draw(st.integers(1, 6)), level=level, required=level is not None and draw(st.booleans()))


def _depth_of(tree, nodes) -> int:
    """How long the path is that all of these nodes share."""
    return max(depth for depth in range(len(tree.levels) + 1) if len({tree.domain(n, depth) for n in nodes}) == 1)


def _open(cluster, free):
    return [name for name in cluster if free[name] != FULL]


@given(situations())
def test_all_nodes_or_none_and_none_only_if_no_choice_would_do(situation):
    cluster, free, wanted = situation
    tree = a_tree(cluster)
    floor = tree.depth(wanted.level) if wanted.required else 0
    possible = any(_depth_of(tree, some) >= floor for some in combinations(_open(cluster, free), wanted.nodes))
    found = place(cluster, free, wanted)
    assert isinstance(found, Placement) == possible
    if isinstance(found, Placement):
        assert len(found.nodes) == len(set(found.nodes)) == wanted.nodes
        assert set(found.nodes) <= set(_open(cluster, free))
        assert _depth_of(tree, found.nodes) >= floor


@given(situations())
def test_no_choice_lies_in_a_narrower_domain(situation):
    cluster, free, wanted = situation
    tree = a_tree(cluster)
    found = place(cluster, free, wanted)
    if isinstance(found, Placement):
        narrowest = max(_depth_of(tree, some) for some in combinations(_open(cluster, free), wanted.nodes))
        wished = tree.depth(wanted.level) if wanted.level and not wanted.required else 0
        assert _depth_of(tree, found.nodes) == narrowest or narrowest < wished


@given(situations())
def test_a_wished_level_is_never_spread_over_more_domains_than_needed(situation):
    cluster, free, wanted = situation
    tree = a_tree(cluster)
    found = place(cluster, free, wanted)
    if isinstance(found, Placement) and wanted.level is not None and not wanted.required:
        depth = tree.depth(wanted.level)
        every = combinations(_open(cluster, free), wanted.nodes)
        assert found.spans[wanted.level] == min(len({tree.domain(n, depth) for n in some}) for some in every)


@given(situations())
def test_the_domain_that_is_split_is_split_over_the_fewest_parts(situation):
    cluster, free, wanted = situation
    tree = a_tree(cluster)
    found = place(cluster, free, wanted)
    if isinstance(found, Placement) and (wanted.level is None or wanted.required):
        depth = _depth_of(tree, found.nodes)
        if depth < len(tree.levels):
            inside = [n for n in _open(cluster, free) if tree.domain(n, depth) == tree.domain(found.nodes[0], depth)]
            parts = [len({tree.domain(n, depth + 1) for n in some}) for some in combinations(inside, wanted.nodes)]
            assert len({tree.domain(n, depth + 1) for n in found.nodes}) == min(parts)


@given(situations())
def test_the_numbers_of_a_refusal_add_up(situation):
    cluster, free, wanted = situation
    found = place(cluster, free, wanted)
    if isinstance(found, Shortfall):
        assert found.best_free <= found.best_total <= found.eligible == len(cluster)
        assert found.best_free <= found.free == len(_open(cluster, free))
        assert found.could_ever_fit == isinstance(place(cluster, free_but(cluster), wanted), Placement)
        assert set(found.holds) <= set(_open(cluster, free))
        assert len(found.holds) == (found.best_free if found.could_ever_fit else 0)
        assert found.message
        assert found.unblock


@settings(max_examples=50)
@given(situations(), st.randoms())
def test_the_same_world_gives_the_same_answer_whatever_the_order_of_events(situation, shuffle):
    cluster, free, wanted = situation
    names = list(cluster)
    shuffle.shuffle(names)
    mixed = {name: cluster[name] for name in names}
    shuffle.shuffle(names)
    mixed_free = {name: free[name] for name in names}
    assert place(mixed, mixed_free, wanted) == place(cluster, free, wanted)


def test_a_thousand_of_five_thousand_nodes_are_placed_as_well_as_can_be():
    cluster = {
        n: a_node(n, spine=f"s{i // 250}", leaf=str(i // 16)) for i, n in enumerate(f"n{i}" for i in range(5000))
    }
    wanted = gang(1000)
    found = place_on(a_room(cluster, free_but(cluster, *list(cluster)[::2])).supply(wanted.demand), wanted)
    assert isinstance(found, Placement)
    assert (found.quality, found.spent) == ("optimal", False)
    # Eight spines are exactly full, with the leaves that are cut by their borders; a ninth spares so many leaves that it pays.
    assert found.spans == {"spine": 9, "leaf": 125}
    assert found.worked <= 2 * MOST_STATES
