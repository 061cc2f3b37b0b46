"""The optimum is what trying everything finds."""

from itertools import combinations
from random import Random

import pytest
from trainyard.planner.cost import cost, default_edges, touched
from trainyard.topology.tree import Level, build
from trainyard.world.records import Node
from trainyard.world.supply import Supply, supply

from benchmarks.optimum import Price, fewest_edges, optimum, price_of, ring_cost, ring_edges

STEEP = Price((8.0, 4.0, 1.0), (8.0, 4.0, 1.0, 0.25))
FLAT = Price((0.5, 1.0, 3.0), (1.0, 1.0, 1.0, 1.0))
LEVELS = (Level("core", "core"), Level("spine", "spine"), Level("leaf", "leaf"))


def a_cluster(seed: int, nodes: int, share: float) -> Supply:
    """Nodes at random below two cores with two spines of three leaves each, so large a share of them free."""
    random = Random(seed)
    made = [
        Node(f"n{n}", "", {"core": random.choice("AB"), "spine": random.choice("CD"), "leaf": random.choice("EFG")}, {})
        for n in range(nodes)
    ]
    tree = build(made, LEVELS)
    return supply(tree, [int(random.random() < share) for _ in made], [1] * nodes, [None] * nodes)


def exhaustive(room: Supply, members: int, price: Price) -> float:
    free = [position for position, slots in enumerate(room.slots) if slots]
    return min(ring_cost(room, chosen, price) for chosen in combinations(free, members))  # sorted: depth-first


def test_six_nodes_by_hand():
    """Leaves of 2 and 1 below spine C, of 2 and 1 below D. Four members need two spines (2 edges of 4 each) and two leaves at
    least (the two pairs: 2 edges of 1), and each pays the pace of a core: 10 + 4 * 4. Three fit below one spine, on two
    leaves: 2, and a pace of 1 each. Two share a leaf: their pace is a third."""
    made = [Node(f"n{n}", "", {"core": "A", "spine": s, "leaf": leaf}, {}) for n, (s, leaf) in enumerate(
        [("C", "E"), ("C", "E"), ("C", "F"), ("D", "E"), ("D", "E"), ("D", "F")]
    )]  # fmt: skip
    room = supply(build(made, LEVELS), [1] * 6, [1] * 6, [None] * 6)
    for members, least in ((4, 10.0 + 16), (3, 2.0 + 3), (2, 0.5), (6, 12.0 + 24)):
        found = optimum(room, members, STEEP)
        assert found is not None
        assert found.proven
        assert found.cost == pytest.approx(least)
        assert found.bound == pytest.approx(least)
        assert exhaustive(room, members, STEEP) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(25))
def test_it_equals_exhaustive_search(seed: int):
    room = a_cluster(seed, 13, 0.75)
    members = Random(seed).randint(2, 8)
    if room.free_in[0] < members:
        assert optimum(room, members, STEEP) is None
        return
    for price in (STEEP, FLAT, price_of(default_edges(3), 3)):
        found = optimum(room, members, price)
        assert found is not None
        assert found.cost == pytest.approx(exhaustive(room, members, price), rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_a_ring_in_depth_first_order_costs_what_the_planner_says(seed: int):
    room = a_cluster(seed, 30, 1.0)
    chosen = sorted(Random(seed).sample(range(30), 7))
    edges = default_edges(3)
    assert ring_cost(room, chosen, price_of(edges, 3)) == pytest.approx(
        cost(edges, 7, touched(room.index, chosen)).total
    )


def test_edges_are_counted_at_every_level_that_they_leave():
    """n0 and n1 share a leaf, n2 is below another spine. Shuffled over two leaves, a ring of four has four edges, sorted
    two."""
    room = a_cluster(3, 30, 1.0)
    some = [*range(12)]
    shuffled = Random(1).sample(some, len(some))
    assert all(a >= b for a, b in zip(ring_edges(room, shuffled), fewest_edges(room, shuffled), strict=True))
    leaves = {room.index.innermost[n] for n in some}
    assert fewest_edges(room, shuffled)[-1] == len(leaves)
