"""What the API server refuses of a manifest before it looks at any value: fields that the CRD does not have, and other types.

Reading is lenient, since an operator must understand what a newer CRD took; a manifest that is about to be applied is not. This
looks at it by the very schema that the API server has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from trainyard.api.crd import training_job_crd
from trainyard.api.errors import FieldError, shown

_PASSED_OVER: Final = ("metadata", "status")
"""The metadata are not the CRD's to describe, and a status in a manifest says nothing."""


def job_errors(manifest: Mapping[str, Any]) -> list[FieldError]:
    """The unknown fields and wrong types of a TrainingJob's manifest, in its order."""
    looked_at = {name: value for name, value in manifest.items() if name not in _PASSED_OVER}
    return list(_errors(looked_at, _job_schema(), ""))


@cache
def _job_schema() -> Mapping[str, Any]:
    (version,) = training_job_crd()["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def _errors(value: object, schema: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    """A null is no value: the API server takes it away before it looks at types."""
    if value is None:
        return
    said = _misfit(value, schema)
    if said:
        yield FieldError(at, said)
    elif isinstance(value, Mapping):
        yield from _unlike_fields(value, schema, at)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _errors(item, schema.get("items", {}), f"{at}[{number}]")


def _unlike_fields(value: Mapping[str, Any], schema: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    free = schema.get("x-kubernetes-preserve-unknown-fields") or not schema
    for name, part in value.items():
        path = f"{at}.{name}" if at else str(name)
        if name in fields:
            yield from _errors(part, fields[name], path)
        elif others:
            yield from _errors(part, others, path)
        elif not free:
            yield FieldError(path, _unknown(str(name), fields))


def _unknown(name: str, fields: Mapping[str, Any]) -> str:
    spelt = {field.lower(): field for field in fields}
    near = get_close_matches(name.lower(), spelt, n=1)
    right = f"the nearest is {spelt[near[0]]}" if near else f"there are: {', '.join(fields)}"
    return f"there is no such field; {right}"


def _misfit(value: object, schema: Mapping[str, Any]) -> str:
    """Why a value is not of the schema's type, "" where it is. YAML's dates are texts to the API server."""
    given = shown(value)
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, str) or _is_whole(value)
        return "" if fits else f"{given} is neither a whole number nor text; use one of them"
    match schema.get("type"):
        case "integer" if not _is_whole(value):
            return f"{given} is not a whole number; use one such as 4{_unquoted(value)}"
        case "number" if not isinstance(value, int | float) or isinstance(value, bool):
            return f"{given} is not a number; use one such as 0.5{_unquoted(value)}"
        case "boolean" if not isinstance(value, bool):
            return f"{given} is neither true nor false; use one of them{_unquoted(value)}"
        case "string" if not isinstance(value, str | date):
            return f"{given} is not text; put it in quotes"
        case "object" if not isinstance(value, Mapping):
            return f"{given} is not an object; write fields with their values"
        case "array" if not isinstance(value, list):
            return f"{given} is not a list; write one, also for a single item"
    return ""


def _is_whole(value: object) -> bool:
    """JSON knows one kind of number: 4.0 is written as 4 there."""
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _unquoted(value: object) -> str:
    return ", without quotes" if isinstance(value, str) else ""
