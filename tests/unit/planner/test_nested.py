"""Hierarchical sums: which ranks sum together at which level, and what it saves where the upper links are slow."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.trainer import TrainerConfig
from trainyard.planner.collectives import Collective
from trainyard.planner.model import model_of
from trainyard.planner.nested import level_crossed, nested
from trainyard.planner.traffic import REPLICATE, Mesh, traffic

LAB = [(f"spine-{s}", f"leaf-{s}{leaf}", f"node-{s}{leaf}{n}") for s in "ab" for leaf in (1, 2) for n in (0, 1)]


def test_groups_are_the_domains_of_each_level_from_the_narrowest_on():
    assert nested(LAB, 8, 1) == (2, 2, 2)
    assert nested(LAB[:4], 4, 1) == (2, 2)
    assert nested(LAB, 4, 2) == (2, 2)  # every second node: alone on its leaf, two on a spine
    assert nested([path for path in LAB[:2] for _ in range(4)], 8, 1) == (4, 2)  # four processes on each of two nodes


def test_where_domains_hold_unequally_many_members_the_level_does_not_count():
    assert nested([LAB[0], LAB[1], LAB[2], LAB[4], LAB[5], LAB[6]], 6, 1) == (3, 2)
    assert nested([LAB[0], LAB[2], LAB[1], LAB[3]], 4, 1) == (4,)
    assert nested([("n0",), ("n1",), ("n2",)], 3, 1) == (3,)


@given(st.permutations(LAB), st.sampled_from([(8, 1), (4, 1), (4, 2), (2, 4)]))
def test_groups_multiply_to_the_axis_whatever_the_order(paths, axis):
    size, stride = axis
    product = 1
    for members in nested(paths, size, stride):
        product *= members
    assert product == size


def test_a_group_crosses_the_broadest_level_at_which_its_members_part():
    levels = ("spine", "leaf")
    assert level_crossed(LAB, levels) == "spine"
    assert level_crossed(LAB[:4], levels) == "leaf"
    assert level_crossed(LAB[:2], levels) == "node"
    assert level_crossed([LAB[0], LAB[0]], levels) == "inside the node"
    assert level_crossed([("n0",), ("n1",)], ()) == "node"


def test_of_a_hierarchical_sum_a_part_alone_crosses_the_upper_levels():
    model = replace(model_of(TrainerConfig()), hierarchical=True)
    flat = [entry for entry in traffic(model, Mesh(replicate=8)) if entry.axis == REPLICATE]
    levels = [entry for entry in traffic(model, Mesh(replicate=8), nested=(2, 2, 2)) if entry.axis == REPLICATE]
    whole = flat[0].bytes
    assert [(e.collective, e.size, e.stride, e.bytes / whole) for e in levels] == [
        (Collective.ALL_TO_ALL, 2, 1, 1.0),
        (Collective.ALL_GATHER, 2, 1, 1.0),
        (Collective.ALL_TO_ALL, 2, 2, 0.5),
        (Collective.ALL_GATHER, 2, 2, 0.5),
        (Collective.ALL_REDUCE, 2, 4, 0.25),
    ]
