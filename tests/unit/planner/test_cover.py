"""The cheapest way to make up for a lack."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.planner.victims import cover as module
from trainyard.planner.victims.cover import cover, least_price, price

OFFERS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=3)
GROUPS = st.lists(OFFERS, max_size=6)


def gain(groups, answer):
    return sum(groups[number][offer][0] for number, offer in answer.items())


def every_answer(lack, groups):
    for choice in product(*([None, *range(len(offers))] for offers in groups)):
        answer = {number: offer for number, offer in enumerate(choice) if offer is not None}
        if gain(groups, answer) >= lack:
            yield price(groups, answer)


@given(st.integers(0, 12), GROUPS)
def test_as_cheap_as_any_combination_and_not_below_the_bound(lack, groups):
    found = cover(lack, groups)
    least = min(every_answer(lack, groups), default=None)
    assert (found is None) == (least is None)
    if found is None:
        assert least_price(lack, groups) == float("inf")
        return
    assert gain(groups, found) >= lack
    assert price(groups, found) == least
    assert least_price(lack, groups) <= least + 1e-9


@pytest.mark.parametrize("most", [0, 8])
@given(lack=st.integers(1, 12), groups=GROUPS)
def test_a_table_that_is_too_small_still_gives_an_answer(most, lack, groups):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CELLS", most)
        found = cover(lack, groups)
    least = min(every_answer(lack, groups), default=None)
    assert (found is None) == (least is None)
    assert found is None or gain(groups, found) >= lack


def test_of_equal_answers_the_first_counts():
    assert cover(1, [[(1, 5)], [(1, 5)], [(1, 5)]]) == {0: 0}


def test_one_large_offer_beats_many_with_a_better_ratio():
    assert cover(10, [[(9, 9)], [(9, 9)], [(10, 15)]]) == {2: 0}
