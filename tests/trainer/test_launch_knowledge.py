"""What the launcher makes of reports: figures, phases, silence, and the text of its metrics."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launching import a_plan
from trainyard.contract.plan import Mark
from trainyard.contract.status import Commit
from trainyard_trainer import report
from trainyard_trainer.launch import hang, metrics
from trainyard_trainer.launch.ending import Notice
from trainyard_trainer.launch.hang import furthest_behind, patience_seconds
from trainyard_trainer.launch.metrics import Measured
from trainyard_trainer.launch.progress import (
    COUNTED_REASONS,
    KEPT_WARNINGS,
    MOST_SENT,
    Progress,
    durable_seconds,
    heard,
    newest_commit,
    phase_of,
    step_of,
)
from trainyard_trainer.report import Phase

finite = st.floats(allow_nan=False, allow_infinity=False)
steps = st.integers(-5, 10**6)
texts = st.text(max_size=30)
SAID = {"at": finite, "rank": st.integers(0, 9)}
reports = st.one_of(
    st.builds(report.PhaseChanged, **SAID, phase=st.sampled_from(Phase), step=steps),
    st.builds(
        report.StepDone,
        **SAID,
        step=steps,
        loss=finite | st.none(),
        tokens=steps,
        step_seconds=finite,
        grad_norm=finite | st.none(),
        digest=texts,
    ),
    st.builds(report.CheckpointStarted, **SAID, step=steps, attempt=st.integers(1, 2), path=texts),
    st.builds(
        report.CheckpointDurable, **SAID, step=steps, attempt=st.integers(1, 2), path=texts, bytes=steps, seconds=finite
    ),
    st.builds(report.StopAcknowledged, **SAID, step=steps),
    st.builds(
        report.SentInStep,
        **SAID,
        axis=texts,
        data=texts,
        collective=texts,
        bytes=st.integers(-1, 10**400),
        count=steps,
        predicted_bytes=finite,
    ),
    st.builds(report.ResumedFrom, **SAID, step=steps, attempt=steps, path=texts),
    st.builds(report.Failed, **SAID, error=texts, message=texts, configuration=st.booleans()),
    st.builds(report.Warned, **SAID, reason=texts, message=texts),
    st.builds(
        report.PreflightDone,
        **SAID,
        finding=texts,
        message=texts,
        seconds=finite,
        bus_bandwidth=finite | st.none(),
        expected_bus_bandwidth=finite | st.none(),
        nodes=texts,
        edges=texts,
    ),
)


def step(n, at=0.0, seconds=1.0, tokens=100):
    return report.StepDone(
        at=at, rank=0, step=n, loss=1.5, tokens=tokens, step_seconds=seconds, grad_norm=1.0, digest=""
    )


def durable(n, at=0.0, seconds=2.0, attempt=1, path="/c"):
    return report.CheckpointDurable(at=at, rank=0, step=n, attempt=attempt, path=path, bytes=9, seconds=seconds)


def enter(phase, at=0.0):
    return report.PhaseChanged(at=at, rank=0, phase=phase, step=0)


def after(*said, now=0.0):
    progress = Progress()
    for one in said:
        progress = heard(progress, one, attempt=1, now=now)
    return progress


@given(st.lists(reports, max_size=20))
def test_no_report_does_harm(said):
    progress = after(*said)
    assert all(commit.attempt == 1 for commit in [progress.commit] if commit)
    assert all(seconds >= 0 for seconds in progress.phase_seconds.values())
    text = metrics.text(a_plan(), 0, [Measured(0, True, progress)], Notice(0.0, "r"), now=1.0)
    assert all(LINE.fullmatch(line) for line in text.split("\n")[:-1] if not line.startswith("#"))


def test_the_pod_is_as_far_as_its_slowest_worker():
    assert step_of([after(step(7)), after(step(6))]) == 6
    assert step_of([]) == 0
    fast, slow = after(enter(Phase.TRAIN)), after(enter(Phase.LOAD))
    assert phase_of([fast, slow], stopping=False) == "loading"
    assert phase_of([fast, Progress()], stopping=False) == "starting"


@pytest.mark.parametrize(
    ("phase", "said"),
    [(Phase.TRAIN, "stopping"), (Phase.SAVE, "saving"), (Phase.DONE, "ended"), (Phase.INIT, "stopping")],
)
def test_what_a_pod_does_that_was_asked_to_stop(phase, said):
    assert phase_of([after(enter(phase))], stopping=True) == said


def test_time_is_counted_to_the_phase_it_was_spent_in():
    progress = after(
        enter(Phase.INIT, 10.0), enter(Phase.TRAIN, 13.0), enter(Phase.SAVE, 20.0), enter(Phase.TRAIN, 21.0)
    )
    assert progress.phase_seconds == {Phase.INIT: 3.0, Phase.TRAIN: 7.0, Phase.SAVE: 1.0}


def test_a_resumed_worker_stands_at_the_step_it_came_from():
    progress = after(report.ResumedFrom(at=0.0, rank=0, step=40, attempt=2, path="/c"))
    assert (progress.step, progress.resumed) == (40, Mark(2, 40))


def test_the_newest_commit_of_any_worker_counts():
    assert newest_commit([after(durable(3)), Progress(), after(durable(5))]) == Commit(1, 5, "/c", 9, 2.0, 0.0)


def test_a_path_that_is_too_long_is_not_repeated():
    assert after(durable(3, path="x" * 5000)).commit.path == ""


def test_time_until_durable_is_the_rest_of_the_step_and_a_save():
    progress = after(step(1, at=100.0, seconds=10.0), durable(1, seconds=4.0))
    assert durable_seconds([progress], now=103.0) == pytest.approx(7.0 + 4.0)
    assert durable_seconds([progress], now=500.0) == pytest.approx(4.0)
    assert durable_seconds([after(step(1))], now=0.0) is None


def test_warnings_are_few_and_their_reasons_bounded():
    progress = after(*(report.Warned(at=0.0, rank=0, reason=f"R{n}", message="m") for n in range(500)))
    assert len(progress.warnings) == KEPT_WARNINGS
    assert len(progress.warned) == COUNTED_REASONS + 1
    assert sum(progress.warned.values()) == 500


def test_what_a_step_sends_is_told_by_axis_and_class_beside_what_was_predicted():
    along = {"axis": "tensor", "data": "activations", "collective": "all-gather"}
    said = (report.SentInStep(at=0.0, rank=0, **along, bytes=n, count=4, predicted_bytes=96.0) for n in (64, 96))
    text = metrics.text(a_plan(), 0, [Measured(0, True, after(*said))], None, now=1.0)
    labels = '{rank="0",axis="tensor",data="activations",collective="all-gather"}'
    assert f"trainyard_trainer_sent_bytes{labels} 96" in text
    assert f"trainyard_trainer_sent_predicted_bytes{labels} 96" in text
    many = (
        report.SentInStep(at=0.0, rank=0, **{**along, "axis": f"a{n}"}, bytes=1, count=1, predicted_bytes=1.0)
        for n in range(99)
    )
    assert len(after(*many).sent) == MOST_SENT


# Silence


def test_nobody_is_judged_before_the_first_step_or_after_the_last():
    assert patience_seconds(after(enter(Phase.INIT)), 120.0) is None
    assert patience_seconds(after(step(1), enter(Phase.DONE)), 120.0) is None


def test_patience_follows_what_is_usual():
    assert patience_seconds(after(step(1, seconds=1.0)), 120.0) == 180.0
    assert patience_seconds(after(step(1, seconds=60.0)), 120.0) == 600.0
    assert patience_seconds(after(step(1), enter(Phase.SAVE)), 120.0) == hang.UNMEASURED_SECONDS
    saved_slowly = after(step(1), durable(1, seconds=300.0), enter(Phase.SAVE))
    assert patience_seconds(saved_slowly, 120.0) == 3000.0


def test_the_one_with_fewest_steps_is_behind_and_then_the_longest_silent():
    ahead, behind = after(step(5), now=0.0), after(step(4), now=50.0)
    assert furthest_behind([(0, ahead), (1, behind)], 120.0, 300.0, 0.0).rank == 1
    longer = replace(behind, heard=20.0)
    assert furthest_behind([(1, behind), (2, longer)], 120.0, 300.0, 0.0).rank == 2


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=4), st.floats(0, 1000), st.floats(0, 1000))
def test_only_silence_since_the_launcher_woke_counts(heard_at, now, woke):
    workers = [(n, replace(after(step(1)), heard=at)) for n, at in enumerate(heard_at)]
    silence = furthest_behind(workers, 120.0, now, woke)
    assert (silence is None) == all(now - max(at, woke) <= 180.0 for at in heard_at)


# Metrics

LINE = re.compile(r'trainyard_trainer_[a-z_]+(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)+\})? (NaN|[+-]Inf|-?[0-9.e+-]+)')


@given(st.text(max_size=20), st.text(max_size=20))
def test_labels_are_escaped(job, reason):
    progress = after(report.Warned(at=0.0, rank=0, reason=reason, message="m"))
    text = metrics.text(a_plan(job=job), 0, [Measured(0, True, progress)], None, now=1.0)
    lines = [line for line in text.split("\n")[:-1] if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), lines


def test_what_is_not_known_is_left_out():
    text = metrics.text(a_plan(), 0, [Measured(0, True, Progress())], None, now=1.0)
    assert "trainyard_trainer_loss" not in text
    assert "trainyard_trainer_notice" not in text


def test_the_time_from_notice_to_durable_is_told():
    workers = [after(durable(5, at=112.5))]
    assert metrics.notice_to_durable_seconds(Notice(110.0, "r"), workers) == 2.5
    assert metrics.notice_to_durable_seconds(Notice(113.0, "r"), workers) is None
    assert metrics.notice_to_durable_seconds(None, workers) is None


def test_prometheus_reads_the_text():
    parser = pytest.importorskip("prometheus_client.parser")
    progress = after(enter(Phase.TRAIN, 1.0), step(3, seconds=0.5), durable(3, at=9.0))
    progress = replace(progress, loss=math.nan)
    text = metrics.text(
        a_plan(attempt=3), 2, [Measured(4, True, progress), Measured(5, False, progress)], Notice(8.0, ""), 10.0
    )
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    sample = families["trainyard_trainer_info"].samples[0]
    assert sample.labels == {"namespace": "lab", "job": "train", "attempt": "3", "node_rank": "2"}
    assert {s.labels["rank"]: s.value for s in families["trainyard_trainer_worker_up"].samples} == {"4": 1.0, "5": 0.0}
    assert families["trainyard_trainer_notice_to_durable_seconds"].samples[0].value == 1.0
    assert families["trainyard_trainer_restarts"].samples[0].value == 2
    sums = {s.name: s.value for s in families["trainyard_trainer_step_seconds"].samples if s.labels["rank"] == "4"}
    assert sums == {"trainyard_trainer_step_seconds_sum": 0.5, "trainyard_trainer_step_seconds_count": 1}
    spent = families["trainyard_trainer_phase_seconds"].samples
    assert next(s.value for s in spent if s.labels == {"rank": "4", "phase": "train"}) == 9.0
