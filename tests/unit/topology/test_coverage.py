"""How complete and how plausible the labels are."""

import random
from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import LEVELS, a_cluster, a_node, clusters
from trainyard.topology.coverage import coverage
from trainyard.topology.detection import Detected
from trainyard.topology.tree import build


def covered(nodes, levels=LEVELS):
    return coverage(build(nodes, levels), nodes, Detected(levels=tuple(levels)))


def test_a_whole_cluster_has_no_gaps():
    found = covered(a_cluster(spines="ab", leaves=2, nodes_per_leaf=3).values())
    assert (found.nodes, found.incomplete) == (12, 0)
    spine, leaf = found.levels
    assert (spine.labelled, spine.lacking, spine.domains, spine.fewest, spine.median, spine.most) == (
        12,
        (),
        2,
        6,
        6,
        6,
    )
    assert (leaf.labelled, leaf.lacking, leaf.domains, leaf.fewest, leaf.median, leaf.most) == (12, (), 4, 3, 3, 3)


def test_leaves_counted_anew_below_every_spine_are_conflicts_and_many_domains():
    leaf = covered(a_cluster(spines="abc", leaves=2, nodes_per_leaf=1).values()).levels[1]
    assert (leaf.conflicts, leaf.domains) == (("leaf-1", "leaf-2"), 6)


def test_a_name_below_parents_that_nobody_knows_is_a_gap_and_no_conflict():
    nodes = [a_node("x", spine="a", leaf="1"), a_node("y", leaf="1"), a_node("z", leaf="1")]
    spine, leaf = covered(nodes).levels
    assert spine.lacking == ("y", "z")
    assert (leaf.labelled, leaf.domains, leaf.conflicts) == (3, 1, ())


def test_gaps_are_named_in_natural_order_and_those_without_a_value_counted():
    nodes = [a_node(f"n{n}", spine="a", leaf=leaf) for n, leaf in ((10, None), (2, ""), (1, "1"))]
    found = covered(nodes)
    leaf = found.levels[1]
    assert (leaf.lacking, leaf.empty, leaf.labelled) == (("n2", "n10"), 1, 1)
    assert found.incomplete == 2


def test_sizes_of_uneven_domains():
    nodes = [a_node(f"n{leaf}-{n}", spine="a", leaf=str(leaf)) for leaf in (1, 2, 5, 9) for n in range(leaf)]
    leaf = covered(nodes).levels[1]
    assert (leaf.fewest, leaf.median, leaf.most) == (1, 2, 9)


def test_nodes_without_accelerators_are_no_gaps():
    nodes = [a_node("gpu", spine="a", leaf="1"), a_node("cpu", gpus=0)]
    found = covered(nodes)
    assert (found.nodes, found.incomplete) == (1, 0)
    assert covered(nodes[1:]).incomplete == 1


def test_a_level_that_nobody_carries_has_no_domains():
    leaf = covered([a_node("x", spine="a"), a_node("y", spine="a")]).levels[1]
    assert (leaf.labelled, leaf.domains, leaf.fewest, leaf.median, leaf.most) == (0, 0, 0, 0, 0)


def test_without_levels_or_nodes_there_is_nothing_to_cover():
    assert covered([a_node("x")], ()).levels == ()
    assert (covered([]).nodes, [level.domains for level in covered([]).levels]) == (0, [0, 0])


@given(clusters(most=9), st.randoms())
def test_it_is_what_one_counts_by_hand_whatever_the_order(nodes, shuffle: random.Random):
    found = covered(list(nodes.values()))
    mixed = list(nodes.values())
    shuffle.shuffle(mixed)
    assert covered(mixed) == found
    spine, leaf = found.levels
    for level in found.levels:
        assert level.labelled + len(level.lacking) == found.nodes == len(nodes)
        assert level.fewest <= level.median <= level.most
    places = [(n.labels.get("net/spine"), n.labels.get("net/leaf")) for n in nodes.values()]
    known = [place for place in places if None not in place]
    sizes = [known.count(place) for place in set(known)]
    assert (leaf.domains, leaf.most, leaf.median) == (
        len(sizes),
        max(sizes, default=0),
        median_low(sizes) if sizes else 0,
    )
    names = {name for _, name in known}
    assert set(leaf.conflicts) == {name for name in names if len({s for s, n in known if n == name}) > 1}
    assert found.incomplete == sum(None in place for place in places)
    assert spine.conflicts == ()
