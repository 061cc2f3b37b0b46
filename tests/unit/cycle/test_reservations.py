"""Reserved nodes on a pretended cluster: who counts on which nodes, and what must not take them away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.errors import FieldError
from trainyard.cycle import actions as act
from trainyard.planner.place import place
from trainyard.planner.preempt import preempt
from trainyard.world.records import Trial, Verdict

ONE_SPINE = {"within": {"level": "spine", "required": True}}


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes().with_class("low", 10).with_class("middle", 50).with_class("high", 100)


def stuck(cluster: Pretend, node: str) -> None:
    """A stranger's pod whose deletion its kubelet never carries out."""
    cluster.foreign(node, name=f"stuck-{node}")
    cluster.pods[f"stuck-{node}"] = replace(cluster.pods[f"stuck-{node}"], deleted=cluster.now, grace_seconds=30.0)


def test_a_pod_that_never_goes_is_not_waited_for_instead_of_a_preemption(cluster: Pretend) -> None:
    cluster.submit("v", 4, priorityClassName="low")
    cluster.until(cluster.phase_is("v", "Running"))
    for node in ("b0", "b1", "b2", "b3"):
        stuck(cluster, node)
    cluster.submit("u", 4, priorityClassName="high")
    cluster.until(cluster.phase_is("u", "Running"), 300)


def test_a_job_waits_in_numbers_for_a_node_that_a_pod_never_leaves(cluster: Pretend) -> None:
    stuck(cluster, "a0")
    cluster.submit("train", 8)
    cluster.tick(300)
    pending = cluster.status("train").pending
    assert pending is not None
    assert pending.message == "needs 8 nodes; 8 are eligible, 7 of them are free"


def test_nobody_waits_for_the_nodes_of_a_job_that_is_left_alone(cluster: Pretend) -> None:
    cluster.submit("old", 4)
    cluster.until(cluster.phase_is("old", "Running"))
    job = cluster.job("old")
    error = FieldError("status.phase", "'Hovering' is no phase")
    cluster.jobs[job.uid] = replace(job, spec=None, status=job.status.but(started_at=None), errors=(error,))
    cluster.submit("train", 8)
    cluster.tick(5)
    pending = cluster.status("train").pending
    assert pending is not None
    assert (cluster.status("train").reservation, pending.reason) == (None, Reason.INSUFFICIENT_NODES)


@pytest.mark.parametrize("how", ["an edit", "another operator"])
def test_reserved_nodes_stay_reserved_while_the_api_server_is_asked_again(cluster: Pretend, how: str) -> None:
    cluster.submit("v", 4, priorityClassName="low")
    cluster.until(cluster.phase_is("v", "Running"))
    for node in ("b0", "b1", "b2", "b3"):
        cluster.foreign(node)
    cluster.submit("w", 4)
    cluster.submit("u", 4, priorityClassName="high", placement=ONE_SPINE)
    cluster.until(lambda: cluster.status("u").reservation is not None, 10)

    def busy(action: act.TryPod) -> Trial:
        late = action.job_uid == cluster.job("u").uid
        verdict = Verdict.WAIT if late else Verdict.ACCEPTED
        return Trial(action.generation, verdict, cluster.now, Reason.API_REFUSES if late else "", "429")

    cluster.verdict = busy
    if how == "an edit":
        cluster.edit("u", max_runtime="100h")
    else:
        cluster.trials.clear()
    cluster.tick(15)
    cluster.verdict = None
    cluster.until(cluster.phase_is("u", "Running"), 30)
    assert (cluster.status("v").attempt, cluster.status("u").attempt) == (1, 1), "v did not leave for nothing"


def test_a_reservation_gives_a_victim_of_the_same_cycle_its_grace(cluster: Pretend) -> None:
    cluster.submit("v", 8, priorityClassName="low", checkpoint={"volume": "checkpoints", "grace": "10m"})
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("u", 4, priorityClassName="high")
    cluster.submit("m", 4, priorityClassName="middle")
    for _ in range(10):
        if cluster.status("m").reservation is not None:
            break
        cluster.operate(1)
    first, second = cluster.status("u").reservation, cluster.status("m").reservation
    assert first is not None
    assert second is not None
    assert [victim.name for victim in second.victims] == ["v"]
    assert second.deadline == first.deadline


def test_who_has_left_is_not_waited_for_in_words(cluster: Pretend) -> None:
    cluster.submit("v", 8, priorityClassName="low")
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("u", 8, priorityClassName="high")
    cluster.until(lambda: cluster.status("v").stop is not None, 10)
    stuck(cluster, "a0")
    cluster.until(lambda: cluster.status("v").started_at is None, 20).tick()
    pending = cluster.status("u").pending
    assert pending is not None
    assert pending.message == "8 nodes are reserved; pods that are ending must leave them first"


def test_a_running_job_keeps_its_rank_when_its_class_is_deleted(cluster: Pretend) -> None:
    cluster.submit("v", 8, priorityClassName="high")
    cluster.until(cluster.phase_is("v", "Running"))
    for pod in list(cluster.pods.values()):
        cluster.pods[pod.uid] = replace(pod, priority=100)  # as the API server wrote it when the class was there
    del cluster.classes["high"]
    cluster.submit("u", 4, priorityClassName="middle")
    cluster.tick(10)
    assert (cluster.status("v").phase, cluster.status("u").phase) == ("Running", "Pending")


# How much work it is --------------------------------------------------------------------------------------------------


def test_jobs_that_wait_for_the_same_cost_one_look_at_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(ask: Any) -> Any:
        def look(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return ask(*arguments)

        return look

    cluster = Pretend().with_nodes().with_class("low", 10).with_class("high", 100)
    for node in cluster.nodes:
        cluster.foreign(node)
    for n in range(40):
        container = {"name": "trainer", "image": "own", "command": ["train", str(n)]}
        container["resources"] = {"limits": {"nvidia.com/gpu": 8}}
        pod = {"spec": {"containers": [container]}}
        cluster.submit(f"job{n}", 4, priorityClassName="high" if n % 2 else "low", template=pod, checkpoint={})
    cluster.operate(2)
    monkeypatch.setattr("trainyard.cycle.plans.place", counted(place))
    monkeypatch.setattr("trainyard.cycle.plans.preempt", counted(preempt))
    cluster.operate(1)
    assert {job.status.pending.reason for job in cluster.jobs.values() if job.status.pending} == {"InsufficientNodes"}
    assert looks <= 6


def test_nodes_that_are_left_for_one_are_not_gathered_by_another_who_came_first() -> None:
    cluster = Pretend().with_nodes(spines=1, leaves=1, per_leaf=6).with_class("low", 10).with_class("high", 100)
    cluster.submit("peer", 4, priorityClassName="high")
    cluster.submit("v", 2, priorityClassName="low")
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("younger", 2, priorityClassName="high")
    cluster.until(lambda: cluster.status("younger").reservation is not None, 10)
    older = cluster.submit("older", 6, priorityClassName="high")
    cluster.jobs[older.uid] = replace(older, created=1.0)
    cluster.until(cluster.phase_is("younger", "Running"), 60)
    assert cluster.status("v").attempt == 1
