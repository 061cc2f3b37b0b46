"""The interval that loses least time, by what was measured; and that the trainer keeps to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import TINY, plan_file, start
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer.checkpoint import measured, pace
from trainyard_trainer.checkpoint.pace import (
    LEAST_SECONDS,
    MOST_OVERHEAD,
    MOST_SECONDS,
    Cost,
    interval_seconds,
    mttf_seconds,
)
from trainyard_trainer.report import CheckpointDurable
from trainyard_trainer.train import main

HOUR = 3600.0


def test_the_interval_of_the_published_case():
    """0.5 s of stall, a restart of 60 s, a failure every 7.9 h: sqrt(2 x 0.5 x 28,500) = 169 s."""
    assert interval_seconds(Cost(0.5, 20.0, 0.0, 60.0), 7.9 * HOUR) == pytest.approx(168.3, abs=0.1)


def lost(interval, cost, mttf):
    """The share of the time that saves and steps done again cost (first order)."""
    return cost.seconds / interval + (interval / 2 + cost.restart_seconds) / mttf


costs = st.builds(Cost, st.floats(0.001, 5.0), st.floats(0.01, 100.0), st.floats(0.0, 0.5), st.floats(1.0, 900.0))


@given(costs, st.floats(1e4, 1e7), st.floats(0.1, 10.0))
def test_no_other_interval_within_the_bounds_loses_noticeably_less(cost, mttf, other):
    chosen = interval_seconds(cost, mttf)
    least = max(LEAST_SECONDS, 2 * cost.save_seconds, cost.seconds / MOST_OVERHEAD)
    assert least <= chosen <= max(MOST_SECONDS, least)
    assert cost.seconds / chosen <= MOST_OVERHEAD + 1e-9
    bounded = min(max(chosen * other, least), max(MOST_SECONDS, least))
    assert lost(chosen, cost, mttf) <= 1.02 * lost(bounded, cost, mttf)


@given(st.integers(1, 4096), st.integers(0, 20), st.floats(0.0, 1e6))
def test_a_job_that_failed_more_often_than_its_machines_are_known_for_expects_to(ranks, failures, over):
    assert mttf_seconds(ranks, failures, over) <= mttf_seconds(ranks, 0, 0.0)
    if failures and over:
        assert mttf_seconds(ranks, failures, over) <= over / failures


def test_more_failures_save_more_often():
    cost = Cost(0.5, 5.0, 0.0, 60.0)
    calm, stormy = mttf_seconds(8, 0, 0.0), mttf_seconds(8, 6, 6 * HOUR)
    assert interval_seconds(cost, stormy) < interval_seconds(cost, calm)


def test_a_trainer_left_to_choose_saves_after_the_first_wait_and_then_by_what_that_cost(tmp_path):
    """The first wait is shortened to half a second, and the least interval to a fifth, so that the test need not wait."""

    def work(rank):
        measured.FIRST_SECONDS, pace.LEAST_SECONDS, pace.MOST_SECONDS = 0.5, 0.2, 0.2
        return main([])

    environment = plan_file(
        tmp_path / "plan.json",
        tmp_path / "root",
        trainer={**TINY, "steps": 100_000},
        every_auto=True,
    )
    environment[env.STOP_FILE] = str(tmp_path / "stop")
    gang = start(work, 2, tmp_path / "gang", environments=dict.fromkeys(range(2), environment))
    gang.until(lambda: len([r for r in gang.reports(0) if isinstance(r, CheckpointDurable)]) >= 3)
    (tmp_path / "stop").touch()
    assert [end.code for end in gang.wait()] == [Exit.YIELDED] * 2
