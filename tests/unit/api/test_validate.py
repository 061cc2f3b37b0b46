"""What is refused without an API server, and in which words."""

from __future__ import annotations

import pytest
from support.api_cases import FINE, WRONG, Manifest, Wrong, a_job
from trainyard.api.validate import FieldError, read_fabric, read_job


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_answered_with_the_fields_path(wrong: Wrong) -> None:
    read = read_job(wrong.job)
    assert read.spec is None
    assert [e.path for e in read.errors] == [wrong.path]
    assert wrong.said in read.errors[0].message


@pytest.mark.parametrize("job", FINE.values(), ids=FINE.keys())
def test_what_is_right_is_read(job: Manifest) -> None:
    read = read_job(job)
    assert read.errors == ()
    assert read.spec is not None


def test_everything_that_is_wrong_is_said_at_once() -> None:
    read = read_job(a_job("Bad", nodes=0, maxRuntime="long"))
    assert [e.path for e in read.errors] == ["metadata.name", "spec.nodes", "spec.maxRuntime"]


def test_an_error_is_one_sentence_that_begins_with_the_path() -> None:
    assert str(FieldError("spec.nodes", "0 is too small; use 1 or more")) == "spec.nodes: 0 is too small; use 1 or more"


@pytest.mark.parametrize(
    "spec", [None, 3, [], {"nodes": 1, "template": 3}, {"nodes": 1, "template": {"spec": {"containers": [3]}}}]
)
def test_nonsense_is_an_error_and_no_exception(spec: object) -> None:
    assert read_job({"metadata": {"name": "x"}, "spec": spec}).errors


def test_a_status_that_cannot_be_read_stops_the_job_rather_than_being_forgotten() -> None:
    read = read_job({**a_job(), "status": {"nextMember": "many"}})
    assert read.spec is None
    assert [e.path for e in read.errors] == ["status.nextMember"]


def test_a_name_that_the_api_server_will_make_is_not_missed() -> None:
    job = a_job()
    job["metadata"] = {"generateName": "small-"}
    assert read_job(job).errors == ()


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert read_job(a_job(minNodes=2)).errors == ()


def test_a_fabric_may_not_say_who_a_process_is() -> None:
    wanted = {
        "spec": {
            "env": [{"name": "RANK", "value": "0"}],
            "podAdditions": {"env": [{"name": "PET_NNODES", "value": "4"}]},
        }
    }
    assert [e.path for e in read_fabric(wanted).errors] == ["spec.env[0].name", "spec.podAdditions.env[0].name"]


def test_a_fabric_without_a_word_is_a_fabric() -> None:
    read = read_fabric({"metadata": {"name": "plain"}})
    assert read.spec is not None
    assert read.spec.levels == ()
