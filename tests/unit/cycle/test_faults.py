"""What goes wrong around one job on a pretended cluster, and what it may cost: seldom a failure, never a step too many."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.errors import FieldError
from trainyard.api.training_job import Condition, LineageMark
from trainyard.contract.status import Status
from trainyard.cycle import actions as act
from trainyard.cycle import cycle
from trainyard.lifecycle.gang import _speaks
from trainyard.world.records import Answer, Pod, Running, Trial, Verdict


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes().with_class("low", 10).with_class("high", 100)


def running(cluster: Pretend, name: str = "train", nodes: int = 4, **spec: object) -> Pretend:
    cluster.submit(name, nodes, **spec)  # type: ignore[arg-type]
    return cluster.until(cluster.phase_is(name, "Running"))


def again(cluster: Pretend, attempt: int = 2, limit: int = 200) -> Pretend:
    return cluster.until(
        lambda: cluster.status("train").attempt == attempt and cluster.status("train").phase == "Running", limit
    )


def held_back(cluster: Pretend, attempt: int = 2) -> Pretend:
    """No later attempt begins, since the write that would open it fails; `interrupt` ends it."""
    cluster.interrupt = lambda action: isinstance(action, act.WriteStatus) and action.status.attempt >= attempt
    return cluster


def unattended(cluster: Pretend, seconds: int) -> Pretend:
    """Time in which no operator runs. What launchers answered is forgotten with it, and so is what the API server said."""
    for _ in range(seconds):
        cluster.now += 1
        cluster._move()
    cluster.answers.clear()
    cluster.trials.clear()
    return cluster


# Sidecars -------------------------------------------------------------------------------------------------------------


def test_a_sidecar_does_not_hold_the_nodes_of_a_job_that_succeeded(cluster: Pretend) -> None:
    cluster.sidecars = True
    cluster.submit("train", 8, steps=5)
    cluster.until(cluster.phase_is("train", "Succeeded"))
    cluster.submit("next", 8)
    cluster.until(cluster.phase_is("next", "Running"), 60)


def test_a_sidecar_of_the_pod_that_failed_first_does_not_hold_its_node(cluster: Pretend) -> None:
    cluster.sidecars = True
    running(cluster, nodes=8)
    cluster.crash("train-1")
    again(cluster, limit=90)


# Pods that never came to a node ---------------------------------------------------------------------------------------


def test_a_pod_that_never_had_a_node_is_not_waited_for(cluster: Pretend) -> None:
    cluster.submit("train", 8)
    cluster.operate()
    cluster.foreign("a0", name="stranger")
    cluster.until(lambda: cluster.status("train").former is not None, 15)
    del cluster.pods["stranger"]
    again(cluster, limit=15)


def test_what_was_deleted_before_it_had_a_node_does_not_keep_the_job(cluster: Pretend) -> None:
    cluster.submit("train", 8)
    cluster.operate()
    cluster.foreign("a0", name="stranger")
    cluster.tick(2).delete_job("train")
    cluster.until(lambda: not cluster.jobs, 15)


# What is history ------------------------------------------------------------------------------------------------------


def test_a_gang_that_vanished_whole_leaves_its_checkpoints_in_the_history(cluster: Pretend) -> None:
    running(cluster).tick(25)
    cluster.pods.clear()
    again(cluster).tick(3)
    steps = cluster.history[cluster.job("train").uid]
    resumed = min(after for before, after in pairwise(steps) if after <= before) - 1
    assert resumed == 20


def test_attempts_that_end_where_they_resumed_back_off_also_after_a_lost_node(cluster: Pretend) -> None:
    running(cluster, nodes=2).tick(15)
    cluster.lose_node("a0")
    again(cluster)
    cluster.trains = False
    cluster.until(lambda: cluster.status("train").resume is None, 5)
    for _ in range(3):
        cluster.until(cluster.phase_is("train", "Running"), 60)
        attempt = cluster.status("train").attempt
        pod = next(p for p in cluster.pods.values() if p.membership and p.membership.attempt == attempt)
        cluster.launchers[pod.uid].step = cluster.launchers[pod.uid].resumed.step  # type: ignore[union-attr]
        for launcher in cluster.launchers.values():
            launcher.step = launcher.resumed.step if launcher.resumed else 0
        cluster.crash(pod.name)
        cluster.until(
            lambda n=attempt: (
                cluster.status("train").started_at is None  # type: ignore[misc]
                or cluster.status("train").attempt > n
            ),
            30,
        )
    assert cluster.status("train").restarts.fruitless >= 2


def test_a_suspended_job_does_not_name_a_step_that_nobody_knows(cluster: Pretend) -> None:
    running(cluster, nodes=2).tick(15)
    held_back(cluster).lose_node("a0")
    cluster.until(lambda: cluster.status("train").former is not None, 30)
    cluster.edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 120)
    said = next(c for c in cluster.status("train").conditions if c.type == "Suspended").message
    assert said == "spec.suspend is true; resumes at the newest checkpoint when it is false again"


# What counts as a failure ---------------------------------------------------------------------------------------------


def test_a_drain_that_no_operator_saw_costs_no_failure(cluster: Pretend) -> None:
    running(cluster).tick(5)
    cluster.delete_pod("train-2")
    unattended(cluster, 6)
    assert {pod.trainer.exit_code for pod in cluster.pods.values()} == {75}  # type: ignore[union-attr]
    again(cluster)
    restarts = cluster.status("train").restarts
    assert (restarts.failures, restarts.preemptions) == (0, 1)


def test_a_member_that_failed_before_a_pod_was_deleted_is_a_failure(cluster: Pretend) -> None:
    running(cluster).tick(5)
    cluster.crash("train-1")
    unattended(cluster, 3)
    cluster.delete_pod("train-2")
    again(cluster)
    assert cluster.status("train").restarts.failures == 1


def test_a_yield_spends_nothing_of_a_budget_that_was_lowered(cluster: Pretend) -> None:
    running(cluster, restart={"failures": 5, "per": "1h"})
    for attempt in (1, 2):
        cluster.tick(3).crash("train-0")
        again(cluster, attempt + 1)
    job = cluster.job("train")
    assert job.spec is not None
    cluster.edit("train", restart=job.spec.restart.but(failures=1))
    cluster.tick(3).delete_pod(next(pod.name for pod in cluster.pods.values() if pod.live))
    again(cluster, 4)


def test_a_stop_while_it_starts_is_no_late_start(cluster: Pretend) -> None:
    kubelet = cluster._kubelet
    cluster._kubelet = lambda pod: kubelet(pod) if pod.name != "train-1" else None  # type: ignore[method-assign]
    cluster.submit("train", 2)
    cluster.tick(590).edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 400)
    assert cluster.status("train").restarts.failures == 0


def test_a_quota_that_refuses_some_members_gives_the_nodes_back_and_costs_no_failure(cluster: Pretend) -> None:
    said = 'Create: pods "train-2" is forbidden: exceeded quota: gpus'

    def quota(action: act.Action) -> bool:
        if not isinstance(action, act.Create) or action.manifest["kind"] != "Pod":
            return False
        refused = int(action.manifest["metadata"]["name"].rpartition("-")[2]) % 4 >= 2
        if refused:  # as the loop tells the cycle of it
            job = cluster.job("train")
            cluster.trials[job.uid] = Trial(job.generation, Verdict.WAIT, cluster.now, Reason.API_REFUSES, said)
        return refused

    cluster.interrupt = quota
    cluster.submit("train", 4)
    cluster.tick(5)
    message = next(c for c in cluster.status("train").conditions if c.type == "Running").message
    assert "exceeded quota" in message
    cluster.until(lambda: cluster.status("train").started_at is None, 120)
    assert cluster.status("train").pending.reason == Reason.API_REFUSES  # type: ignore[union-attr]
    assert cluster.status("train").restarts.failures == 0
    cluster.interrupt = None
    cluster.until(cluster.phase_is("train", "Running"), 120)


def test_max_runtime_ends_a_job_whose_last_attempt_ended_otherwise(cluster: Pretend) -> None:
    running(cluster, maxRuntime="30s")
    cluster.tick(30).lose_node("a1")
    cluster.until(lambda: cluster.status("train").started_at is None, 120)
    assert cluster.status("train").phase == "Failed"
    failed = next(c for c in cluster.status("train").conditions if c.type == "Failed")
    assert failed.reason == Reason.MAX_RUNTIME


def test_a_longer_max_runtime_counts_also_while_it_yields(cluster: Pretend) -> None:
    running(cluster, maxRuntime="30s")
    cluster.until(lambda: cluster.status("train").stop is not None, 40)
    cluster.edit("train", max_runtime="1h")
    again(cluster)


# The operator is killed and another takes over ------------------------------------------------------------------------


def test_a_successor_asks_launchers_before_it_deletes_their_pods(cluster: Pretend) -> None:
    running(cluster).tick(60)
    cluster.edit("train", suspend=True)
    cluster.answers.clear()
    cluster.operate(2)
    assert [pod.name for pod in cluster.pods.values() if pod.deleted is not None] == []
    assert all(launcher.notice is not None for launcher in cluster.launchers.values())


def test_a_successor_does_not_say_that_launchers_never_answered(cluster: Pretend) -> None:
    running(cluster).tick(60)
    cluster.answers.clear()
    cluster.operate(2)
    controlled = next(c for c in cluster.status("train").conditions if c.type == "Controlled")
    assert (controlled.status, controlled.reason) == ("True", Reason.LAUNCHERS_ANSWER)


def test_a_successor_finds_the_gang_silent_that_answered_its_predecessor(cluster: Pretend) -> None:
    running(cluster, nodes=1).tick(5)
    cluster.freeze("train-0")
    unattended(cluster, 2)
    again(cluster, limit=200)
    assert cluster.status("train").last_failure.reason == Reason.LAUNCHER_SILENT  # type: ignore[union-attr]


def test_a_successor_that_reaches_nobody_blames_no_job(cluster: Pretend) -> None:
    running(cluster, nodes=1).tick(5)
    running(cluster, "other", nodes=1).tick(5)
    cluster.reachable = False
    unattended(cluster, 2)
    cluster.tick(200)
    assert {cluster.status(name).attempt for name in ("train", "other")} == {1}


# Who is cut off: a node, the operator, or the API server -------------------------------------------------------------


def not_ready(cluster: Pretend, *names: str) -> Pretend:
    """Their kubelets lost the API server; all else on them goes on."""
    for name in names:
        cluster.nodes[name] = replace(cluster.nodes[name], ready=False, missed=True, ready_since=cluster.now)
    return cluster


def said(cluster: Pretend, kind: str) -> Condition:
    return next(one for one in cluster.status("train").conditions if one.type == kind)


def test_a_gang_goes_on_while_the_launchers_of_nodes_that_are_not_ready_answer(cluster: Pretend) -> None:
    running(cluster)
    node = cluster.nodes_of("train")[1]
    not_ready(cluster, node).tick(1000)
    assert (cluster.status("train").attempt, cluster.status("train").phase) == (1, "Running")
    assert (
        f"node {node} of rank 1 is not ready, and is waited for: its launcher answers"
        in said(cluster, "Running").message
    )
    cluster.nodes[node] = replace(cluster.nodes[node], ready=True, missed=False)
    cluster.tick(5)
    assert said(cluster, "Running").message == "all 4 members train"


def test_a_successor_asks_before_it_gives_up_a_node_that_is_not_ready(cluster: Pretend) -> None:
    running(cluster)
    not_ready(cluster, cluster.nodes_of("train")[1]).tick(20)
    cluster.answers.clear()
    cluster.operate()
    cluster.tick(20)
    assert (cluster.status("train").attempt, cluster.status("train").phase) == (1, "Running")


def test_a_node_that_is_not_ready_is_lost_when_its_launcher_falls_silent(cluster: Pretend) -> None:
    running(cluster)
    node = cluster.nodes_of("train")[1]
    not_ready(cluster, node).tick(30)
    cluster.freeze("train-1")
    again(cluster, limit=60)
    assert cluster.status("train").last_failure.reason == Reason.NODE_LOST  # type: ignore[union-attr]
    assert node not in cluster.nodes_of("train")


def test_nobody_gives_up_a_gang_when_most_nodes_fall_not_ready_together(cluster: Pretend) -> None:
    """Not even one that the operator reaches as little as the API server reaches the kubelets."""
    running(cluster)
    cluster.reachable = False
    not_ready(cluster, *cluster.nodes).tick(280)
    assert cluster.status("train").attempt == 1
    assert "most nodes fell NotReady together" in said(cluster, "Running").message
    cluster.reachable = True
    for name, node in cluster.nodes.items():
        cluster.nodes[name] = replace(node, ready=True, missed=False, ready_since=cluster.now)
    cluster.tick(100)
    assert (cluster.status("train").attempt, cluster.status("train").phase) == (1, "Running")


def test_nodes_that_join_did_not_fall(cluster: Pretend) -> None:
    """Until its network is set up a kubelet says itself that it is not ready."""
    running(cluster)
    some = next(iter(cluster.nodes.values()))
    for n in range(3 * len(cluster.nodes)):
        cluster.nodes[f"new-{n}"] = replace(some, name=f"new-{n}", ready=False, ready_since=cluster.now)
    node = cluster.nodes_of("train")[1]
    cluster.lose_node(node)
    again(cluster, limit=60)
    assert node not in cluster.nodes_of("train")


def test_a_launcher_that_was_not_asked_since_its_node_is_not_ready_is_asked_first() -> None:
    """Of thousands, a launcher is asked so rarely that its last answer may be older."""
    status = Status("uid", 1, "", 0, "training")
    pod = Pod("default", "train-0", "uid", 0.0, "a", "Running", {}, ip="10.0.0.1", trainer=Running(0.0))
    for answer, speaks in (
        (Answer(0.0, status, time=95.0), True),
        (Answer(0.0, status, time=95.0, error="no route to host"), False),
        (Answer(0.0, status, time=105.0), True),
    ):
        assert _speaks(pod, answer, since=100.0, recent=20.0, now=111.0) == speaks
    assert not _speaks(pod, Answer(0.0, status, time=95.0), since=100.0, recent=20.0, now=121.0)
    assert not _speaks(pod, Answer(0.0, status, time=105.0), since=100.0, recent=20.0, now=126.0)


def test_most_nodes_that_do_not_come_back_are_lost_in_the_end(cluster: Pretend) -> None:
    running(cluster)
    for name in (
        *cluster.nodes_of("train"),
        *(name for name in cluster.nodes if name not in cluster.nodes_of("train")),
    ):
        cluster.lose_node(name)
    cluster.tick(280)
    assert cluster.status("train").attempt == 1
    cluster.tick(60)
    assert cluster.status("train").last_failure.reason == Reason.NODE_LOST  # type: ignore[union-attr]


def test_a_gang_of_several_nodes_that_falls_silent_whole_is_out_of_the_operators_reach(cluster: Pretend) -> None:
    running(cluster).tick(5)
    cluster.reachable = False
    cluster.tick(500)
    assert (cluster.status("train").attempt, cluster.status("train").phase) == (1, "Running")
    assert (said(cluster, "Controlled").status, said(cluster, "Controlled").reason) == (
        "False",
        Reason.OPERATOR_UNREACHABLE,
    )
    cluster.reachable = True
    cluster.tick(300)
    assert cluster.status("train").attempt == 1
    assert said(cluster, "Controlled").reason == Reason.LAUNCHERS_ANSWER


def test_a_gang_that_stays_silent_whole_is_replaced_in_the_end(cluster: Pretend) -> None:
    running(cluster).tick(5)
    for member in range(4):
        cluster.freeze(f"train-{member}")
    cluster.tick(590)
    assert cluster.status("train").attempt == 1
    again(cluster, limit=120)
    assert cluster.status("train").last_failure.reason == Reason.LAUNCHER_SILENT  # type: ignore[union-attr]


# What the user does ---------------------------------------------------------------------------------------------------


def test_a_running_job_whose_specification_makes_no_sense_any_more_leaves_no_pods_running(cluster: Pretend) -> None:
    running(cluster)
    job = cluster.job("train")
    error = FieldError("spec.trainer.steps", "0 is too small; use 1 or more")
    cluster.jobs[job.uid] = replace(job, spec=None, errors=(error,), generation=2)
    cluster.tick(20)
    assert cluster.status("train").phase == "Failed"
    assert not any(pod.live or pod.held for pod in cluster.pods.values())


def test_a_class_that_was_refused_may_be_corrected(cluster: Pretend) -> None:
    def refuse(action: act.TryPod) -> Trial:
        message = "spec.priorityClassName: there is no PriorityClass high"
        return Trial(action.generation, Verdict.REFUSED, cluster.now, Reason.PRIORITY_CLASS_NOT_FOUND, message)

    cluster.verdict = refuse
    cluster.submit("train", 2, priorityClassName="high")
    cluster.until(cluster.phase_is("train", "Failed"), 5)
    cluster.verdict = None
    cluster.edit("train", priority_class_name="low")
    cluster.until(cluster.phase_is("train", "Running"), 10)


def test_a_job_that_backs_off_says_what_made_its_attempts_end(cluster: Pretend) -> None:
    cluster.submit("train", 1)
    cluster._bind = lambda pod: cluster.pods.update(  # type: ignore[method-assign]
        {pod.uid: replace(pod, unscheduled="0/8 nodes are available: 1 node had a volume node affinity conflict")}
    )
    cluster.until(lambda: cluster.status("train").not_before is not None, 300)
    cluster.operate()
    pending = cluster.status("train").pending
    assert pending is not None
    assert pending.reason == Reason.BACKING_OFF
    assert "volume node affinity conflict" in pending.message


def test_the_pods_of_a_job_that_is_gone_are_let_go_together(cluster: Pretend) -> None:
    running(cluster)
    job = cluster.job("train")
    for pod in list(cluster.pods.values()):
        cluster._end(pod, 0, "Completed")
    del cluster.jobs[job.uid]
    turns = cycle(cluster.world(), cluster.now).turns
    assert [(turn.job_uid, len(turn.actions)) for turn in turns] == [(job.uid, 4)]


def test_a_job_that_waits_has_no_attempt_beyond_a_max_runtime_that_was_lowered(cluster: Pretend) -> None:
    running(cluster, maxRuntime="10h").tick(30)
    cluster.edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 60)
    cluster.edit("train", suspend=False, max_runtime="20s")
    cluster.tick(3)
    assert (cluster.status("train").phase, cluster.status("train").attempt) == ("Failed", 1)
    failed = next(c for c in cluster.status("train").conditions if c.type == "Failed")
    assert failed.reason == Reason.MAX_RUNTIME
    assert failed.message.startswith("ran for spec.maxRuntime (20s)")


# How much work it is --------------------------------------------------------------------------------------------------


def test_a_cycle_whose_writes_do_not_succeed_is_not_due_again_at_once(cluster: Pretend) -> None:
    running(cluster)
    cluster.edit("train", suspend=True)
    cluster.interrupt = lambda action: isinstance(action, act.WriteStatus) and action.status.started_at is None
    for _ in range(30):
        cluster.tick()
        wake = cycle(cluster.world(), cluster.now).wake
        assert wake is None or wake > cluster.now
    assert cluster.status("train").stop is not None, "it could not be closed"


def kinds(cluster: Pretend) -> list[str]:
    """What the job's pods need now: each run of actions of one kind, which are carried out side by side, named once."""
    actions = [a for a in cycle(cluster.world(), cluster.now).actions if not isinstance(a, act.Announce)]
    return [kind for kind, _ in groupby(type(action).__name__ for action in actions)]


