"""Which domains take the ranks that have lost their nodes."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import a_cluster, a_tree, clusters
from trainyard.planner import vacancies as module
from trainyard.planner.vacancies import Gang, ancestor, edges, fill


def leaf(tree, *names):
    """The number of the domain of a path."""
    return next(n for n, domain in enumerate(tree.index.domains) if domain.path == names)


@pytest.fixture
def tree():
    return a_tree(a_cluster("ab", leaves=3, nodes_per_leaf=4))


def test_a_rank_goes_home_where_there_is_room(tree):
    a1, a2 = leaf(tree, "a", "leaf-1"), leaf(tree, "a", "leaf-2")
    found = fill(Gang(tree.index, [a1, -1, a1, a1], {1: a1}, {a1: 1, a2: 4}))
    assert found is not None
    assert found.domains == {1: a1}
    assert found.edges == (0, 0)


def test_at_a_border_it_goes_to_the_other_side(tree):
    a1, a2, a3 = (leaf(tree, "a", f"leaf-{n}") for n in (1, 2, 3))
    found = fill(Gang(tree.index, [a1, a1, -1, a2, a2, a2], {2: a1}, {a2: 1, a3: 4}))
    assert found is not None
    assert found.domains == {2: a2}
    assert found.edges == (0, 2)


def test_neighbours_that_are_lost_together_stay_together(tree):
    a1, a2, a3 = (leaf(tree, "a", f"leaf-{n}") for n in (1, 2, 3))
    found = fill(Gang(tree.index, [a1, -1, -1, a1], {1: a1, 2: a1}, {a2: 1, a3: 2}))
    assert found is not None
    assert found.domains == {1: a3, 2: a3}


def test_the_spine_is_not_left_while_it_has_room(tree):
    a1, a2, b1 = leaf(tree, "a", "leaf-1"), leaf(tree, "a", "leaf-2"), leaf(tree, "b", "leaf-1")
    found = fill(Gang(tree.index, [a1, -1, a1], {1: a1}, {a2: 1, b1: 4}))
    assert found is not None
    assert found.domains == {1: a2}


def test_nobody_leaves_the_domain_that_is_required(tree):
    a1, b1 = leaf(tree, "a", "leaf-1"), leaf(tree, "b", "leaf-1")
    spine = leaf(tree, "a")
    assert fill(Gang(tree.index, [a1, -1, a1], {1: a1}, {b1: 4}, within=spine)) is None


def test_where_ways_are_equal_spares_are_used(tree):
    a1, a2, a3 = (leaf(tree, "a", f"leaf-{n}") for n in (1, 2, 3))
    found = fill(Gang(tree.index, [a1, -1, a1], {1: a1}, {a2: 1, a3: 3}, spares={a3: 1}))
    assert found is not None
    assert found.domains == {1: a3}


def test_a_segment_that_lost_all_its_ranks_goes_somewhere_as_a_whole(tree):
    a1, a2, a3, b1 = *(leaf(tree, "a", f"leaf-{n}") for n in (1, 2, 3)), leaf(tree, "b", "leaf-1")
    gang = Gang(tree.index, [a1, a1, -1, -1], {2: a2, 3: a2}, {a2: 1, a3: 1, b1: 2}, segment=2, segment_depth=2)
    found = fill(gang)
    assert found is not None
    assert found.domains == {2: b1, 3: b1}


@st.composite
def gangs(draw):
    tree = a_tree(draw(clusters(most=8)))
    leaves = list(tree.index.at_depth[-1])
    size = draw(st.integers(1, 5))
    homes = {rank: draw(st.sampled_from(leaves)) for rank in range(size) if draw(st.booleans())}
    seated = [-1 if rank in homes else draw(st.sampled_from(leaves)) for rank in range(size)]
    room = {number: draw(st.integers(0, 2)) for number in leaves}
    depth = draw(st.integers(0, len(tree.levels)))
    segment = draw(st.sampled_from([1, 1, size])) if size > 1 else 1
    return Gang(
        tree.index,
        seated,
        homes,
        room,
        within=draw(st.sampled_from(list(tree.index.at_depth[depth]))),
        segment=segment,
        segment_depth=draw(st.integers(1, len(tree.levels))),
    )


def every_way(gang):
    for chosen in product(gang.room, repeat=len(gang.homes)):
        if any(chosen.count(domain) > gang.room[domain] for domain in chosen):
            continue
        depth = gang.index.domains[gang.within].depth
        if any(ancestor(gang.index, domain, depth) != gang.within for domain in chosen):
            continue
        seated = list(gang.seated)
        for rank, domain in zip(sorted(gang.homes), chosen, strict=True):
            seated[rank] = domain
        together = len({ancestor(gang.index, domain, gang.segment_depth) for domain in seated}) == 1
        if together or gang.segment == 1 or not gang.homes:
            yield edges(gang.index, seated)


@settings(max_examples=300)
@given(gangs())
def test_no_way_has_fewer_edges_and_nobody_else_is_moved(gang):
    found = fill(gang)
    best = min(every_way(gang), default=None)
    assert (found is None) == (best is None)
    if found is None:
        return
    assert found.exact
    assert found.edges == best
    assert set(found.domains) == set(gang.homes)
    assert all(list(found.domains.values()).count(domain) <= room for domain, room in gang.room.items())


@given(gangs())
def test_one_after_the_other_they_find_a_place_as_well(gang):
    """Less good perhaps, but with room for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TOGETHER", 1)
        patch.setattr(module, "MOST_STATES", 1)
        found = fill(gang)
    assert gang.segment > 1 or (found is None) == (min(every_way(gang), default=None) is None)
    if found is not None:
        assert all(list(found.domains.values()).count(domain) <= room for domain, room in gang.room.items())
