"""When a job in trouble is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.controller.backoff import (
    CONFLICT_SECONDS,
    FIRST_SECONDS,
    LONGEST_CONFLICT_SECONDS,
    LONGEST_SECONDS,
    Backoff,
)


def test_the_pause_doubles_with_each_failure_in_a_row_and_is_forgotten_at_a_success() -> None:
    backoff = Backoff()
    pauses = [backoff.failed("j", now=0.0).until for _ in range(3)]
    assert pauses == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    backoff.succeeded("j")
    assert not backoff.waits("j", 0.0)
    assert backoff.failed("j", now=0.0).until == FIRST_SECONDS


@given(st.integers(1, 10_000))
def test_no_pause_is_longer_than_the_longest(failures: int) -> None:
    backoff = Backoff()
    for _ in range(min(failures, 40)):
        trouble = backoff.failed("j", now=5.0)
    assert trouble.until <= 5.0 + LONGEST_SECONDS


def test_the_server_may_ask_for_more_than_the_pause_but_not_for_less() -> None:
    assert Backoff().failed("j", 0.0, retry_after_seconds=7.0).until == 7.0
    assert Backoff().failed("j", 0.0, retry_after_seconds=0.01).until == FIRST_SECONDS


def test_one_job_in_trouble_does_not_keep_another_waiting() -> None:
    backoff = Backoff()
    backoff.failed("j", 0.0)
    assert backoff.waits("j", 0.1)
    assert not backoff.waits("k", 0.1)
    assert backoff.waiting(0.1) == 1


def test_a_conflict_waits_for_the_watch_alone_and_counts_as_no_failure() -> None:
    backoff = Backoff()
    backoff.conflicted("j", 0.0)
    assert backoff.waits("j", CONFLICT_SECONDS / 2)
    assert not backoff.waits("j", CONFLICT_SECONDS)
    assert backoff.failures("j") == 0


def test_conflicts_in_a_row_are_spaced_out_until_one_turn_succeeds() -> None:
    backoff, now, pauses = Backoff(), 0.0, list[float]()
    for _ in range(40):
        backoff.conflicted("j", now)
        until = backoff.next(now)
        assert until is not None
        pauses.append(until - now)
        now = until
    assert [round(pause / CONFLICT_SECONDS) for pause in pauses[:4]] == [1, 2, 4, 8]
    assert pauses[-1] == pytest.approx(LONGEST_CONFLICT_SECONDS)
    backoff.succeeded("j")
    backoff.conflicted("j", now)
    assert not backoff.waits("j", now + CONFLICT_SECONDS)


def test_the_loop_is_told_when_the_first_of_them_is_due() -> None:
    backoff = Backoff()
    backoff.failed("later", 0.0, retry_after_seconds=9.0)
    backoff.failed("sooner", 0.0, retry_after_seconds=4.0)
    assert backoff.next(0.0) == 4.0
    assert backoff.next(5.0) == 9.0
    assert backoff.next(9.0) is None


def test_jobs_that_are_gone_are_forgotten() -> None:
    backoff = Backoff()
    backoff.failed("j", 0.0)
    backoff.keep({"k"})
    assert backoff.failures("j") == 0
