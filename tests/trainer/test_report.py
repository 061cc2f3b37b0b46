"""What a worker says reaches the launcher as it was said, and nothing that comes through the pipe can hurt the
launcher.
"""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.codec import LATEST
from trainyard.contract.preflight import PreflightResult
from trainyard_trainer import report
from trainyard_trainer.report import LINE_BYTES, Phase, Reporter, decode, encode

finite = st.floats(allow_nan=False, allow_infinity=False)
steps = st.integers(min_value=0, max_value=10**9)
texts = st.text(max_size=60)
SAID = {"at": st.floats(0.0, LATEST), "rank": st.integers(0, 10**6)}
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
    st.builds(report.CheckpointStarted, **SAID, step=steps, attempt=steps, path=texts),
    st.builds(report.CheckpointDurable, **SAID, step=steps, attempt=steps, path=texts, bytes=steps, seconds=finite),
    st.builds(report.StopAcknowledged, **SAID, step=steps),
    st.builds(report.Beat, **SAID, entered=steps, waits_in=texts, memory_bytes=steps, cpu_seconds=finite),
    st.builds(report.SaveExpected, **SAID, seconds=finite, basis=texts),
    st.builds(
        report.SentInStep,
        **SAID,
        axis=texts,
        data=texts,
        collective=texts,
        bytes=steps,
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
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(reports)
def test_a_report_arrives_as_it_was_said(said):
    assert decode(encode(said)) == said


@given(reports, st.dictionaries(st.text(min_size=12, max_size=20), json_values, max_size=3))
def test_fields_of_a_later_version_are_skipped(said, unknown):
    record = unknown | json.loads(encode(said))
    assert decode(json.dumps(record)) == said


@given(st.binary(max_size=200))
def test_noise_is_not_a_report(noise):
    assert decode(noise) is None


@given(st.sampled_from(sorted(report.KINDS)), st.dictionaries(st.text(max_size=8), json_values, max_size=6))
def test_a_report_with_fields_missing_is_none(kind, fields):
    assert decode(json.dumps(fields | {"kind": kind})) is None


@given(reports, st.data())
def test_a_field_of_a_wrong_type_never_raises_and_never_lies(said, data):
    record = json.loads(encode(said))
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(json_values)
    heard = decode(json.dumps(record))
    assert heard is None or isinstance(heard, report.Report)


@pytest.mark.parametrize("wrong", [{"at": 1_764_537_173_000}, {"at": -1.0}, {"step": 2**63}, {"step": -(10**400)}])
def test_a_figure_for_which_the_operator_would_not_believe_its_launcher_spoils_the_report(wrong):
    good = {"kind": "stop-acknowledged", "at": 1_764_537_173.5, "rank": 0, "step": 5}
    assert decode(json.dumps(good)) == report.StopAcknowledged(at=1_764_537_173.5, rank=0, step=5)
    assert decode(json.dumps(good | wrong)) is None


@pytest.mark.parametrize("line", ["[" * 100_000, '{"kind":"step"', "null", "", '{"kind":["step"]}', b"\xff\xfe"])
def test_garbage_is_none(line):
    assert decode(line) is None


@pytest.mark.parametrize("text", ["x" * 100_000, "\u4e2d" * 5000, "\0" * 9000, "\ud800" * 9000, '"' * 9000])
def test_a_line_stays_atomic_however_long_the_text(text):
    line = encode(report.Failed(at=1.0, rank=0, error=text, message=text))
    assert len(line) <= LINE_BYTES
    heard = decode(line)
    assert isinstance(heard, report.Failed)
    assert " ... " in heard.message


def test_a_preflight_that_blames_many_nodes_names_some_whole():
    reader, writer = os.pipe()
    names = tuple(f"ip-10-0-{n // 250}-{n % 250}.eu-west-1.compute.internal" for n in range(1000))
    Reporter(0, writer).preflight(PreflightResult("failed", "\u4e2d" * 5000, 1.0, 1e9, 2e9, names, (1.0,) * 400))
    line = os.read(reader, 2 * LINE_BYTES)
    os.close(reader)
    os.close(writer)
    assert len(line) <= LINE_BYTES
    heard = decode(line)
    assert isinstance(heard, report.PreflightDone)
    assert 10 <= len(heard.nodes.split(",")) < 1000
    assert set(heard.nodes.split(",")) <= set(names)


def test_a_loss_that_is_not_a_number_is_none():
    said = report.StepDone(
        at=0.0, rank=0, step=1, loss=math.nan, tokens=1, step_seconds=0.1, grad_norm=math.inf, digest=""
    )
    heard = decode(encode(said))
    assert isinstance(heard, report.StepDone)
    assert heard.loss is None
    assert heard.grad_norm is None


def test_a_full_pipe_drops_steps_and_a_closed_one_is_forgotten():
    reader, writer = os.pipe()
    reporter = Reporter(0, writer)
    for step in range(5000):  # far more than the 64 KiB of a pipe
        reporter.step(step, loss=1.0, tokens=1, step_seconds=0.1, grad_norm=1.0, digest="d" * 32)
    os.close(reader)
    reporter.warned("Anything", "nobody listens")
    reporter.warned("Anything", "still nobody")
    os.close(writer)


def test_a_number_that_is_not_a_pipe_is_no_launcher(monkeypatch):
    monkeypatch.setenv(report.REPORT_FD, "987654")
    Reporter.from_environment(0).phase(Phase.INIT, 0)
