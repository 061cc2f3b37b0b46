"""What is wrong with an object, in sentences: where, what, and what would be right."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainyard.api.model import LABEL_PATTERN

_BLAMES_A_FIELD: Final = re.compile(r"(?P<field>[a-z][A-Za-z0-9.\[\]]*): (?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with an object. path: of the field, from the root; message: what is wrong, and what would be right."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def field_errors(refused: ValidationError, at: str) -> tuple[FieldError, ...]:
    """pydantic's verdict on a model. at: path of the model in the object.

    A rule between fields blames one of them by beginning its text with the field's path, as in `heads: 3 does not divide ...`.
    """
    return tuple(_field_error(error, at) for error in refused.errors(include_url=False))


def _field_error(error: ErrorDetails, at: str) -> FieldError:
    path, sentence = _path(at, error["loc"]), _sentence(error)
    if error["type"] == "value_error" and (blamed := _BLAMES_A_FIELD.fullmatch(sentence)):
        return FieldError(f"{path}.{blamed['field']}", blamed["rest"])
    return FieldError(path, sentence)


def _path(at: str, steps: tuple[int | str, ...]) -> str:
    return at + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _sentence(error: ErrorDetails) -> str:
    """pydantic's verdict in the words of this project: what is wrong, and what would be right."""
    given, bounds = shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is missing and must be given"
        case "extra_forbidden":
            return "there is no such field; look for a typing error, or leave it out"
        case "greater_than_equal":
            return f"{given} is too small; use {bounds['ge']} or more"
        case "greater_than":
            return f"{given} is too small; use more than {bounds['gt']}"
        case "less_than_equal":
            return f"{given} is too large; use {bounds['le']} or less"
        case "less_than":
            return f"{given} is too large; use less than {bounds['lt']}"
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return f"{given} is not a whole number; use one such as 4"
        case "float_type" | "float_parsing" | "finite_number":
            return f"{given} is not a number; use one such as 0.5"
        case "bool_type" | "bool_parsing":
            return f"{given} is neither true nor false; use one of them"
        case "string_type":
            return f"{given} is not text; put it in quotes"
        case "string_pattern_mismatch" if bounds["pattern"] == LABEL_PATTERN:
            return f"{given} is not a name; use lower-case letters, digits and dashes, beginning with a letter"
        case "string_pattern_mismatch":
            return f"{given} does not match {bounds['pattern']}; use a text that does"
        case "string_too_long" | "too_long":
            return f"is too long; at most {bounds['max_length']} are allowed"
        case "string_too_short" | "too_short":
            return f"is too short; at least {bounds['min_length']} must be given"
        case "enum" | "literal_error":
            return f"{given} is none of the choices; use {bounds['expected']}"
        case "model_type" | "model_attributes_type" | "dict_type" | "dataclass_type":
            return f"{given} is not an object; write fields with their values"
        case "tuple_type" | "list_type":
            return f"{given} is not a list; write one, also for a single item"
        case "value_error":
            return str(bounds["error"])  # ours already
        case _:
            return f"{given} is refused: {error['msg'][:1].lower()}{error['msg'][1:]}"


def shown(value: object) -> str:
    """A value as the user wrote it, cut where it is long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
