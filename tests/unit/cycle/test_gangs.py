"""One job on a pretended cluster: it starts whole, ends for a reason, and comes back where that makes sense."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.errors import FieldError
from trainyard.contract.network import Sign, Trouble
from trainyard.contract.status import Fault
from trainyard.cycle import actions as act
from trainyard.cycle import cycle
from trainyard.world.records import Running, Trial, Verdict


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes()


def running(cluster: Pretend, name: str = "train", nodes: int = 4, **spec: object) -> Pretend:
    cluster.submit(name, nodes, **spec)  # type: ignore[arg-type]
    return cluster.until(cluster.phase_is(name, "Running"))


def test_a_gang_starts_whole_on_the_fewest_domains_in_topology_order(cluster: Pretend) -> None:
    running(cluster, nodes=4)
    assert cluster.nodes_of("train") == ["a0", "a1", "a2", "a3"]
    plan = cluster.status("train").plan
    assert plan is not None
    assert (plan.span, plan.spans, plan.ring_edges) == ("spine", {"spine": 1, "leaf": 2}, {"spine": 0, "leaf": 2})


def test_what_the_members_need_is_made_before_them(cluster: Pretend) -> None:
    made: list[str] = []

    def record(action: act.Action) -> bool:
        if isinstance(action, act.Create):
            made.append(action.manifest["kind"])
        elif isinstance(action, act.WriteStatus | act.CreateControl):
            made.append(type(action).__name__)
        return False

    cluster.interrupt = record
    running(cluster, nodes=2)
    first = made.index("Pod")
    assert {"CreateControl", "Service", "ConfigMap"} <= set(made[:first])
    assert made[:first].count("WriteStatus") >= 1


def test_a_job_that_does_not_fit_makes_nothing_and_says_why_in_numbers(cluster: Pretend) -> None:
    cluster.submit("large", 9)
    cluster.tick(2)
    pending = cluster.status("large").pending
    assert cluster.pods == {}
    assert pending is not None
    assert pending.message == "needs 9 nodes; 8 are eligible, 8 of them are free"
    assert pending.unblock == ("run with 8 of 9 nodes: spec.minNodes: 8", "1 more eligible node")


def test_a_finished_gang_succeeds_and_nothing_holds_its_objects(cluster: Pretend) -> None:
    cluster.submit("train", 4, steps=5)
    cluster.until(cluster.phase_is("train", "Succeeded")).tick(2)
    assert all(not pod.held for pod in cluster.pods.values())
    assert not cluster.job("train").held
    assert len(cluster.pods) == 4, "the pods stay for their logs"


def test_a_killed_worker_costs_one_failure_and_the_next_attempt_resumes(cluster: Pretend) -> None:
    running(cluster)
    before = set(cluster.pods)
    cluster.tick(25).crash("train-1")
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running")
    status = cluster.status("train")
    assert (status.restarts.failures, status.restarts.preemptions) == (1, 0)
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.last_failure.pod) == (Reason.MEMBER_FAILED, "train-1")
    assert [(mark.attempt, mark.step) for mark in status.lineage] == [(1, 20)]
    assert set(cluster.pods) == before, "it begins in the pods that are there"


@pytest.mark.parametrize(
    ("sign", "bearing", "reason"),
    [
        ("FabricError", "error", Reason.FABRIC_ERROR),
        ("FabricError", "secondary", Reason.MEMBER_FAILED),
        ("CollectiveTimeout", "secondary", Reason.COLLECTIVE_TIMEOUT),
        ("GpuDirectOff", "observation", Reason.MEMBER_FAILED),
        ("OfANewerLauncher", "error", Reason.MEMBER_FAILED),
    ],
)
def test_what_a_library_said_of_the_network_is_the_reason_of_the_failure(
    cluster: Pretend, sign: str, bearing: str, reason: Reason
) -> None:
    running(cluster)
    trouble = Trouble(sign, 1, cluster.now, "NCCL WARN NET/IB", device="mlx5_3", bearing=bearing)
    cluster._end(cluster.pod("train-1"), 1, "Error", Fault(1, cluster.now, "exited with 1"), trouble=trouble)
    cluster.until(lambda: cluster.status("train").restarts.failures == 1)
    failure = cluster.status("train").last_failure
    assert failure is not None
    assert failure.reason == reason


@pytest.mark.parametrize("other", [Trouble("FabricError", 2, 0.0, "NCCL WARN NET/IB"), None])
def test_case_42_what_the_first_to_fail_could_not_name_another_has_named(
    cluster: Pretend, other: Trouble | None
) -> None:
    running(cluster)
    followed = Trouble("CollectiveTimeout", 1, cluster.now, "Watchdog", bearing="secondary")
    cluster._end(cluster.pod("train-1"), 1, "Error", Fault(1, cluster.now, "SIGABRT"), trouble=followed)
    cluster._end(cluster.pod("train-2"), 1, "Error", Fault(2, cluster.now + 1, "SIGABRT"), trouble=other)
    cluster.until(lambda: cluster.status("train").restarts.failures == 1)
    failure = cluster.status("train").last_failure
    assert failure is not None
    named = (Reason.FABRIC_ERROR, "train-2") if other else (Reason.COLLECTIVE_TIMEOUT, "train-1")
    assert (failure.reason, failure.pod) == named


def test_every_sign_of_trouble_is_a_reason() -> None:
    assert {Reason(sign) for sign in Sign} <= set(Reason)


def test_failures_beyond_the_budget_end_the_job_with_the_last_reason(cluster: Pretend) -> None:
    running(cluster, restart={"failures": 1, "per": "1h"})
    for attempt in (1, 2):
        cluster.until(cluster.phase_is("train", "Running"), 60).tick(2)
        cluster.crash("train-0")
        cluster.until(lambda n=attempt: cluster.status("train").restarts.failures == n)  # type: ignore[misc]
    cluster.until(cluster.phase_is("train", "Failed")).tick(15)
    failed = next(c for c in cluster.status("train").conditions if c.type == "Failed")
    assert failed.reason == Reason.FAILURE_BUDGET_SPENT
    assert "2 failures within 1h, and spec.restart.failures forgives 1" in failed.message
    assert all(not pod.live for pod in cluster.pods.values())


def test_a_wrong_configuration_is_not_tried_again(cluster: Pretend) -> None:
    running(cluster, nodes=2)
    for pod in list(cluster.pods.values()):
        cluster._end(pod, 78, "Error", Fault(0, cluster.now, "data.glob: nothing matches '/data/*.bin'"))
    cluster.tick(5)
    status = cluster.status("train")
    assert (status.phase, status.attempt) == ("Failed", 1)
    failed = next(c for c in status.conditions if c.type == "Failed")
    assert failed.reason == Reason.INVALID_CONFIGURATION
    assert "data.glob: nothing matches" in failed.message


def test_an_exit_75_that_nobody_asked_for_is_a_failure(cluster: Pretend) -> None:
    running(cluster, nodes=2)
    for pod in list(cluster.pods.values()):
        cluster._end(pod, 75, "Error")
    cluster.until(lambda: cluster.status("train").restarts.failures == 1)
    assert cluster.status("train").last_failure.reason == Reason.UNASKED_YIELD  # type: ignore[union-attr]


def test_a_pod_deleted_by_hand_makes_the_whole_gang_save_and_costs_nothing(cluster: Pretend) -> None:
    running(cluster)
    cluster.tick(13).delete_pod("train-2")
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running")
    status = cluster.status("train")
    assert (status.restarts.failures, status.restarts.preemptions) == (0, 1)
    assert status.resume is not None
    steps = cluster.history[cluster.job("train").uid]
    assert steps == list(range(1, len(steps) + 1)), "no step is lost and none is done twice"


def test_a_pod_that_vanishes_without_a_word_ends_the_attempt_free_of_charge(cluster: Pretend) -> None:
    running(cluster)
    del cluster.pods[cluster.pod("train-3").uid]
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running")
    assert (cluster.status("train").restarts.failures, cluster.status("train").restarts.nodes_lost) == (0, 1)


def test_a_lost_node_is_replaced_and_its_pod_is_not_waited_for(cluster: Pretend) -> None:
    running(cluster)
    cluster.tick(12).lose_node("a1")
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running", 120)
    assert "a1" not in cluster.nodes_of("train")
    assert len([n for n in cluster.nodes_of("train") if n]) >= 4
    assert cluster.status("train").restarts.nodes_lost == 1
    assert cluster.status("train").last_failure.node == "a1"  # type: ignore[union-attr]


def test_a_node_that_dies_costs_no_failure_though_its_launcher_is_silent_long_before_kubernetes_says_so(
    cluster: Pretend,
) -> None:
    running(cluster)
    cluster.freeze("train-1")
    node = cluster.nodes_of("train")[1]
    cluster.tick(70).lose_node(
        node
    )  # 11 s since the last answer, 50 s of the node controller's grace, its looks every 5 s
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running", 120)
    assert (cluster.status("train").restarts.failures, cluster.status("train").restarts.nodes_lost) == (0, 1)


def test_a_frozen_launcher_ends_the_attempt_and_cannot_come_back_into_it(cluster: Pretend) -> None:
    running(cluster)
    cluster.tick(5)
    for member in range(3):
        cluster.freeze(f"train-{member}")
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running", 150)
    assert cluster.status("train").last_failure.reason == Reason.LAUNCHER_SILENT  # type: ignore[union-attr]
    assert (cluster.status("train").restarts.failures, cluster.status("train").restarts.nodes_lost) == (0, 1)


def test_silence_of_several_jobs_at_once_is_the_operators_own_trouble(cluster: Pretend) -> None:
    running(cluster, "one", nodes=2)
    running(cluster, "two", nodes=2)
    cluster.reachable = False
    cluster.tick(200)
    for name in ("one", "two"):
        status = cluster.status(name)
        assert (status.phase, status.attempt) == ("Running", 1)
        controlled = next(c for c in status.conditions if c.type == "Controlled")
        assert (controlled.status, controlled.reason) == ("False", Reason.OPERATOR_UNREACHABLE)


def test_launchers_that_were_never_reached_are_a_condition_and_yield_by_signal(cluster: Pretend) -> None:
    cluster.reachable = False
    cluster.submit("train", 4)
    cluster.until(cluster.phase_is("train", "Running"), 60)
    controlled = next(c for c in cluster.status("train").conditions if c.type == "Controlled")
    assert (controlled.status, controlled.reason) == ("False", Reason.LAUNCHER_UNREACHABLE)
    cluster.edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 30)
    assert cluster.status("train").resume is not None, "SIGTERM made it save"


def test_suspension_saves_and_resumption_continues_at_that_step(cluster: Pretend) -> None:
    running(cluster)
    cluster.tick(7).edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 30).tick(2)
    saved = cluster.status("train").resume
    assert saved is not None
    assert not any(pod.live for pod in cluster.pods.values())
    cluster.tick(50).edit("train", suspend=False)
    cluster.until(cluster.phase_is("train", "Running"), 30).tick(5)
    steps = cluster.history[cluster.job("train").uid]
    assert steps == list(range(1, len(steps) + 1))
    assert cluster.status("train").restarts.failures == 0


def test_a_deleted_job_takes_its_pods_along_and_leaves_nothing(cluster: Pretend) -> None:
    running(cluster)
    cluster.delete_job("train")
    cluster.tick(10)
    assert (cluster.jobs, cluster.pods) == ({}, {})


def test_a_deleted_job_on_a_dead_node_is_gone_within_its_deadline(cluster: Pretend) -> None:
    running(cluster)
    cluster.lose_node("a0")
    cluster.delete_job("train")
    cluster.until(lambda: not cluster.jobs, 300).tick(2)
    assert cluster.pods == {}


def test_max_runtime_saves_and_fails_with_that_reason(cluster: Pretend) -> None:
    running(cluster, maxRuntime="30s")
    cluster.until(cluster.phase_is("train", "Failed"), 60)
    failed = next(c for c in cluster.status("train").conditions if c.type == "Failed")
    assert failed.reason == Reason.MAX_RUNTIME
    assert "saved step" in failed.message


def test_an_attempt_that_does_not_start_in_time_says_which_rank_and_why(cluster: Pretend) -> None:
    cluster._kubelet = lambda pod: None  # type: ignore[assignment, method-assign]
    cluster.submit("train", 2)
    cluster.until(lambda: cluster.status("train").last_failure is not None, 700)
    failure = cluster.status("train").last_failure
    assert failure is not None
    assert failure.reason == Reason.START_TIMEOUT
    assert "rank 0 does not run 600 s after the start" in failure.message


def test_a_node_taken_by_somebody_else_gives_another_plan_free_of_charge(cluster: Pretend) -> None:
    cluster.submit("train", 2)
    cluster.operate()
    cluster.foreign("a0")
    cluster.until(cluster.phase_is("train", "Running"), 60)
    assert "a0" not in cluster.nodes_of("train")
    assert cluster.status("train").restarts.failures == 0


def test_an_object_that_makes_no_sense_fails_with_the_fields_path_and_nothing_is_made(cluster: Pretend) -> None:
    error = FieldError("spec.trainer.steps", "0 is too small; use 1 or more")
    cluster.add("wrong", "team", None, errors=(error,))
    cluster.tick(3)
    status = cluster.status("wrong")
    accepted = next(c for c in status.conditions if c.type == "Accepted")
    assert (status.phase, accepted.status) == ("Failed", "False")
    assert accepted.message == "spec.trainer.steps: 0 is too small; use 1 or more"
    assert cluster.pods == {}
    assert len(cluster.events) == 1


def test_a_status_that_cannot_be_read_is_never_overwritten(cluster: Pretend) -> None:
    running(cluster, nodes=2)
    job = cluster.job("train")
    error = FieldError("status.phase", "'Hovering' is no phase")
    cluster.jobs[job.uid] = replace(job, spec=None, status=job.status.but(started_at=None), errors=(error,))
    before = dict(cluster.jobs), dict(cluster.pods)
    cluster.operate(3)
    assert (dict(cluster.jobs), dict(cluster.pods)) == before
    assert cluster.events[-1][1] == Reason.UNREADABLE_STATUS


def test_a_setting_that_will_not_do_what_it_says_is_told_when_the_gang_starts(cluster: Pretend) -> None:
    running(cluster, nodes=1, network={"env": [{"name": "GLOO_SOCKET_IFNAME", "value": "=eth0"}]})
    doubts = [message for _, reason, message in cluster.events if reason == Reason.QUESTIONABLE_SETTINGS]
    assert len(doubts) == 1
    assert "gloo knows neither = nor ^" in doubts[0]


def test_a_template_that_the_server_refuses_is_tried_once_per_generation(cluster: Pretend) -> None:
    tried: list[int] = []

    def refuse(action: act.TryPod) -> Trial:
        tried.append(action.generation)
        message = "spec.template.spec.containers[0].image: Required value"
        return Trial(action.generation, Verdict.REFUSED, cluster.now, Reason.TEMPLATE_REFUSED, message)

    cluster.verdict = refuse
    cluster.submit("wrong", 2)
    cluster.tick(30)
    assert (tried, cluster.status("wrong").phase) == ([1], "Failed")
    cluster.verdict = None
    cluster.edit("wrong", max_runtime="1h")
    cluster.until(cluster.phase_is("wrong", "Running"), 30)


def test_what_is_not_the_users_mistake_is_waited_for(cluster: Pretend) -> None:
    def wait(action: act.TryPod) -> Trial:
        message = "persistentvolumeclaim checkpoints does not exist"
        return Trial(action.generation, Verdict.WAIT, cluster.now, Reason.VOLUME_NOT_FOUND, message)

    cluster.verdict = wait
    cluster.submit("train", 2)
    cluster.tick(60)
    pending = cluster.status("train").pending
    assert pending is not None
    assert (cluster.status("train").phase, pending.reason) == ("Pending", Reason.VOLUME_NOT_FOUND)
    cluster.verdict = None
    cluster.until(cluster.phase_is("train", "Running"), 30)


def test_a_missing_priority_class_is_named_and_waited_for(cluster: Pretend) -> None:
    cluster.submit("train", 2, priorityClassName="urgent")
    cluster.tick(3)
    pending = cluster.status("train").pending
    assert pending is not None
    assert pending.message == "spec.priorityClassName: there is no PriorityClass urgent; the cluster has none"
    cluster.with_class("urgent", 100)
    cluster.until(cluster.phase_is("train", "Running"), 10)


def test_a_namespace_that_is_going_away_gets_no_new_attempt(cluster: Pretend) -> None:
    cluster.submit("train", 2)
    world = replace(cluster.world(), leaving=frozenset({"team"}))
    for _ in range(4):
        for turn in cycle(world, cluster.now).turns:
            cluster.perform(turn.actions)
        world = replace(cluster.world(), leaving=frozenset({"team"}))
    assert cluster.pods == {}


def test_a_member_that_runs_by_another_plan_ends_the_attempt(cluster: Pretend) -> None:
    running(cluster, nodes=2)
    pod = cluster.pod("train-1")
    answer = cluster.answers[pod.uid]
    assert answer.status is not None
    cluster.answers[pod.uid] = replace(answer, status=replace(answer.status, node_rank=0))
    cluster.operate(1)
    ending = cluster.status("train").ending
    assert ending is not None
    assert ending.reason == Reason.RANK_MISMATCH


def test_attempts_without_a_new_step_back_off(cluster: Pretend) -> None:
    cluster.submit("train", 1, restart={"failures": 100, "per": "24h"})
    cluster.trains = False
    starts: list[float] = []
    for _ in range(5):
        cluster.until(lambda: any(isinstance(pod.trainer, Running) for pod in cluster.pods.values()), 400)
        starts.append(cluster.now)
        for pod in [pod for pod in cluster.pods.values() if isinstance(pod.trainer, Running)]:
            cluster._end(pod, 1, "Error")
        cluster.operate()
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 15


def own_script(cluster: Pretend) -> None:
    """A job whose command is the user's, and which reports nothing."""
    job = cluster.submit("own", 2)
    assert job.spec is not None
    container = {**job.spec.template["spec"]["containers"][0], "command": ["python3", "train.py"]}
    template = {"spec": {**job.spec.template["spec"], "containers": [container]}}
    cluster.jobs[job.uid] = replace(job, spec=job.spec.but(template=template))
    cluster.trains, cluster.speaks = False, False
    cluster.until(cluster.phase_is("own", "Running"), 20)


