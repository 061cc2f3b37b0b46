"""The search over groups of bins: never worse than its bound, exact with enough work, and aloud about it without."""

from __future__ import annotations

from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import MEMBER, a_node
from trainyard.planner.place import Placement, place
from trainyard.planner.request import Request
from trainyard.planner.search.bound import Problem, bound, by_number, fewest, problem, round_up
from trainyard.planner.search.branch import cover
from trainyard.planner.search.ground import Ground
from trainyard.topology.tree import Level, build
from trainyard.world.supply import Supply, supply

LEVELS = tuple(Level(name, f"net/{name}") for name in ("core", "spine", "leaf"))


def a_room(places: list[tuple[str, str, str]]) -> Supply:
    """All of these places are free, each by its core, spine and leaf."""
    nodes = [
        a_node(f"n{n}", labels={level.label: name for level, name in zip(LEVELS, place, strict=True)})
        for n, place in enumerate(places)
    ]
    return supply(build(nodes, LEVELS), [1] * len(nodes), [1] * len(nodes), [None] * len(nodes))


def a_problem(room: Supply, members: int, weights: tuple[float, ...]) -> Problem:
    return problem(Ground(room.index, 3, room.free_in, room.slots), 0, members, (0.0, *weights))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    places = draw(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from("1234"), st.sampled_from("xyz")), min_size=1, max_size=20
        )
    )
    weights = draw(st.tuples(*(st.sampled_from([0.7, 1.0, 1.5, 3.0]) for _ in range(3))))
    return a_problem(a_room(places), draw(st.integers(1, len(places))), weights)


def least_cost(task: Problem) -> float:
    """Of all sets of groups."""
    costs = []
    for number in range(1, len(task.groups) + 1):
        for some in combinations(range(len(task.groups)), number):
            groups = [task.groups[n] for n in some]
            if sum(group.room for group in groups) < task.members:
                continue
            around = {task.chains[n] for n in some}
            upper = sum(weight * len(around) for weight in task.upper_weights)
            costs.append(upper + task.group_weight * number + task.bin_weight * fewest(groups, task.members))
    return min(costs)


@settings(max_examples=80)
@given(problems())
def test_the_cheapest_cover_is_found_and_proven(task):
    least = least_cost(task)
    found = cover(task)
    assert abs(found.value - least) < 1e-9
    assert abs(found.bound - least) < 1e-9
    assert not found.spent
    assert sum(task.groups[n].room for n in found.chosen) >= task.members


@settings(max_examples=80)
@given(problems())
def test_no_bound_is_above_the_cheapest_cover(task):
    least = least_cost(task)
    assert bound(task).value <= least + 1e-9
    assert round_up(bound(task).value, task.unit) <= least + 1e-6
    assert by_number(task, 1e9) <= least + 1e-9


@settings(max_examples=50)
@given(problems())
def test_with_little_work_the_cover_is_whole_and_its_bound_still_holds(task):
    least, found = least_cost(task), cover(task, states=0)
    assert sum(task.groups[n].room for n in found.chosen) >= task.members
    assert found.bound <= least + 1e-9 <= found.value + 2e-9
    assert found.spent == (found.bound < found.value - 1e-9)


@settings(max_examples=50)
@given(problems())
def test_nothing_is_found_that_costs_as_much_as_what_is_known(task):
    least = least_cost(task)
    found = cover(task, below=least)
    assert found.chosen == ()
    assert found.bound <= least + 1e-9


def test_a_plan_for_which_the_work_is_not_enough_says_so_and_by_how_much_it_may_be_off():
    random = Random(13)
    places = [(random.choice("abcd"), str(random.randrange(30)), str(int(random.expovariate(0.1)))) for _ in range(500)]
    room = a_room(places)
    found = place(room, Request("default/train", 150, MEMBER))
    assert isinstance(found, Placement)
    assert found.spent
    assert 0.0 < found.gap < 0.01
    assert found.quality == "at most 1 % off"
    assert found.bound < found.cost.total
    assert found == place(room.copy(), Request("default/train", 150, MEMBER))
