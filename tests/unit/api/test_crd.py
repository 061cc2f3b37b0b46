"""The generated definitions: up to date, small, complete, and of one mind with the models."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.api_cases import a_job
from trainyard.api import crd
from trainyard.api.crd import NotStructural, fabric_crd, structural_schema, training_job_crd
from trainyard.api.fabric import FabricSpec
from trainyard.api.model import ApiModel
from trainyard.api.training_job import TrainingJobSpec

ROOT = Path(__file__).resolve().parents[3]
Schema = dict[str, Any]


def schema_of(definition: Mapping[str, Any]) -> Schema:
    schema: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def places(schema: Schema, at: str = "") -> Iterator[tuple[str, Schema]]:
    """Every place of a schema with its path."""
    yield at, schema
    for name, part in schema.get("properties", {}).items():
        yield from places(part, f"{at}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from places(schema[key], at + mark)


def with_defaults(schema: Schema, value: Any) -> Any:
    """What the API server makes of a value: defaults filled in from the outside to the inside."""
    if isinstance(value, dict):
        filled = copy.deepcopy(value)
        for name, part in schema.get("properties", {}).items():
            if name not in filled and "default" in part:
                filled[name] = copy.deepcopy(part["default"])
            if name in filled:
                filled[name] = with_defaults(part, filled[name])
        return filled
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    return value


def without_empty(value: Any) -> Any:
    """Absent and empty are the same to a reader."""
    if isinstance(value, dict):
        kept = {key: without_empty(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part not in (None, {}, [], "")}
    if isinstance(value, list):
        return [without_empty(part) for part in value]
    return value


@pytest.mark.parametrize("definition", [training_job_crd(), fabric_crd()], ids=["TrainingJob", "Fabric"])
def test_every_field_is_explained(definition: dict[str, Any]) -> None:
    unexplained = [
        at
        for at, place in places(schema_of(definition))
        if at and not at.startswith(".metadata") and not at.endswith(("[]", "{}")) and not place.get("description")
    ]
    assert unexplained == []


def test_the_files_say_what_the_models_say() -> None:
    assert crd.stale(ROOT / crd.FOLDER) == [], "run python -m trainyard.api.crd"


def test_a_difference_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", "--folder", str(tmp_path)]) == 1
    assert "trainingjobs.yaml: differs from the models" in capsys.readouterr().err
    assert crd.main(["--folder", str(tmp_path)]) == 0
    assert crd.main(["--check", "--folder", str(tmp_path)]) == 0


def test_the_definitions_are_small_enough_for_an_annotation_and_a_release() -> None:
    assert all(len(text.encode()) < crd.MAX_BYTES for text in crd.files().values())


MINIMAL: dict[str, Any] = {
    **a_job()["spec"],
    "trainer": {},
    "placement": {"within": {"level": "leaf"}},
    "network": {"env": [{"name": "A"}]},
}


@pytest.mark.parametrize(
    ("definition", "model", "given"),
    [
        (training_job_crd(), TrainingJobSpec, MINIMAL),
        (training_job_crd(), TrainingJobSpec, a_job()["spec"]),
        (fabric_crd(), FabricSpec, {}),
    ],
)
def test_the_api_server_and_the_models_have_the_same_defaults(
    definition: dict[str, Any], model: type[ApiModel], given: dict[str, Any]
) -> None:
    by_server = with_defaults(schema_of(definition)["properties"]["spec"], given)
    assert without_empty(by_server) == without_empty(model.model_validate(given).to_manifest())


def test_what_may_be_absent_stays_absent() -> None:
    defaulted = with_defaults(schema_of(training_job_crd())["properties"]["spec"], a_job()["spec"])
    assert not {"trainer", "processesPerNode", "maxRuntime", "priorityClassName"} & set(defaulted)


def test_a_status_has_no_defaults() -> None:
    assert [
        at for at, place in places(schema_of(training_job_crd())["properties"]["status"]) if "default" in place
    ] == []


class Inner(ApiModel):
    """Inner."""

    size: int = 3


class Union(ApiModel):
    """Says what cannot be said."""

    choice: int | list[int]


class Recursive(ApiModel):
    """Contains itself."""

    children: tuple[Recursive, ...] = ()


class Anything(ApiModel):
    """Has no type."""

    thing: Any


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Union, "Union.choice: a union of 2 types"),
        (Recursive, "contains itself"),
        (Anything, "Anything.thing: has no type"),
    ],
)
def test_what_a_definition_cannot_say_is_an_error_that_names_the_field(model: type[ApiModel], said: str) -> None:
    with pytest.raises(NotStructural, match=said):
        structural_schema(model)


class Optional(ApiModel):
    """Optional parts."""

    absent: Inner | None = None
    made: Inner = Inner()


def test_an_optional_part_is_neither_null_nor_made_up() -> None:
    parts = structural_schema(Optional)["properties"]
    assert "default" not in parts["absent"]
    assert parts["made"]["default"] == {}
    assert parts["absent"]["properties"]["size"] == {"type": "integer", "default": 3, "format": "int64"}
