"""What nodes cost that are given, in the order in which they are given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import EMPTY, MEMBER, a_cluster, a_room, clusters
from trainyard.planner.place import Placement, place
from trainyard.planner.placed import placed
from trainyard.planner.request import Request


def wanted(nodes):
    return Request("default/train", nodes, MEMBER)


def all_free(cluster):
    return a_room(cluster, dict.fromkeys(cluster, EMPTY)).supply(wanted(1).demand)


@given(clusters(), st.integers(1, 9))
def test_what_place_chooses_costs_here_what_it_says(cluster, members):
    supply = all_free(cluster)
    found = place(supply, wanted(min(members, len(cluster))))
    assert isinstance(found, Placement)
    same = placed(supply, wanted(len(found.nodes)), found.nodes)
    assert (same.spans, same.crossings) == (found.spans, found.crossings)
    assert same.cost.total == pytest.approx(found.cost.total)


@given(clusters(), st.data())
def test_the_bound_is_below_what_any_place_costs(cluster, data):
    supply = all_free(cluster)
    nodes = data.draw(st.lists(st.sampled_from(list(cluster)), min_size=1, unique=True))
    best = place(supply, wanted(len(nodes)))
    assert isinstance(best, Placement)
    given_ = placed(supply, wanted(len(nodes)), nodes)
    assert given_.bound <= best.cost.total * (1 + 1e-9)
    assert given_.cost.total >= best.cost.total * (1 - 1e-9)


def test_an_order_that_goes_back_and_forth_costs_more_than_one_that_does_not():
    supply = all_free(a_cluster())
    straight = placed(supply, wanted(4), ["a1-0", "a1-1", "b1-0", "b1-1"])
    zigzag = placed(supply, wanted(4), ["a1-0", "b1-0", "a1-1", "b1-1"])
    assert zigzag.cost.total > straight.cost.total
    assert zigzag.gap > 0.0
