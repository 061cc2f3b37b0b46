"""The records read what they wrote, and say what they were told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from support.api_cases import a_job, with_spec, with_trainer
from support.api_records import records, specs
from trainyard.api.model import duration_seconds, epoch_seconds, rfc3339
from trainyard.api.training_job import Progress, TrainingJob, TrainingJobSpec, TrainingJobStatus


@given(specs())
def test_a_specification_survives_json(spec: TrainingJobSpec) -> None:
    assert TrainingJobSpec.model_validate_json(json.dumps(spec.to_manifest())) == spec


@given(records(TrainingJobStatus))
def test_a_status_survives_json_and_with_it_the_operators_memory(status: TrainingJobStatus) -> None:
    assert TrainingJobStatus.model_validate_json(json.dumps(status.to_manifest())) == status


def test_the_template_is_kept_as_it_is() -> None:
    job = a_job()
    job["spec"]["template"]["spec"]["aFieldOfTomorrow"] = {"snake_case": [None, {"x": 1}]}
    assert TrainingJob.model_validate(job).spec.to_manifest()["template"] == job["spec"]["template"]


def test_metadata_without_values_claims_nothing() -> None:
    assert TrainingJob.model_validate(a_job("x")).to_manifest()["metadata"] == {"name": "x"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("48h", 172800)]
)
def test_durations_are_gos(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "1d", "-1s", "1h ", "1h\n", "1 h", ".5h", "1e3s"])
def test_nothing_else_is_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1970-01-01T00:00:00Z"), (1769860800, "2026-01-31T12:00:00Z"), (1.5, "1970-01-01T00:00:01.500000Z")],
)
def test_instants_are_rfc_3339_in_utc(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text
    assert epoch_seconds(text) == seconds


def test_an_instant_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        epoch_seconds("2026-01-31T12:00:00")


def test_a_loss_that_is_not_a_number_is_left_out() -> None:
    assert "loss" not in Progress(step=3, loss=float("nan")).to_manifest()


def test_an_interval_is_steps_or_seconds() -> None:
    by_steps = TrainingJob.model_validate(a_job(checkpoint={"every": 200})).spec.checkpoint
    by_time = TrainingJob.model_validate(a_job(checkpoint={"every": "5m"})).spec.checkpoint
    assert (by_steps.every_steps, by_steps.every_seconds) == (200, None)
    assert (by_time.every_steps, by_time.every_seconds) == (None, 300)
    left_open = TrainingJob.model_validate(a_job(checkpoint={"every": "auto"})).spec.checkpoint
    assert (left_open.every_steps, left_open.every_seconds) == (None, None)


GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8", "rdma/ib": 8, "cpu": 96}}}


@pytest.mark.parametrize(
    ("job", "processes"),
    [
        (a_job(), 1),
        (with_trainer(**GPUS), 8),
        (with_trainer(resources={"limits": {"amd.com/gpu": 4}}), 4),
        (with_trainer(resources={"requests": {"cpu": 8}}), 1),
        (with_spec(with_trainer(**GPUS), processesPerNode=2), 2),
    ],
)
def test_one_process_for_each_accelerator_unless_told_otherwise(job: dict[str, object], processes: int) -> None:
    assert TrainingJob.model_validate(job).spec.processes == processes
