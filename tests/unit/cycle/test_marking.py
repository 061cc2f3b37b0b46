"""A node is marked for all jobs by the verdicts of several, never by one job's script, and not for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.names import CONDITION_DEGRADED
from trainyard.api.training_job import Failure, Proven, TrainingJobStatus
from trainyard.cycle.actions import MarkNode
from trainyard.cycle.marking import EXPIRED, PASSED, mark
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.unfit import avoid
from trainyard.world.records import Degraded, Marks

BAD = "a1"


@pytest.fixture
def cluster() -> Pretend:
    return replace(Pretend(), marks=Marks()).with_nodes()


def known(cluster: Pretend, name: str, status: TrainingJobStatus, namespace: str = "team") -> None:
    """A job that exists, with this status."""
    job = cluster.submit(name, 2, namespace)
    cluster.jobs[job.uid] = job.with_status(status)


def named(cluster: Pretend, node: str = BAD, at: float = 0.0) -> TrainingJobStatus:
    """The status of a job whose preflight named the node some seconds ago."""
    return avoid(TrainingJobStatus(attempt=1), [node], Reason.PREFLIGHT_FAILED, f"{node} is slow", cluster.now - at)


def marked(cluster: Pretend) -> dict[str, MarkNode]:
    turns, _ = mark(cluster.world(), cluster.now)
    changes = [action for turn in turns for action in turn.actions if isinstance(action, MarkNode)]
    return {change.name: change for change in changes}


def found_bad(cluster: Pretend, name: str, namespace: str) -> None:
    """A job of all nodes measures the bad one, leaves it out, and goes away for the next to try."""
    cluster.submit(name, 8, namespace)
    cluster.until(lambda: cluster.status(name).restarts.unfit == 1, 60)


def test_two_jobs_of_two_namespaces_mark_a_node_and_no_new_gang_gets_it(cluster: Pretend) -> None:
    cluster.slow.add(BAD)
    found_bad(cluster, "one", "team")
    cluster.edit("one", suspend=True)
    assert cluster.tick(5).nodes[BAD].degraded is None
    found_bad(cluster, "two", "others")
    cluster.edit("two", suspend=True)
    degraded = cluster.tick(5).nodes[BAD].degraded
    assert degraded is not None
    assert degraded.reason == Reason.PREFLIGHT_FAILED
    assert degraded.message.startswith("2 jobs: others/two: a1 reaches 1 MB/s with another; team/one:")
    cluster.slow.clear()
    cluster.submit("third", 8, "more")
    status = cluster.tick(30).status("third")
    assert (status.phase, status.attempt) == ("Pending", 0)
    assert status.pending is not None
    assert f"1 is out: condition {CONDITION_DEGRADED}" in status.pending.message
    cluster.now += deadlines.AVOID
    cluster.until(cluster.phase_is("third", "Running"))
    assert cluster.nodes[BAD].degraded is None


def test_one_namespace_is_not_enough_unless_it_is_an_administrators(cluster: Pretend) -> None:
    known(cluster, "one", named(cluster))
    known(cluster, "two", named(cluster))
    assert marked(cluster) == {}
    cluster.marks = Marks(frozenset({"team"}))
    assert marked(cluster)[BAD].message == "2 jobs: team/one: a1 is slow; team/two: a1 is slow"


def test_nobody_marks_where_it_is_not_switched_on(cluster: Pretend) -> None:
    known(cluster, "one", named(cluster))
    known(cluster, "two", named(cluster), "others")
    assert set(marked(cluster)) == {BAD}
    cluster.marks = None
    assert marked(cluster) == {}


def test_who_trains_on_a_marked_node_is_left_alone(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    cluster.until(cluster.phase_is("train", "Running"))
    node = cluster.nodes_of("train")[0]
    cluster.nodes[node] = replace(cluster.nodes[node], degraded=Degraded(cluster.now, "PreflightFailed", "bad"))
    cluster.tick(120)
    status = cluster.status("train")
    assert (status.phase, status.attempt) == ("Running", 1)
    assert node in cluster.nodes_of("train")


def test_a_mark_outlives_the_jobs_that_made_it_but_not_by_more_than_a_verdict_lasts(cluster: Pretend) -> None:
    since = cluster.now - deadlines.AVOID + 10
    cluster.nodes[BAD] = replace(cluster.nodes[BAD], degraded=Degraded(since, "PreflightFailed", "bad"))
    turns, wake = mark(cluster.world(), cluster.now)
    assert (turns, wake) == ([], cluster.now + 10)
    cluster.now += 10
    change = marked(cluster)[BAD]
    assert (change.degraded, change.reason) == (False, EXPIRED)


def test_a_later_verdict_makes_it_stand_longer(cluster: Pretend) -> None:
    known(cluster, "one", named(cluster, at=600))
    known(cluster, "two", named(cluster, at=300), "others")
    first = marked(cluster)[BAD]
    assert first.time == round(cluster.now - 300)
    cluster.nodes[BAD] = replace(cluster.nodes[BAD], degraded=Degraded(first.time, first.reason, first.message))
    assert marked(cluster) == {}
    known(cluster, "three", named(cluster), "more")
    again = marked(cluster)[BAD]
    assert (again.degraded, again.time) == (True, round(cluster.now))


def test_a_later_preflight_that_passed_takes_it_off(cluster: Pretend) -> None:
    known(cluster, "one", named(cluster, at=600))
    known(cluster, "two", named(cluster, at=300), "others")
    cluster.nodes[BAD] = replace(cluster.nodes[BAD], degraded=Degraded(cluster.now - 300, "PreflightFailed", "bad"))
    passed = Proven(attempt=1, time=cluster.now - 60, nodes=("a0", BAD))
    known(cluster, "three", TrainingJobStatus(attempt=1, proven=(passed,)), "more")
    change = marked(cluster)[BAD]
    assert (change.degraded, change.reason) == (False, PASSED)
    cluster.nodes[BAD] = replace(cluster.nodes[BAD], degraded=None)
    assert marked(cluster) == {}


@pytest.mark.parametrize(("reason", "counts"), [(Reason.FABRIC_ERROR, True), (Reason.MEMBER_FAILED, False)])
def test_case_30_an_adapter_by_which_gangs_of_two_namespaces_failed_is_named(
    cluster: Pretend, reason: Reason, counts: bool
) -> None:
    message = "train-1, after step 7: rank 8 complained: Got completion from peer 10.0.0.2 with status=12 hca mlx5_3"
    for name, namespace in (("one", "team"), ("two", "others")):
        failure = Failure(attempt=1, reason=reason, message=message, node=BAD, time=cluster.now - 30)
        known(cluster, name, TrainingJobStatus(attempt=1, last_failure=failure), namespace)
    assert set(marked(cluster)) == ({BAD} if counts else set())
    if counts:
        assert "hca mlx5_3" in marked(cluster)[BAD].message
        cluster.now += deadlines.AVOID
        assert marked(cluster) == {}
