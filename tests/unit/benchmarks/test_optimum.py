"""The optimum is what trying everything finds."""

from itertools import combinations
from random import Random

import pytest
from trainyard.topology.tree import Level, build
from trainyard.world.records import Node
from trainyard.world.supply import Supply, supply

from benchmarks.optimum import fewest_edges, optimum, ring_cost, ring_edges

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


def exhaustive(room: Supply, members: int, weights: list[float]) -> float:
    free = [position for position, slots in enumerate(room.slots) if slots]
    return min(ring_cost(room, chosen, weights) for chosen in combinations(free, members))  # sorted: depth-first


def test_six_nodes_by_hand():
    """Leaves of 2 and 1 below spine C, of 2 and 1 below D. Four members need two spines (2 edges of 4 each) and two leaves at
    least (the two pairs: 2 edges of 1): 10. Three fit below one spine, on two leaves: 2."""
    made = [Node(f"n{n}", "", {"core": "A", "spine": s, "leaf": leaf}, {}) for n, (s, leaf) in enumerate(
        [("C", "E"), ("C", "E"), ("C", "F"), ("D", "E"), ("D", "E"), ("D", "F")]
    )]  # fmt: skip
    room = supply(build(made, LEVELS), [1] * 6, [1] * 6, [None] * 6)
    for members, cost in ((4, 10.0), (3, 2.0), (2, 0.0), (6, 12.0)):
        found = optimum(room, members, [8.0, 4.0, 1.0])
        assert found is not None
        assert found.proven
        assert found.cost == found.bound == cost == exhaustive(room, members, [8.0, 4.0, 1.0])


@pytest.mark.parametrize("seed", range(25))
def test_it_equals_exhaustive_search(seed: int):
    room = a_cluster(seed, 13, 0.75)
    members = Random(seed).randint(2, 8)
    if room.free_in[0] < members:
        assert optimum(room, members, [8.0, 4.0, 1.0]) is None
        return
    for weights in ([8.0, 4.0, 1.0], [0.5, 1.0, 3.0]):
        found = optimum(room, members, weights)
        assert found is not None
        assert found.cost == pytest.approx(exhaustive(room, members, weights), abs=1e-6)


def test_edges_are_counted_at_every_level_that_they_leave():
    """n0 and n1 share a leaf, n2 is below another spine. Shuffled over two leaves, a ring of four has four edges, sorted
    two."""
    room = a_cluster(3, 30, 1.0)
    some = [*range(12)]
    shuffled = Random(1).sample(some, len(some))
    assert all(a >= b for a, b in zip(ring_edges(room, shuffled), fewest_edges(room, shuffled), strict=True))
    leaves = {room.index.innermost[n] for n in some}
    assert fewest_edges(room, shuffled)[-1] == len(leaves)