def test_what_pods_need_is_carried_out_side_by_side(cluster: Pretend) -> None:
    running(cluster, nodes=8).tick(5)
    for member in (1, 3, 5):
        del cluster.answers[cluster.pod(f"train-{member}").uid]
        pod = cluster.pod(f"train-{member}")
        cluster.answers[pod.uid] = Answer(asked=cluster.now - 100, error="no route to host")
        cluster.pods[pod.uid] = replace(pod, trainer=Running(cluster.now - 100))
    job = cluster.job("train")
    controlled = tuple(c for c in job.status.conditions if c.type != "Controlled")
    cluster.jobs[job.uid] = job.with_status(job.status.but(conditions=controlled))
    cluster.edit("train", suspend=True)
    assert kinds(cluster) == ["WriteStatus", "AskStop", "DeletePod"]
    cluster.until(lambda: cluster.status("train").started_at is None, 60)
    assert kinds(cluster) in (["WriteStatus", "ReleasePod", "DeletePod"], ["ReleasePod", "DeletePod"], [])


def test_the_history_of_a_job_that_was_preempted_for_months_does_not_outgrow_its_object(cluster: Pretend) -> None:
    running(cluster).tick(12)
    job = cluster.job("train")
    marks = tuple(LineageMark(attempt=n - 5000, step=n) for n in range(5000))
    cluster.jobs[job.uid] = job.with_status(job.status.but(lineage=marks))
    cluster.delete_pod("train-0")
    again(cluster)
    lineage = cluster.status("train").lineage
    assert len(lineage) == 1000
    assert lineage[-1].attempt == 1


