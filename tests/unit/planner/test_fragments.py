"""What a choice spoils for the gangs to come."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from trainyard.planner.search.fragments import Loss, mix


def test_room_counts_as_far_as_gangs_of_the_sizes_can_use_it():
    fours = Loss({4: 1.0})
    assert [fours.useful(room) for room in (3, 4, 7, 8)] == [0.0, 4.0, 4.0, 8.0]


def test_sizes_count_by_the_members_that_they_ask_for():
    both = Loss({2: 2.0, 4: 1.0})  # as many members in gangs of 2 as in gangs of 4
    assert both.useful(6) == 0.5 * 6 + 0.5 * 4


def test_what_was_of_no_use_is_a_gain():
    fours = Loss({4: 1.0})
    assert fours.of(6, 2) == -2.0
    assert fours.of(8, 2) == 2.0
    assert fours.of(8, 4) == 0.0


def test_two_halves_are_taken_before_a_whole():
    fours = Loss({4: 1.0})
    assert mix({4: 1, 3: 2, 2: 1}, 2, 6, fours) == [(3, 3), (3, 3)]


def test_without_a_difference_the_bins_are_filled_exactly():
    assert mix({4: 1, 3: 1, 2: 1}, 2, 6, Loss({1: 1.0})) == [(4, 4), (2, 2)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_of_all_ways_to_fill_the_fewest_bins_none_loses_less(sizes, data):
    sizes.sort(reverse=True)
    members = data.draw(st.integers(1, sum(sizes)))
    bins = next(n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) >= members)
    loss = Loss({2: 1.0, 4: 1.0})
    counts = {size: sizes.count(size) for size in sizes}
    found = mix(counts, bins, members, loss)
    assert sum(part for _, part in found) == members
    assert len(found) == bins
    assert all([size for size, _ in found].count(size) <= counts[size] for size in counts)
    best = min(
        sum(loss.of(size, size - (spare if n == part else 0)) for n, size in enumerate(some))
        for some in combinations(sizes, bins)
        if (spare := sum(some) - members) >= 0
        for part in range(bins)
        if some[part] > spare
    )
    assert sum(loss.of(size, part) for size, part in found) <= best + 1e-9
