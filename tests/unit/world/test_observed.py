"""The table of what was measured on a fabric: bounded, the same whoever writes it in what order, and forgotten in time."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.fabric import FabricSpec, Observed, ObservedBy, ObservedLink
from trainyard.world.observed import FRESH_SECONDS, MOST_JOBS, SETTLED_SECONDS, fresh, speeds, with_links
from trainyard.world.records import Fabric, World

T0 = 1_000_000.0


def a_row(
    bandwidth: float = 1e9,
    level: str = "leaf",
    job: str = "team/lm",
    time: float = T0,
    by: ObservedBy = ObservedBy.PREFLIGHT,
) -> ObservedLink:
    return ObservedLink(level=level, bandwidth=bandwidth, by=by, job=job, nodes=2, time=time)


rows = st.builds(
    a_row,
    bandwidth=st.floats(0, 1e12),
    level=st.sampled_from([f"tier-{n}" for n in range(12)]),
    job=st.sampled_from([f"team/job-{n}" for n in range(8)]),
    time=st.integers(0, 10 * int(SETTLED_SECONDS)).map(lambda s: T0 + s),
    by=st.sampled_from(ObservedBy),
)


@given(st.lists(rows, max_size=80))
def test_the_table_is_what_the_api_server_takes_however_much_is_found(found: list[ObservedLink]) -> None:
    table = with_links(Observed(), found)
    assert Observed.model_validate(table.to_manifest()) == table


@given(st.lists(rows, max_size=20), st.lists(rows, max_size=20))
def test_what_was_taken_in_is_not_news(before: list[ObservedLink], found: list[ObservedLink]) -> None:
    """So a second leader, or this one in its next cycle, writes nothing."""
    once = with_links(with_links(Observed(), before), found)
    assert with_links(once, once.links) == once
    again = with_links(once, found)
    assert with_links(again, found) == again


def test_each_job_has_one_row_and_the_newest_jobs_are_kept() -> None:
    table = Observed()
    for n in range(MOST_JOBS + 3):
        table = with_links(table, [a_row(1e9 + n * 1e8, job=f"team/job-{n}", time=T0 + n)])
    assert [row.job for row in table.links] == [f"team/job-{n}" for n in range(MOST_JOBS + 2, 2, -1)]
    assert with_links(table, [a_row(5e9, job="team/job-0", time=T0)]) == table


def test_what_a_job_found_before_is_replaced_by_what_differs_or_once_it_is_old() -> None:
    table = with_links(Observed(), [a_row()])
    assert with_links(table, [a_row(1.04e9, time=T0 + 60)]) == table
    assert with_links(table, [a_row(0.9e9, time=T0 + 60)]).links[0].bandwidth == 0.9e9
    assert with_links(table, [a_row(1.04e9, time=T0 + SETTLED_SECONDS)]).links[0].time == T0 + SETTLED_SECONDS
    assert with_links(table, [a_row(0.5e9, time=T0 - 60)]) == table


@given(st.lists(st.floats(1.0, 1e12), min_size=1, max_size=MOST_JOBS))
def test_of_several_jobs_the_median_counts(found: list[float]) -> None:
    table = with_links(Observed(), [a_row(speed, job=f"team/{n}") for n, speed in enumerate(found)])
    assert speeds(table) == {"leaf": median(found)}


def test_what_somebody_measured_on_purpose_counts_before_what_jobs_found() -> None:
    measured = a_row(3e9, job="team/measure-1", by=ObservedBy.MEASURE, time=T0)
    table = with_links(Observed(), [measured, a_row(1e9, time=T0 + 60), a_row(2e9, level="node")])
    assert speeds(table) == {"leaf": 3e9, "node": 2e9}
    later = a_row(4e9, job="team/measure-2", by=ObservedBy.MEASURE, time=T0 + 1)
    assert speeds(with_links(table, [later]))["leaf"] == 4e9


def test_a_row_without_a_speed_says_nothing() -> None:
    assert speeds(with_links(Observed(), [a_row(0.0)])) == {}
    assert speeds(None) == {}


@pytest.mark.parametrize(("age", "counts"), [(0.0, True), (FRESH_SECONDS, True), (FRESH_SECONDS + 1, False)])
def test_an_observation_counts_for_a_day(age: float, counts: bool) -> None:
    observed = with_links(Observed(), [a_row(), a_row(level="spine", time=T0 + FRESH_SECONDS)])
    world = World(fabrics={"site": Fabric("site", FabricSpec(), observed=observed)})
    found = fresh(world, T0 + age)
    assert ("leaf" in speeds(found.fabrics["site"].observed)) is counts
    assert "spine" in speeds(found.fabrics["site"].observed)
    assert (found is world) is counts
