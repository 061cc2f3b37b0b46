"""What a scrape of the operator says."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType

from prometheus_client import generate_latest
from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.training_job import (
    Avoided,
    CheckpointPolicy,
    Ending,
    Failure,
    Goodput,
    Pending,
    Progress,
    Restarts,
    SavedCheckpoint,
    SlowRank,
    Stop,
    TrainingJobSpec,
    TrainingJobStatus,
)
from trainyard.contract.sent import Sent
from trainyard.contract.status import Status
from trainyard.lifecycle import conditions
from trainyard.lifecycle.deadlines import DOUBTFUL
from trainyard.lifecycle.goodput import CAUSES
from trainyard.telemetry.jobs import job_families
from trainyard.telemetry.metrics import CYCLE_BUDGET_SECONDS, Metrics, changed
from trainyard.world.records import Answer, Job, Membership, Node, Pod, World

SPINE, LEAF = "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def a_job(name: str, **status: object) -> Job:
    return Job(
        namespace="team",
        name=name,
        uid=f"uid-{name}",
        generation=1,
        resource_version="1",
        created=0.0,
        spec=None,
        status=TrainingJobStatus(**status),  # type: ignore[arg-type]
    )


def a_member(job: Job, rank: int, node: str, attempt: int = 1) -> Pod:
    return Pod(
        namespace=job.namespace,
        name=f"{job.name}-{rank}",
        uid=f"{job.uid}-{rank}",
        created=0.0,
        node=node,
        phase="Running",
        requests=MappingProxyType({}),
        membership=Membership(job.uid, attempt, rank, rank, node, "digest"),
    )


def an_answer(pod: Pod, step: int, loss: float | None = None, first: float | None = 1.5) -> Answer:
    """first: when its first step ended."""
    assert pod.membership
    attempt, rank = pod.membership.attempt, pod.membership.rank
    said = Status(pod.uid, attempt, "digest", rank, "training", step=step, loss=loss, first_step_time=first)
    return Answer(asked=1.0, status=said, time=2.0)


def a_node(name: str, **known: object) -> Node:
    return Node(name=name, uid=name, labels={}, allocatable={}, **known)  # type: ignore[arg-type]


def shown(world: World) -> Metrics:
    metrics = Metrics("0.1.0")
    metrics.cycled(world, 0.001)
    return metrics


def test_a_training_job_shows_the_slowest_members_step_and_rank_zeros_loss() -> None:
    job = a_job("small-lm", phase=Phase.RUNNING, attempt=1, ready_nodes=2)
    pods = (a_member(job, 0, "a"), a_member(job, 1, "b"))
    answers = {pods[0].uid: an_answer(pods[0], 8, loss=2.5), pods[1].uid: an_answer(pods[1], 7, loss=9.0)}
    metrics = shown(World(jobs={job.uid: job}, pods={p.uid: p for p in pods}, answers=answers))
    assert value(metrics, "trainyard_job_step", namespace="team", job="small-lm") == 7
    assert value(metrics, "trainyard_job_loss", namespace="team", job="small-lm") == 2.5
    assert value(metrics, "trainyard_job_ready_nodes", namespace="team", job="small-lm") == 2


def test_a_job_without_a_first_step_of_every_launcher_has_no_step_that_could_stand_still() -> None:
    job = a_job("own-script", phase=Phase.RUNNING, attempt=1, ready_nodes=2)
    pods = (a_member(job, 0, "a"), a_member(job, 1, "b"))
    answers = {pods[0].uid: an_answer(pods[0], 1), pods[1].uid: an_answer(pods[1], 0, first=None)}
    metrics = shown(World(jobs={job.uid: job}, pods={p.uid: p for p in pods}, answers=answers))
    assert value(metrics, "trainyard_job_step", namespace="team", job="own-script") is None
    assert value(metrics, "trainyard_job_ready_nodes", namespace="team", job="own-script") == 2


def test_a_job_whose_saves_all_fail_ages_from_when_it_began_to_train_over_all_attempts() -> None:
    name = "trainyard_job_unsaved_since_timestamp_seconds"
    spec = TrainingJobSpec.model_validate(
        {"nodes": 1, "template": {"spec": {"containers": [{"name": "t"}]}}, "checkpoint": {"url": "s3://bucket/folder"}}
    )
    trains = a_job("j", phase=Phase.RUNNING, attempt=2, running_at=5000.0, ran_seconds=900.0)
    saved = trains.status.but(checkpoint=SavedCheckpoint(step=40, attempt=1, time=4800.0))
    expected = {
        4100.0: replace(trains, spec=spec),
        4800.0: replace(trains, spec=spec, status=saved),
        None: replace(trains, spec=spec.but(checkpoint=CheckpointPolicy())),
    }
    for since, job in expected.items():
        assert value(shown(World(jobs={job.uid: job})), name, namespace="team", job="j") == since


def test_the_answers_of_an_older_attempt_say_nothing_of_the_job() -> None:
    job = a_job("small-lm", phase=Phase.STARTING, attempt=2)
    old = a_member(job, 0, "a", attempt=1)
    metrics = shown(World(jobs={job.uid: job}, pods={old.uid: old}, answers={old.uid: an_answer(old, 8)}))
    assert value(metrics, "trainyard_job_step", namespace="team", job="small-lm") is None


def test_a_job_says_where_its_time_went_who_is_slow_and_what_a_save_would_take() -> None:
    goodput = Goodput(since=0.0, until=100.0, productive=70.0, starting=20.0, lost=10.0)
    slow = SlowRank(rank=3, node="b", times=1.7, own_seconds=0.5, others_seconds=0.3, time=9.0)
    failed = Failure(attempt=1, reason="Hang", node="b", time=time.time())
    job = a_job(
        "j", phase=Phase.RUNNING, attempt=1, goodput=goodput, straggler=slow, progress=Progress(durable_seconds=9.0)
    )
    other = a_job("o", phase=Phase.PENDING, last_failure=failed, waiting_since=5.0)
    pod = a_member(job, 0, "a")
    sent = Sent({"gradients": 96.0}, 96.0, 168.0, 160.0, {"spine": 168.0}, {"spine": 0.5}, 0.5, 0.25, 1.0)
    said = Status(pod.uid, 1, "digest", 0, "training", step=1, mfu=0.41, grad_norm=1.5, memory_bytes=7, sent=sent)
    metrics = shown(
        World(
            nodes={"b": a_node("b")},
            jobs={one.uid: one for one in (job, other)},
            pods={pod.uid: pod},
            answers={pod.uid: Answer(asked=1.0, status=said, time=2.0)},
        )
    )
    name = {"namespace": "team", "job": "j"}
    causes = {cause: value(metrics, "trainyard_job_goodput_seconds", **name, cause=cause) for cause in CAUSES}
    assert sum(seconds or 0.0 for seconds in causes.values()) == 100.0
    assert (causes["productive"], causes["lost"], causes["waiting"]) == (70.0, 10.0, 0.0)
    assert value(metrics, "trainyard_job_straggler_ratio", **name, node="b") == 1.7
    assert value(metrics, "trainyard_node_blamed_jobs", node="b") == 2
    assert value(metrics, "trainyard_job_mfu", **name) == 0.41
    assert value(metrics, "trainyard_job_gradient_norm", **name) == 1.5
    assert value(metrics, "trainyard_job_memory_bytes", **name) == 7
    assert value(metrics, "trainyard_job_sent_bytes", **name, data="gradients") == 96.0
    assert value(metrics, "trainyard_job_sent_wire_bytes", **name, level="spine") == 168.0
    assert value(metrics, "trainyard_job_sent_predicted_wire_bytes", **name) == 160.0
    assert value(metrics, "trainyard_job_communication_seconds", **name) == 0.5
    assert value(metrics, "trainyard_job_communication_exposed_seconds", **name) == 0.25
    assert value(metrics, "trainyard_job_durable_in_seconds", **name) == 9.0
    assert value(metrics, "trainyard_job_waiting_since_timestamp_seconds", namespace="team", job="o") == 5.0
    assert value(metrics, "trainyard_job_waiting_since_timestamp_seconds", **name) is None


def blamed(now: float, *jobs: Job) -> dict[str, float]:
    world = World(nodes={"b": a_node("b")}, jobs={job.uid: job for job in jobs})
    family = next(one for one in job_families(world, now) if one.name == "trainyard_node_blamed_jobs")
    return {sample.labels["node"]: sample.value for sample in family.samples}


def test_a_node_is_named_for_as_long_as_its_job_goes_by_it() -> None:
    failed = a_job("f", phase=Phase.RUNNING, last_failure=Failure(attempt=1, reason="Hang", node="b", time=1000.0))
    unfit = Avoided(node="b", reason=Reason.PREFLIGHT_FAILED, message="slow", attempt=1, time=1000.0, until=4600.0)
    avoids = a_job("a", phase=Phase.RUNNING, avoid=(unfit,))
    assert blamed(1000.0 + 60, failed, avoids) == {"b": 2}
    assert blamed(4600.0, failed, avoids) == {"b": 1}
    assert blamed(1000.0 + DOUBTFUL + 1, failed, avoids) == {}


def test_time_is_counted_by_cause_from_what_changed_and_nothing_twice() -> None:
    metrics = Metrics("0")
    first = TrainingJobStatus(goodput=Goodput(since=0.0, until=10.0, waiting=10.0))
    second = TrainingJobStatus(goodput=Goodput(since=0.0, until=30.0, waiting=10.0, productive=20.0))
    metrics.wrote(TrainingJobStatus(), first)
    metrics.wrote(first, second)
    metrics.wrote(second, second)
    assert value(metrics, "trainyard_goodput_seconds_total", cause="waiting") == 10
    assert value(metrics, "trainyard_goodput_seconds_total", cause="productive") == 20


def test_an_ended_job_has_no_series_of_its_own() -> None:
    running, ended = a_job("first", phase=Phase.RUNNING, attempt=1), a_job("second", phase=Phase.SUCCEEDED, attempt=1)
    metrics = shown(World(jobs={j.uid: j for j in (running, ended)}))
    assert b'job="second"' in generate_latest(shown(World(jobs={"x": a_job("second", phase=Phase.RUNNING)})).registry)
    assert b'job="second"' not in generate_latest(metrics.registry)
    metrics.cycled(World(), 0.001)
    assert b'job="first"' not in generate_latest(metrics.registry)


def test_jobs_are_counted_by_phase_and_by_why_they_wait() -> None:
    waiting = a_job("w", phase=Phase.PENDING, pending=Pending(reason=Reason.INSUFFICIENT_NODES))
    metrics = shown(World(jobs={j.uid: j for j in (waiting, a_job("new"), a_job("s", phase=Phase.SUSPENDED))}))
    assert value(metrics, "trainyard_jobs", phase="Pending") == 2
    assert value(metrics, "trainyard_jobs", phase="Suspended") == 1
    assert value(metrics, "trainyard_jobs", phase="Failed") == 0
    assert value(metrics, "trainyard_jobs_pending", reason="InsufficientNodes") == 1


def test_a_node_is_used_from_the_moment_a_member_is_pinned_to_it() -> None:
    job = a_job("j", phase=Phase.STARTING, attempt=1)
    pinned = replace(a_member(job, 0, "a"), node="")
    nodes = {node.name: node for node in (a_node("a"), a_node("b", unschedulable=True), a_node("c"))}
    metrics = shown(World(nodes=nodes, jobs={job.uid: job}, pods={pinned.uid: pinned}))
    assert [value(metrics, "trainyard_nodes", state=s) for s in ("free", "used", "unavailable")] == [1, 1, 1]


def test_free_nodes_count_by_the_largest_gang_that_fits_within_one_domain() -> None:
    leaves = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b"}
    labels = {name: {SPINE: "s", LEAF: leaf} for name, leaf in leaves.items()}
    nodes = {name: replace(a_node(name), labels=labels[name], unschedulable=name == "b3") for name in leaves}
    job = a_job("j", phase=Phase.RUNNING, attempt=1)
    member = a_member(job, 0, "b2")
    metrics = shown(World(nodes=nodes, jobs={job.uid: job}, pods={member.uid: member}))
    assert value(metrics, "trainyard_best_domain_free_nodes", level="leaf") == 2
    assert value(metrics, "trainyard_best_domain_free_nodes", level="spine") == 3


def test_a_cycle_over_its_budget_is_counted() -> None:
    metrics = shown(World())
    assert value(metrics, "trainyard_cycles_over_budget_total") == 0
    metrics.cycled(World(), CYCLE_BUDGET_SECONDS * 2)
    assert value(metrics, "trainyard_cycles_over_budget_total") == 1
    assert value(metrics, "trainyard_cycle_duration_seconds_count") == 2


def test_a_yield_counts_once_with_the_reason_of_its_stop_and_the_seconds_until_durable() -> None:
    stop = Stop(attempt=1, reason=Reason.PREEMPTED, requested_at=100.0, deadline=220.0)
    running = TrainingJobStatus(phase=Phase.YIELDING, attempt=1, stop=stop)
    saved = running.but(checkpoint=SavedCheckpoint(step=40, attempt=1, seconds=3.0, time=104.0))
    gone = saved.but(phase=Phase.PENDING, stop=None, restarts=Restarts(preemptions=1))
    metrics = Metrics("0.1.0")
    for before, after in ((running, saved), (saved, gone), (gone, gone)):
        metrics.wrote(before, after)
    assert value(metrics, "trainyard_preemptions_total", reason="Preempted") == 1
    assert value(metrics, "trainyard_notice_to_durable_seconds_sum") == 4.0
    assert value(metrics, "trainyard_notice_to_durable_seconds_count") == 1
    assert value(metrics, "trainyard_checkpoint_duration_seconds_sum") == 3.0


def test_an_attempt_that_ends_without_a_failure_of_its_own_counts_by_its_own_reason() -> None:
    """And not by that of an earlier attempt, which the status still names."""
    metrics = Metrics("test")
    earlier = Failure(attempt=1, reason=Reason.HANG, node="a1")
    ending = Ending(attempt=2, outcome="Failed", reason=Reason.RANK_MISMATCH, message="", time=5.0)
    before = TrainingJobStatus(attempt=2, restarts=Restarts(failures=1), last_failure=earlier)
    metrics.wrote(before.but(ending=ending), before.but(restarts=Restarts(failures=2)))
    vanished = conditions.put(before, ConditionType.RUNNING, False, Reason.MEMBER_LOST, "", 9.0, 1)
    metrics.wrote(before, vanished.but(restarts=Restarts(failures=1, nodes_lost=1)))
    assert value(metrics, "trainyard_failures_total", reason="RankMismatch") == 1
    assert value(metrics, "trainyard_failures_total", reason="MemberLost") == 1
    assert value(metrics, "trainyard_failures_total", reason="Hang") is None


def test_a_node_that_fails_the_preflight_counts_as_a_failure_by_that_reason() -> None:
    metrics = Metrics("test")
    failure = Failure(attempt=1, reason=Reason.PREFLIGHT_FAILED, node="a1")
    before = TrainingJobStatus(attempt=1)
    after = before.but(restarts=Restarts(unfit=1), last_failure=failure)
    metrics.wrote(before, after)
    metrics.wrote(after, after.but(attempt=2))
    assert value(metrics, "trainyard_failures_total", reason="PreflightFailed") == 1


def test_a_checkpoint_from_before_the_notice_is_no_answer_to_it() -> None:
    stop = Stop(attempt=1, reason=Reason.PREEMPTED, requested_at=100.0, deadline=220.0)
    before = TrainingJobStatus(attempt=1, stop=stop)
    after = before.but(checkpoint=SavedCheckpoint(step=40, attempt=1, seconds=3.0, time=99.0))
    assert changed(before, after).notice_to_durable_seconds is None


def test_the_wait_of_a_gang_is_measured_at_its_first_attempt_alone() -> None:
    queued = TrainingJobStatus(phase=Phase.PENDING, queued_at=10.0)
    first = queued.but(attempt=1, started_at=40.0)
    assert changed(queued, first).gang_wait_seconds == 30.0
    assert changed(first, first.but(attempt=2, started_at=90.0)).gang_wait_seconds is None


def test_every_metric_has_the_prefix_and_a_help_text() -> None:
    for family in Metrics("0.1.0").registry.collect():
        assert family.name.startswith("trainyard_"), family.name
        assert family.documentation.endswith("."), family.name
