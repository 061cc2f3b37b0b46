"""Labels that change under a running job."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_cluster, a_tree, clusters
from trainyard.planner.rank import crossings, spans
from trainyard.topology.moved import moved
from trainyard.topology.tree import Level, build

NODES = a_cluster(spines="ab", leaves=2, nodes_per_leaf=2)
TREE = a_tree(NODES)
GANG = ("a1-0", "a1-1", "a2-0", "a2-1")
SPANS, EDGES = spans(TREE, GANG), crossings(TREE, GANG)


def relabelled(name, **place):
    labels = {f"net/{level}": value for level, value in place.items()}
    return a_tree(NODES | {name: replace(NODES[name], labels=labels)})


def test_the_same_labels_say_nothing():
    assert moved(TREE, GANG, SPANS, EDGES) is None


def test_a_node_in_another_leaf_is_told_with_numbers():
    said = moved(relabelled("a2-1", spine="b", leaf="leaf-9"), GANG, SPANS)
    assert said is not None
    assert "spine: the nodes lie in 2 domains instead of 1" in said
    assert "leaf: the nodes lie in 3 domains instead of 2" in said


def test_a_node_that_lost_its_label_is_told():
    assert "leaf: the nodes lie in 3 domains" in (moved(relabelled("a1-1", spine="a"), GANG, SPANS) or "")


def test_nodes_that_changed_places_are_told_by_the_rings_edges():
    swapped = {
        "a1-1": replace(NODES["a1-1"], labels=NODES["a2-0"].labels),
        "a2-0": replace(NODES["a2-0"], labels=NODES["a1-1"].labels),
    }
    tree = a_tree(NODES | swapped)
    assert moved(tree, GANG, SPANS) is None
    assert "leaf: 4 edges of the ring leave a domain instead of 2" in (moved(tree, GANG, SPANS, EDGES) or "")


def test_a_node_elsewhere_that_changes_is_nobodys_business():
    assert moved(relabelled("b1-0", spine="z", leaf="z"), GANG, SPANS, EDGES) is None


def test_levels_that_came_or_went_are_named():
    levels = (Level("spine", "net/spine"), Level("rack", "net/leaf"))
    said = moved(build(NODES.values(), levels), GANG, SPANS) or ""
    assert "the level leaf is gone" in said
    assert "the level rack is new" in said


def test_a_node_that_is_gone_is_not_a_label_that_changed():
    remaining = a_tree({name: node for name, node in NODES.items() if not name.startswith("a2")})
    assert moved(remaining, GANG, SPANS, EDGES) is None


def test_several_members_on_one_node_are_one_place():
    gang = ("a1-0", "a1-0", "a1-1", "a1-1")
    assert moved(TREE, gang, spans(TREE, gang), crossings(TREE, gang)) is None


@given(clusters(), st.randoms())
def test_any_gang_on_the_tree_that_it_was_placed_on_has_not_moved(nodes, shuffle: random.Random):
    tree = a_tree(nodes)
    gang = list(nodes)
    shuffle.shuffle(gang)
    assert moved(tree, gang, spans(tree, gang), crossings(tree, gang)) is None
