"""The status page of a job."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from trainyard.api.conditions import Phase, Reason
from trainyard.api.sent import SentInStep, SentOver
from trainyard.api.training_job import (
    Condition,
    Failure,
    Pending,
    PlanQuality,
    PlanSummary,
    Progress,
    Restarts,
    SavedCheckpoint,
    Stop,
    TrainingJobSpec,
    TrainingJobStatus,
)
from trainyard.cli.data import status_data, written
from trainyard.cli.layout import ago
from trainyard.cli.page import status_page
from trainyard.cli.training import progress_lines
from trainyard.world.records import Job, Membership, Pod, Running, Terminated, Waiting

NOW = 10_000.0
SPEC = TrainingJobSpec.model_validate({"nodes": 2, "template": {"spec": {"containers": [{"name": "trainer"}]}}})


def a_job(**status: object) -> Job:
    return Job("team", "lm", "u", 1, "1", NOW - 90, SPEC, TrainingJobStatus.model_validate(status))


def a_member(rank: int, attempt: int = 2) -> Pod:
    membership = Membership("u", attempt, rank, rank, f"node-{rank}", "d")
    return Pod(
        "team",
        f"lm-{rank}",
        f"p{rank}",
        NOW,
        f"node-{rank}",
        "Running",
        {},
        trainer=Running(NOW),
        membership=membership,
    )


def test_a_waiting_job_says_why_in_numbers_and_what_would_help() -> None:
    pending = Pending(
        reason=Reason.NO_DOMAIN_FITS,
        message="needs 4 nodes, 2 of 8 are free",
        unblock=("wait for team/v",),
        since=NOW - 75,
    )
    page = status_page(a_job(phase=Phase.PENDING, pending=pending), (), NOW)
    assert page.splitlines()[0] == "team/lm: Pending, attempt 0, 0 of 2 nodes train, 1m30s old"
    assert "Waits for 1m15s: NoDomainFits\n  needs 4 nodes, 2 of 8 are free\n  - wait for team/v\n" in page


def test_ranks_stand_in_their_order_with_what_their_trainers_do() -> None:
    ended = replace(a_member(0), trainer=Terminated(75, "Error", "", NOW), deleted=NOW)
    stuck = replace(a_member(1), trainer=Waiting("ImagePullBackOff", "no such image"), node="")
    page = status_page(a_job(phase=Phase.STARTING, attempt=2), (stuck, ended, a_member(7, attempt=1)), NOW)
    assert "0     lm-0  node-0    ended with 75 (Error), being deleted\n" in page
    assert "1     lm-1  (node-1)  ImagePullBackOff: no such image\n" in page
    assert "lm-7" not in page


def test_programs_are_told_the_status_and_the_members_of_the_attempt() -> None:
    members = (a_member(1), a_member(0), a_member(7, attempt=1))
    data = json.loads(written(status_data(a_job(phase=Phase.RUNNING, attempt=2), members)))
    assert (data["namespace"], data["name"], data["status"]["phase"]) == ("team", "lm", "Running")
    assert data["members"] == [
        {"rank": rank, "pod": f"lm-{rank}", "node": f"node-{rank}", "trainer": "runs"} for rank in (0, 1)
    ]


def test_a_training_job_shows_how_far_it_is_and_what_is_saved() -> None:
    page = status_page(
        a_job(
            phase=Phase.RUNNING,
            attempt=2,
            ready_nodes=2,
            progress=Progress(step=120, loss=2.34567, tokens_per_second=12345.6),
            checkpoint=SavedCheckpoint(step=100, attempt=2, time=NOW - 5),
            plan=PlanSummary(
                nodes=2,
                span="leaf",
                ring_edges={"spine": 0, "leaf": 0},
                quality=PlanQuality(summary="at most 6 % off", cost=1.06, lower_bound=1.0),
            ),
            restarts=Restarts(failures=1, preemptions=2),
        ),
        (a_member(0), a_member(1)),
        NOW,
    )
    for line in (
        "Progress    step 120, loss 2.3457, 12,346 tokens/s",
        "Checkpoint  step 100 of attempt 2, 5s ago",
        "Plan        2 nodes within one leaf; at most 6 % off; of the ring's edges 0 leave a spine, 0 leave a leaf",
        "Restarts    1 failure, 2 yields, 0 nodes lost",
    ):
        assert line in page.splitlines()


def test_what_a_step_sends_is_told_by_level_beside_the_prediction() -> None:
    levels = (
        SentOver(level="leaf", wire_bytes=1_000_400, seconds=0.1),
        SentOver(level="spine", wire_bytes=6_000_000, seconds=0.5),
    )
    sent = SentInStep(wire_bytes=7_000_400, predicted_wire_bytes=7_000_400, levels=levels)

    def lines(sent: SentInStep | None) -> list[str]:
        progress = Progress(step=5, sent=sent)
        told = progress_lines(a_job(phase=Phase.RUNNING, attempt=1, running_at=NOW, progress=progress))
        return [" ".join(line.split()) for line in told]

    said = "Sends 7 MB a step on the wire (7 MB predicted): 1 MB over leaf, 6 MB over spine"
    assert said in lines(sent)
    timed = sent.but(communication_seconds=0.55, exposed_seconds=0.2)
    assert f"{said}; 0.55 s on their way, 0.2 s of it waited for" in lines(timed)
    assert not any(line.startswith("Sends") for line in lines(None))


def test_a_job_that_was_asked_to_leave_says_how_long_it_has() -> None:
    stop = Stop(attempt=2, reason=Reason.PREEMPTED, requested_at=NOW - 3, deadline=NOW + 117)
    page = status_page(a_job(phase=Phase.YIELDING, attempt=2, stop=stop), (), NOW)
    assert "Was asked to leave 3s ago (Preempted); killed in 117 s" in page


def test_the_last_failure_names_its_pod_and_node() -> None:
    failure = Failure(
        attempt=1, reason=Reason.MEMBER_FAILED, message="out of memory", pod="lm-1", node="node-1", time=NOW - 60
    )
    page = status_page(a_job(phase=Phase.PENDING, attempt=1, last_failure=failure), (), NOW)
    assert "Attempt 1 failed 1m ago: MemberFailed, lm-1 on node-1\n  out of memory\n" in page


def test_conditions_come_as_a_table() -> None:
    condition = Condition(
        type="Accepted", status="True", reason="Valid", message="fine", last_transition_time=NOW - 4000
    )
    page = status_page(a_job(conditions=(condition,)), (), NOW)
    assert "Accepted   True  Valid   1h6m   fine\n" in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (61, "1m1s"),
        (600, "10m"),
        (3660, "1h1m"),
        (36_000, "10h"),
        (90_000, "1d1h"),
        (864_000, "10d"),
    ],
)
def test_lengths_of_time_are_short(seconds: float, text: str) -> None:
    assert ago(NOW - seconds, NOW) == text


def test_a_gang_that_runs_smaller_is_counted_by_what_it_holds() -> None:
    job = a_job(phase=Phase.RUNNING, attempt=2, ready_nodes=1, started_at=NOW - 60, plan=PlanSummary(nodes=1))
    assert (
        status_page(job, (), NOW).splitlines()[0]
        == "team/lm: Running, attempt 2, 1 of 1 nodes train (it wants 2), 1m30s old"
    )
