"""Domains are paths; what is not known is nobody's neighbour."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import LEVELS, a_cluster, a_node, a_tree, clusters
from trainyard.contract.natural import natural
from trainyard.topology.tree import build


def test_the_same_leaf_name_below_two_spines_is_two_domains():
    tree = a_tree(a_cluster(spines="ab", leaves=1))
    assert tree.domain("a1-0", 2) == ("a", "leaf-1")
    assert tree.domain("a1-0", 2) == tree.domain("a1-1", 2)
    assert tree.domain("a1-0", 2) != tree.domain("b1-0", 2)


def test_nodes_without_a_label_share_no_domain_of_that_level():
    nodes = [a_node("x", spine="a"), a_node("y", spine="a"), a_node("z"), a_node("w")]
    tree = build(nodes, LEVELS)
    assert tree.domain("x", 1) == tree.domain("y", 1) == ("a",)
    assert len({tree.domain(n.name, 2) for n in nodes}) == 4
    assert tree.domain("z", 1) != tree.domain("w", 1)
    assert [name for name in tree.paths if len(tree.known(name)) < 2] == ["w", "z", "x", "y"]


def test_a_leaf_below_an_unknown_spine_is_shared_with_nobody():
    tree = build([a_node("x", leaf="1"), a_node("y", leaf="1")], LEVELS)
    assert tree.domain("x", 2) != tree.domain("y", 2)
    assert tree.known("x") == ()


def test_an_empty_label_is_no_label():
    tree = build([a_node("x", spine="", leaf="1"), a_node("y", spine="", leaf="1")], LEVELS)
    assert tree.domain("x", 1) != tree.domain("y", 1)


def test_known_ends_where_the_labels_do():
    tree = build([a_node("x", spine="a"), a_node("y", spine="a", leaf="1")], LEVELS)
    assert tree.known("x") == ("a",)
    assert tree.known("y") == ("a", "1")


def test_numbers_in_names_order_as_numbers():
    names = ["rack-10", "rack-2", "rack-1", "rack-02", "2", "10", "a", "rack"]
    assert sorted(names, key=natural) == ["2", "10", "a", "rack", "rack-1", "rack-02", "rack-2", "rack-10"]


def test_a_level_is_found_by_its_name():
    tree = a_tree(a_cluster())
    assert (tree.depth("spine"), tree.depth("leaf"), tree.depth("rack")) == (1, 2, None)


def test_without_levels_all_nodes_are_one_domain():
    tree = build(a_cluster().values(), ())
    assert {tree.domain(node, 0) for node in tree.paths} == {()}


@given(st.text(), st.text())
def test_natural_order_tells_any_two_names_apart(a: str, b: str):
    assert (natural(a) == natural(b)) == (a == b)
    assert (natural(a) < natural(b)) != (natural(b) <= natural(a))


@given(clusters(), st.randoms())
def test_the_tree_does_not_depend_on_the_order_of_events(nodes, shuffle: random.Random):
    mixed = list(nodes.values())
    shuffle.shuffle(mixed)
    assert list(build(mixed, LEVELS).paths.items()) == list(a_tree(nodes).paths.items())


@given(clusters())
def test_the_members_of_a_domain_are_consecutive(nodes):
    tree = a_tree(nodes)
    for depth in (1, 2):
        met = [tree.domain(node, depth) for node in tree.paths]
        runs = [domain for n, domain in enumerate(met) if n == 0 or met[n - 1] != domain]
        assert len(runs) == len(set(runs))


@given(clusters())
def test_the_index_is_the_tree_by_number(nodes):
    tree = a_tree(nodes)
    index = tree.index
    assert index.names == tuple(tree.paths)
    for depth, numbers in enumerate(index.at_depth):
        found = {index.domains[n].path: index.names[index.domains[n].first : index.domains[n].end] for n in numbers}
        wanted: dict[object, list[str]] = {}
        for name in tree.paths:
            wanted.setdefault(tree.domain(name, depth), []).append(name)
        assert found == {path: tuple(members) for path, members in wanted.items()}
    for number, domain in enumerate(index.domains):
        assert all(index.domains[child].parent == number for child in domain.children)
    for position, name in enumerate(index.names):
        around = [index.domains[n].path for n in index.around(position)]
        assert around == [tree.domain(name, depth) for depth in range(len(tree.levels), -1, -1)]


@given(clusters())
def test_the_domains_of_a_level_share_out_the_nodes(nodes):
    tree = a_tree(nodes)
    for depth, ids in enumerate(tree.index.at_depth):
        held = [tree.index.names[n] for i in ids for n in range(tree.index.domains[i].first, tree.index.domains[i].end)]
        assert sorted(held) == sorted(nodes)
        for i in ids:
            domain = tree.index.domains[i]
            assert {tree.domain(tree.index.names[n], depth) for n in range(domain.first, domain.end)} == {domain.path}


@given(clusters())
def test_nobody_is_in_the_domain_of_a_node_without_the_label(nodes):
    tree = a_tree(nodes)
    for depth, level in enumerate(LEVELS, start=1):
        for node in nodes.values():
            shared = [other for other in nodes if tree.domain(other, depth) == tree.domain(node.name, depth)]
            assert node.name in shared
            if level.label not in node.labels:
                assert shared == [node.name]


@given(st.lists(st.tuples(st.sampled_from(["rack-", "r", ""]), st.integers(0, 10**6))))
def test_names_that_differ_in_a_number_stand_in_the_order_of_the_number(parts):
    ordered = sorted((f"{prefix}{number}" for prefix, number in parts), key=natural)
    assert ordered == [f"{prefix}{number}" for prefix, number in sorted(parts)]