def test_launchers_are_asked_to_stop_though_something_else_that_the_job_needs_is_refused(cluster: Pretend) -> None:
    running(cluster, nodes=2).tick(5)
    cluster.crash("train-1")
    again(cluster)
    kept = cluster.pod("train-1")
    cluster.pods[kept.uid] = replace(kept, held=True)
    cluster.interrupt = lambda action: isinstance(action, act.ReleasePod)
    cluster.edit("train", suspend=True)
    cluster.tick(2)
    assert all(launcher.notice is not None for launcher in cluster.launchers.values() if launcher.plan.attempt == 2)


def test_what_ended_an_attempt_is_told_once(cluster: Pretend) -> None:
    running(cluster).tick(5)
    cluster.crash("train-1")
    again(cluster)
    assert [reason for _, reason, _ in cluster.events if reason == Reason.MEMBER_FAILED] == [Reason.MEMBER_FAILED]


def test_an_api_server_that_takes_the_pods_one_by_one_is_given_the_time(cluster: Pretend) -> None:
    last = cluster.now

    def throttled(action: act.Action) -> bool:
        nonlocal last
        if not isinstance(action, act.Create) or action.manifest["kind"] != "Pod":
            return False
        if cluster.now - last >= 25:
            last = cluster.now
            return False
        job = cluster.job("train")
        cluster.trials[job.uid] = Trial(job.generation, Verdict.WAIT, cluster.now, Reason.API_REFUSES, "429")
        return True

    cluster.interrupt = throttled
    cluster.submit("train", 4)
    cluster.until(cluster.phase_is("train", "Running"), 120)
    assert cluster.status("train").attempt == 1
