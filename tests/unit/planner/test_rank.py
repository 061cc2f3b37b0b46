"""The order of ranks leaves every domain as rarely as any order could."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import a_cluster, a_node, a_tree, clusters, in_rank_order, some_of
from trainyard.planner.rank import crossings, spans


@st.composite
def gangs(draw, most=6):
    """A tree and some of its nodes."""
    nodes = draw(clusters(most=most))
    return a_tree(nodes), some_of(draw, nodes)


@settings(max_examples=60)
@given(gangs())
def test_no_order_crosses_less_at_any_level(gang):
    tree, members = gang
    planned = crossings(tree, in_rank_order(tree, members))
    every = [crossings(tree, tried) for tried in permutations(members)]
    assert all(planned[level.name] == min(found[level.name] for found in every) for level in tree.levels)


@given(gangs(most=12))
def test_every_domain_is_left_once_and_one_that_holds_all_never(gang):
    tree, members = gang
    assert crossings(tree, in_rank_order(tree, members)) == {
        level: 0 if domains <= 1 else domains for level, domains in spans(tree, members).items()
    }


@given(gangs(most=12), st.randoms())
def test_the_order_does_not_depend_on_how_the_nodes_are_given(gang, shuffle):
    tree, members = gang
    mixed = list(members)
    shuffle.shuffle(mixed)
    assert sorted(in_rank_order(tree, mixed)) == sorted(members)
    assert in_rank_order(tree, mixed) == in_rank_order(tree, members)


def test_the_fullest_domain_comes_first_and_within_it_again():
    nodes = a_cluster(spines="ab", leaves=2, nodes_per_leaf=3)
    members = ["a1-0", "b1-0", "b2-0", "b2-1", "a2-2"]
    assert in_rank_order(a_tree(nodes), members) == ("b2-0", "b2-1", "b1-0", "a1-0", "a2-2")


def test_equal_domains_and_nodes_stand_in_natural_order():
    nodes = {
        n: a_node(n, spine="s", leaf=leaf)
        for n, leaf in [("n10", "rack-2"), ("n9", "rack-2"), ("n1", "rack-10"), ("n2", "rack-10")]
    }
    assert in_rank_order(a_tree(nodes), nodes) == ("n9", "n10", "n1", "n2")


def test_a_gang_of_one_has_no_edges():
    tree = a_tree(a_cluster())
    assert crossings(tree, ["a1-0"]) == {"spine": 0, "leaf": 0}


# Several members on a node, and groups ----------------------------------------------------------------------------------


@given(gangs(), st.data())
def test_a_node_with_several_members_stands_there_in_a_row(gang, data):
    tree, members = gang
    several = [node for node in members for _ in range(data.draw(st.integers(1, 3)))]
    ranked = in_rank_order(tree, several)
    assert sorted(ranked) == sorted(several)
    changes = sum(a != b for a, b in zip(ranked, (*ranked[1:], *ranked[:1]), strict=True))
    assert changes == (len(members) if len(members) > 1 else 0)
    assert crossings(tree, ranked) == crossings(tree, in_rank_order(tree, members))


def test_rank_0_is_where_most_members_are_even_if_groups_have_to_begin_there():
    nodes = a_cluster(spines="a", leaves=3, nodes_per_leaf=5)
    members = [f"a{leaf}-{n}" for leaf, number in [(1, 4), (2, 5), (3, 3)] for n in range(number)]
    found = in_rank_order(a_tree(nodes), members, group=4)
    assert [node[:2] for node in found] == ["a2"] * 5 + ["a3"] * 3 + ["a1"] * 4