def test_a_script_that_reports_nothing_runs_once_its_launchers_answer(cluster: Pretend) -> None:
    own_script(cluster)
    assert cluster.status("own").ready_nodes == 2


def test_a_script_that_reports_nothing_is_not_held_up_for_bringing_no_steps(cluster: Pretend) -> None:
    own_script(cluster)
    for attempt in (1, 2, 3):
        cluster.until(lambda n=attempt: cluster.status("own").attempt == n, 5)  # type: ignore[misc]
        cluster.until(cluster.phase_is("own", "Running"), 10).tick(90)
        cluster.edit("own", suspend=True)
        cluster.until(cluster.phase_is("own", "Suspended"), 200)
        assert cluster.events[-1][2] == "left; it reports no steps, so what it saved is its own to know"
        cluster.edit("own", suspend=False)
    assert cluster.status("own").restarts.fruitless == 0


def test_the_reason_of_a_wait_is_that_of_the_request_whatever_is_free(cluster: Pretend) -> None:
    one_leaf = {"within": {"level": "leaf", "required": True}}
    cluster.submit("wide", 3, placement=one_leaf)
    cluster.tick(2)
    before = cluster.status("wide").pending
    cluster.submit("other", 7)
    cluster.until(cluster.phase_is("other", "Running"), 10)
    after = cluster.status("wide").pending
    assert before is not None
    assert after is not None
    assert (before.reason, before.since) == (after.reason, after.since) == (Reason.NO_DOMAIN_FITS, before.since)
