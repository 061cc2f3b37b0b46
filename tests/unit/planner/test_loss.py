"""What giving way costs a job."""

import pytest
from trainyard.planner.loss import REQUEUE_SECONDS, RESTART_SECONDS, SAVE_SECONDS, Loss, loss


def test_a_job_that_leaves_loses_what_is_unsaved_and_the_way_back():
    assert Loss(100.0, 20.0, 30.0, 50.0).leaving(8) == 8 * 200.0


def test_a_job_that_shrinks_has_saved_and_does_not_queue():
    assert Loss(100.0, 20.0, 30.0, 50.0).shrinking(8) == 8 * 50.0


def test_a_job_that_saves_nothing_loses_everything_however_it_gives_way():
    found = loss(1000.0, 4600.0, saves=False, restart_seconds=40.0)
    assert found.leaving(2) == 2 * (3600.0 + 40.0 + REQUEUE_SECONDS)
    assert found.shrinking(2) == 2 * (3600.0 + 40.0)


def test_without_a_checkpoint_the_loss_begins_with_the_attempt():
    assert loss(1000.0, 1300.0).unsaved_seconds == 300.0


@pytest.mark.parametrize(("checkpointed", "unsaved"), [(1250.0, 50.0), (400.0, 300.0), (1400.0, 0.0)])
def test_it_begins_with_the_newest_checkpoint_of_the_attempt(checkpointed, unsaved):
    """One of an earlier attempt is older than the attempt; a clock that is behind makes no negative loss."""
    assert loss(1000.0, 1300.0, checkpointed=checkpointed).unsaved_seconds == unsaved


def test_what_was_not_measured_is_taken_as_stated():
    found = loss(0.0, 0.0)
    assert (found.save_seconds, found.restart_seconds) == (SAVE_SECONDS, RESTART_SECONDS)
