"""What the launcher makes of reports: figures, phases, silence, and the text of its metrics."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launching import a_plan
from trainyard.contract.plan import Mark
from trainyard.contract.sent import MOST_NAMES
from trainyard.contract.status import Commit
from trainyard_trainer import report
from trainyard_trainer.launch import hang, metrics, sending
from trainyard_trainer.launch.ending import Notice
from trainyard_trainer.launch.hang import furthest_behind, patience_seconds
from trainyard_trainer.launch.metrics import Measured
from trainyard_trainer.launch.progress import (
    COUNTED_REASONS,
    KEPT_WARNINGS,
    MOST_SENT,
    Progress,
    at,
    durable_in,
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
        waited_seconds=finite | st.none(),
        data_seconds=finite,
        mfu=finite | st.none(),
    ),
    st.builds(report.CheckpointStarted, **SAID, step=steps, attempt=st.integers(1, 2), path=texts),
    st.builds(
        report.CheckpointDurable, **SAID, step=steps, attempt=st.integers(1, 2), path=texts, bytes=steps, seconds=finite
    ),
    st.builds(report.StopAcknowledged, **SAID, step=steps),
    st.builds(report.Beat, **SAID, entered=steps, waits_in=texts, memory_bytes=st.integers(), cpu_seconds=finite),
    st.builds(report.SaveExpected, **SAID, seconds=finite, basis=texts),
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
    text = metrics.text(a_plan(), 0, [Measured(0, True, progress)], Notice(0.0, "r", 0.0), now=1.0)
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
    assert durable_in([progress], now=103.0).seconds == pytest.approx(7.0 + 4.0)
    assert durable_in([progress], now=500.0).seconds == pytest.approx(4.0)
    assert durable_in([after(step(1))], now=0.0) is None


def test_before_the_first_save_the_estimate_says_what_it_rests_on():
    expected = report.SaveExpected(at=0.0, rank=0, seconds=30.0, basis="attempt 1 took as long")
    known = durable_in([after(expected, step(1, at=100.0, seconds=10.0))], now=103.0)
    assert (known.seconds, known.basis) == (pytest.approx(37.0), "attempt 1 took as long")
    text = metrics.text(a_plan(), 0, [Measured(0, True, after(expected))], None, now=0.0)
    assert "\ntrainyard_trainer_durable_in_seconds 30.0\n" in text, "a figure, whatever words it rests on"
    measured = durable_in([after(expected, durable(1, seconds=4.0))], now=0.0)
    assert (measured.seconds, measured.basis) == (4.0, "saves of this attempt")


def test_warnings_are_few_and_their_reasons_bounded():
    progress = after(*(report.Warned(at=0.0, rank=0, reason=f"R{n}", message="m") for n in range(500)))
    assert len(progress.warnings) == KEPT_WARNINGS
    assert len(progress.warned) == COUNTED_REASONS + 1
    assert sum(progress.warned.values()) == 500


def test_what_a_step_sends_is_told_by_axis_and_class_beside_what_was_predicted():
    along = {"axis": "tensor", "data": "activations", "collective": "all-gather", "level": "leaf"}
    said = (report.SentInStep(at=0.0, rank=0, **along, bytes=n, count=4, predicted_bytes=96.0) for n in (64, 96))
    text = metrics.text(a_plan(), 0, [Measured(0, True, after(*said))], None, now=1.0)
    labels = '{rank="0",axis="tensor",data="activations",collective="all-gather",level="leaf"}'
    assert f"trainyard_trainer_sent_bytes{labels} 96" in text
    assert f"trainyard_trainer_sent_predicted_bytes{labels} 96" in text
    many = (
        report.SentInStep(at=0.0, rank=0, **{**along, "axis": f"a{n}"}, bytes=1, count=1, predicted_bytes=1.0)
        for n in range(99)
    )
    assert len(after(*many).sent) == MOST_SENT


def test_what_goes_over_the_wire_and_how_much_of_its_time_is_exposed_are_told():
    along = {"axis": "shard", "data": "gradients", "collective": "reduce-scatter", "level": "spine"}
    figures = {"bytes": 8, "predicted_bytes": 8.0, "wire_bytes": 12.0, "predicted_wire_bytes": 12.0, "seconds": 0.25}
    said = (
        report.SentInStep(at=0.0, rank=0, **along, **figures, count=1),
        report.Overlapped(at=0.0, rank=0, communication_seconds=0.25, exposed_seconds=0.125, step_seconds=-1.0),
    )
    text = metrics.text(a_plan(), 0, [Measured(0, True, after(*said))], None, now=1.0)
    labels = '{rank="0",axis="shard",data="gradients",collective="reduce-scatter",level="spine"}'
    for name, value in (("wire_bytes", "12.0"), ("predicted_wire_bytes", "12.0"), ("seconds", "0.25")):
        assert f"trainyard_trainer_sent_{name}{labels} {value}\n" in text
    assert 'trainyard_trainer_communication_seconds{rank="0"} 0.25\n' in text
    assert 'trainyard_trainer_communication_exposed_seconds{rank="0"} 0.125\n' in text
    assert 'trainyard_trainer_communication_step_seconds{rank="0"} 0.0\n' in text


def test_a_status_sums_up_what_a_step_sends_by_class_and_by_level():
    assert sending.sent(Progress()) is None
    figures = {"predicted_bytes": 8.0, "wire_bytes": 12.0, "predicted_wire_bytes": 12.0, "seconds": 0.25, "count": 1}
    lines = [
        report.SentInStep(at=0.0, rank=0, axis="shard", data=data, collective=how, level=level, bytes=8, **figures)
        for data, how, level in (
            ("gradients", "reduce-scatter", "leaf"), ("gradients", "all-reduce", "spine"), ("control", "all-reduce", "spine")
        )
    ]  # fmt: skip
    overlapped = report.Overlapped(at=0.0, rank=0, communication_seconds=0.5, exposed_seconds=0.25, step_seconds=1.0)
    found = sending.sent(after(*lines, overlapped))
    assert found.data == {"control": 8.0, "gradients": 16.0}
    assert (found.size_bytes, found.predicted_bytes, found.wire_bytes, found.predicted_wire_bytes) == (24, 24, 36, 36)
    assert found.level_bytes == {"leaf": 12.0, "spine": 24.0}
    assert found.level_seconds == {"leaf": 0.25, "spine": 0.5}
    assert (found.communication_seconds, found.exposed_seconds, found.step_seconds) == (0.5, 0.25, 1.0)
    kept = after(*lines, replace(lines[0], axis="storage", data="training state", level="", bytes=0, wire_bytes=0.0))
    assert sending.sent(kept).data == {"control": 8.0, "gradients": 16.0, "training state": 0.0}
    assert sending.sent(kept).level_bytes == found.level_bytes
    untimed = after(*lines, replace(lines[2], seconds=None))
    assert sending.sent(untimed).level_seconds == {"leaf": 0.25}  # and not the half of spine's
    strangers = (replace(lines[0], data=f"d{n}", level="l" * n) for n in range(1, 30))
    bounded = sending.sent(after(*strangers))
    assert (len(bounded.data), len(bounded.level_bytes)) == (MOST_NAMES, MOST_NAMES)


# Silence


def test_who_never_spoke_and_who_is_done_is_not_judged():
    assert patience_seconds(Progress(), 120.0) is None
    assert patience_seconds(after(step(1), enter(Phase.DONE)), 120.0) is None


@pytest.mark.parametrize("phase", sorted(hang.UNMEASURED_SECONDS))
def test_every_phase_without_a_usual_length_has_a_deadline_of_its_own(phase):
    assert patience_seconds(after(enter(phase)), 120.0) == hang.UNMEASURED_SECONDS[phase]
    assert patience_seconds(after(enter(phase)), 9999.0) == 9999.0 + hang.MARGIN_SECONDS


def test_patience_follows_what_is_usual():
    assert patience_seconds(after(step(1, seconds=1.0)), 120.0) == 180.0
    assert patience_seconds(after(step(1, seconds=60.0)), 120.0) == 600.0
    assert patience_seconds(after(step(1), enter(Phase.SAVE)), 120.0) == hang.UNMEASURED_SECONDS[Phase.SAVE]
    saved_slowly = after(step(1), durable(1, seconds=300.0), enter(Phase.SAVE))
    assert patience_seconds(saved_slowly, 120.0) == 3000.0


def test_the_one_with_fewest_steps_is_behind_and_then_the_longest_silent():
    ahead, behind = after(step(5), now=0.0), after(step(4), now=50.0)
    assert furthest_behind([(0, ahead), (1, behind)], 120.0, 300.0, 0.0).rank == 1
    longer = replace(behind, heard=20.0)
    assert furthest_behind([(1, behind), (2, longer)], 120.0, 300.0, 0.0).rank == 2


def beat(entered, waits_in="", cpu=0.0):
    return report.Beat(at=0.0, rank=0, entered=entered, waits_in=waits_in, memory_bytes=1, cpu_seconds=cpu)


def silent_since(heard_at, *said, beat_at=None):
    return replace(after(step(7), *said), heard=heard_at, beat=beat_at)


def test_the_one_that_waits_in_no_collective_is_missing_in_the_one_that_others_wait_in():
    waiting = silent_since(0.0, beat(1234, "all_reduce 1234 of default_pg"), beat_at=299.0)
    missing = silent_since(1.0, beat(1233), beat_at=299.0)
    found = furthest_behind([(0, waiting), (1, missing), (2, waiting)], 120.0, 300.0, 0.0)
    assert (found.rank, found.others, found.others_in) == (1, (0, 2), "all_reduce 1234 of default_pg")
    assert hang.sentence(found) == (
        "rank 1 is behind: silent for 299 s after step 7; it has not entered all_reduce 1234 of default_pg, in which "
        "ranks 0, 2 wait"
    )


def test_one_that_waits_in_an_earlier_collective_than_others_is_missing_in_theirs():
    ahead = silent_since(0.0, beat(12, "all_gather 12 of mesh_shard"), beat_at=299.0)
    behind = silent_since(0.0, beat(11, "all_gather 11 of mesh_shard"), beat_at=299.0)
    found = furthest_behind([(0, ahead), (1, behind)], 120.0, 300.0, 0.0)
    assert (found.rank, found.others, found.others_in) == (1, (0,), "all_gather 12 of mesh_shard")


def test_where_all_of_a_pod_wait_the_one_that_is_missing_is_elsewhere():
    waiting = silent_since(0.0, beat(9, "all_gather 9 of mesh_shard"), beat_at=299.0)
    found = furthest_behind([(0, waiting)], 120.0, 300.0, 0.0)
    assert hang.sentence(found) == (
        "rank 0 is behind: silent for 300 s after step 7, waiting in all_gather 9 of mesh_shard, "
        "which another rank has not entered"
    )


def test_a_process_whose_heart_stops_is_frozen_in_any_phase():
    loading = replace(after(enter(Phase.LOAD), beat(3)), heard=0.0, beat=200.0)
    frozen = replace(loading, beat=10.0)
    assert furthest_behind([(0, loading), (1, loading)], 120.0, 300.0, 0.0) is None
    found = furthest_behind([(0, loading), (1, frozen)], 120.0, 300.0, 0.0)
    assert (found.rank, found.frozen) == (1, True)
    assert furthest_behind([(0, loading), (1, frozen)], 120.0, 300.0, awake_since=299.0) is None


def test_own_time_is_compared_over_many_steps_and_leaves_out_the_first():
    told = [replace(step(n, seconds=1.0), waited_seconds=0.25) for n in range(1, 22)]
    assert after(*told[:-1]).own_seconds is None
    progress = after(replace(told[0], step_seconds=60.0), *told[1:])
    assert progress.own_seconds == 0.75
    assert at(3, progress, now=0.0).own_seconds == 0.75
    assert after(step(1), *(step(n) for n in range(2, 40))).own_seconds is None, "where it was not measured"


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
    assert "trainyard_trainer_step" not in text
    assert "trainyard_trainer_tokens" not in text
    assert "trainyard_trainer_notice" not in text


def test_the_time_from_notice_to_durable_is_told():
    workers = [after(durable(5, at=9.0), now=112.5)]  # whatever the clock of the day was set to meanwhile
    assert metrics.notice_to_durable_seconds(Notice(10.0, "r", 110.0), workers) == 2.5
    assert metrics.notice_to_durable_seconds(Notice(1.0, "r", 113.0), workers) is None
    assert metrics.notice_to_durable_seconds(None, workers) is None


def test_prometheus_reads_the_text():
    parser = pytest.importorskip("prometheus_client.parser")
    progress = after(enter(Phase.TRAIN, 1.0), step(3, seconds=0.5), durable(3, at=9.0), now=5.0)
    progress = replace(progress, loss=math.nan)
    text = metrics.text(
        a_plan(attempt=3), 2, [Measured(4, True, progress), Measured(5, False, progress)], Notice(8.0, "", 4.0), 10.0
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
