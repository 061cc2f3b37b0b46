"""By how much a job is behind after a repair."""

import pytest
from support.clusters import a_cluster, a_tree
from trainyard.planner.cost import TIER
from trainyard.planner.repair_cost import COMMUNICATION_SHARE, Terms, behind, slowdown

TERMS = Terms(accelerators=8, unsaved_seconds=100.0, horizon_seconds=1000.0)
INDEX = a_tree(a_cluster()).index


def test_a_gang_that_is_as_fast_as_before_is_behind_by_what_is_repeated_and_the_stop():
    assert behind(4, 4, 1.0, 50.0, TERMS) == 8 * 150.0


def test_a_slower_step_costs_its_share_of_the_horizon():
    assert behind(4, 4, 1.25, 50.0, TERMS) == pytest.approx(8 * (150.0 + 1000.0 * 0.2))


def test_members_that_are_missing_cost_their_share_of_the_horizon():
    assert behind(4, 3, 1.0, 50.0, TERMS) == 8 * (150.0 + 1000.0 / 4)


def test_a_faster_step_makes_up_for_it():
    assert behind(4, 4, 0.5, 50.0, TERMS) < 0.0


def test_a_gang_without_accelerators_counts_its_members():
    assert behind(4, 4, 1.0, 50.0, Terms()) == 4 * 50.0


def test_each_level_that_is_left_makes_the_slowest_edge_dearer():
    leaf, spine, cluster = ["a1-0", "a1-1"], ["a1-0", "a2-0"], ["a1-0", "b1-0"]
    share = COMMUNICATION_SHARE
    assert slowdown(INDEX, leaf, leaf) == 1.0
    assert slowdown(INDEX, leaf, spine) == pytest.approx(1 - share + share * TIER)
    assert slowdown(INDEX, leaf, cluster) == pytest.approx(1 - share + share * TIER**2)
    assert slowdown(INDEX, spine, leaf) == pytest.approx(1 - share + share / TIER)


def test_a_prediction_counts_where_there_is_one():
    terms = Terms(pace=lambda nodes: float(len(set(nodes))))
    assert slowdown(INDEX, ["a1-0", "a1-1"], ["a1-0", "a1-1", "a2-0"], terms) == 1.5


def test_nothing_is_slower_than_what_is_not_known():
    assert slowdown(INDEX, ["gone"], ["a1-0"]) == 1.0
