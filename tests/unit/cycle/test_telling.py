"""What jobs only have to tell costs a share of the requests, whatever there are of them, and waits for what is to be done."""

from __future__ import annotations

from collections import Counter

import pytest
from support.pretend import Pretend
from trainyard.cycle import actions as act
from trainyard.cycle import cycle
from trainyard.lifecycle import deadlines


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes().with_class("low", 10).with_class("high", 100)


def counted(cluster: Pretend, seconds: int) -> Counter[str]:
    """How often each job's status is written."""
    written = Counter[str]()

    def seen(action: act.Action) -> bool:
        if isinstance(action, act.WriteStatus):
            written[action.name] += 1
        return False

    cluster.interrupt = seen
    cluster.tick(seconds)
    cluster.interrupt = None
    return written


def test_progress_is_written_as_often_as_all_jobs_together_may(
    cluster: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(8):
        cluster.submit(f"job-{n}", 1)
    cluster.until(lambda: all(job.status.progress is not None for job in cluster.jobs.values()), 60)
    assert set(counted(cluster, 40).values()) <= {19, 20, 21}
    monkeypatch.setattr(deadlines, "TOLD_A_SECOND", 1)
    assert set(counted(cluster, 40).values()) <= {4, 5, 6}
    cluster.edit("job-3", suspend=True)
    cluster.tick()
    assert cluster.status("job-3").phase == "Yielding", "a decision does not wait"


def test_the_words_of_a_wait_are_written_as_seldom_and_another_reason_at_once(
    cluster: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "TELLING", 20.0)
    cluster.submit("large", 8, priorityClassName="low")
    cluster.until(cluster.phase_is("large", "Running"))
    cluster.submit("next", 8, priorityClassName="low")
    cluster.tick(30)
    before = cluster.status("next").pending
    assert before is not None
    cluster.nodes = {name: node for name, node in cluster.nodes.items() if name != "b3"}  # the numbers are others now
    cluster.interrupt = lambda action: isinstance(action, act.DeletePod)
    written = counted(cluster, 15)["next"]
    after = cluster.status("next").pending
    assert after is not None
    assert after.message != before.message
    assert written <= 2
    cluster.edit("next", suspend=True)
    cluster.tick()
    assert cluster.status("next").phase == "Suspended"


def test_what_is_to_be_done_comes_before_what_is_only_told(cluster: Pretend) -> None:
    cluster.submit("a", 2, priorityClassName="low")
    cluster.submit("b", 2, priorityClassName="low")
    cluster.until(lambda: all(job.status.progress is not None for job in cluster.jobs.values()), 60)
    cluster.tick(4)
    cluster.edit("b", suspend=True)
    cluster.now += 3
    cluster._move()
    turns = cycle(cluster.world(), cluster.now).turns
    assert [(turn.job_uid, turn.tells) for turn in turns] == [
        (cluster.job("b").uid, False),
        (cluster.job("a").uid, True),
    ]
