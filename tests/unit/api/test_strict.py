"""What a manifest may not say that reading passes over: what the API server refuses before it looks at values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.api_cases import FINE, Manifest, a_job, with_trainer
from trainyard.api.strict import job_errors
from trainyard.api.validate import read_job

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"priorityClass": "x"}, "spec.priorityClass: there is no such field; the nearest is priorityClassName"),
        ({"minnodes": 1}, "spec.minnodes: there is no such field; the nearest is minNodes"),
        ({"parallelism": {"rows": 2}}, "spec.parallelism.rows: there is no such field; there are: shard, replicate, "),
        ({"nodes": "4"}, 'spec.nodes: "4" is not a whole number; use one such as 4, without quotes'),
        ({"suspend": "yes"}, 'spec.suspend: "yes" is neither true nor false; use one of them, without quotes'),
        ({"checkpoint": {"volume": 3}}, "spec.checkpoint.volume: 3 is not text; put it in quotes"),
        ({"checkpoint": {"every": 1.5}}, "spec.checkpoint.every: 1.5 is neither a whole number nor text"),
        ({"placement": {"within": "leaf"}}, 'spec.placement.within: "leaf" is not an object'),
        ({"placement": {"avoidNodes": "a"}}, 'spec.placement.avoidNodes: "a" is not a list'),
        (
            {"network": {"env": [{"name": "A", "value": 1}]}},
            "spec.network.env[0].value: 1 is not text; put it in quotes",
        ),
    ],
)
def test_an_unknown_field_or_another_type_is_named_with_what_would_be_right(spec: dict[str, Any], said: str) -> None:
    (error,) = job_errors(a_job(**spec))
    assert str(error).startswith(said)


def test_the_values_of_a_templates_variables_are_texts_and_the_rest_of_it_is_the_api_servers() -> None:
    job = with_trainer(env=[{"name": "A", "value": 4}], newerField={"any": ["thing"]})
    assert [error.path for error in job_errors(job)] == ["spec.template.spec.containers[0].env[0].value"]


def test_fields_beside_the_spec_are_looked_at_and_a_status_is_not() -> None:
    job = {**a_job(), "specs": {}, "status": {"whatever": 1}}
    assert [str(error) for error in job_errors(job)] == ["specs: there is no such field; the nearest is spec"]


@pytest.mark.parametrize("job", FINE.values(), ids=FINE.keys())
def test_what_the_api_server_takes_is_taken(job: Manifest) -> None:
    assert job_errors(job) == []


@pytest.mark.parametrize("spec", [{"nodes": 4.0}, {"minNodes": None}, {"checkpoint": {"every": "5m"}}], ids=str)
def test_numbers_without_a_fraction_and_nulls_are_no_errors(spec: dict[str, Any]) -> None:
    assert job_errors(a_job(**spec)) == []


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_samples_are_taken(sample: Path) -> None:
    jobs = [one for one in yaml.safe_load_all(sample.read_text()) if one["kind"] == "TrainingJob"]
    assert [(job_errors(job), read_job(job).errors) for job in jobs] == [([], ())]
