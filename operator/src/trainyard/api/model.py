"""What all objects of the API share: how a model reads and writes JSON, and its few scalar types.

A model's attributes are snake_case and its JSON is camelCase. Reading ignores unknown fields: a newer CRD may have more, and
misspelt ones are answered by the API server, whose schema is generated from these models, and of a file by `strict`. Every
string and list that CEL looks at has a largest size, since the API server refuses rules whose cost it cannot bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)
from pydantic.alias_generators import to_camel

DURATION_PATTERN: Final = "^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"
"""Go's spelling, which the rest of Kubernetes uses as well; there is no unit above the hour."""

_SECONDS_PER_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


class ApiModel(BaseModel):
    """A record of the API: frozen, camelCase in JSON, documented by the docstrings of its attributes."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        frozen=True,
        extra="ignore",
    )

    def to_manifest(self) -> dict[str, Any]:
        """As plain JSON values with camelCase names, without what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def but(self, **changes: Any) -> Self:
        """A copy in which the named attributes differ. The values are taken as they are, not validated."""
        return self.model_copy(update=changes)


def duration_seconds(text: str) -> float:
    """Seconds of a duration such as 90s, 2m, 1h30m or 48h; ValueError for anything else."""
    if not re.fullmatch(DURATION_PATTERN[1:-1], text):
        raise ValueError(f"{text!r} is not a duration; write numbers with ms, s, m or h, for example 90s, 2m or 1h30m")
    return sum(float(number) * _SECONDS_PER_UNIT[unit] for number, unit in _DURATION_PART.findall(text))


def positive_duration(text: str) -> str:
    """The text itself, if it is a duration longer than nothing; ValueError otherwise."""
    if duration_seconds(text) <= 0:
        raise ValueError(f"{text!r} is no time at all; use 1s or more")
    return text


def _no_bare_number(value: object) -> object:
    """A number alone is what most people try first."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; write {value}s if these are seconds, or numbers with ms, m or h")
    return value


Duration = Annotated[
    str,
    BeforeValidator(_no_bare_number),
    AfterValidator(positive_duration),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [
                {
                    "rule": f"self.matches('{DURATION_PATTERN}') && duration(self) > duration('0s')",
                    "message": "not a time; write numbers with ms, s, m or h, such as 90s, 2m or 1h30m, and more than 0s",
                }
            ],
        }
    ),
]
"""A length of time as the user wrote it; `duration_seconds` reads it."""


def rfc3339(seconds: float) -> str:
    """An instant in seconds since the epoch as RFC 3339 in UTC, with microseconds only where it has any."""
    at = datetime.fromtimestamp(round(seconds, 6), UTC)
    return at.isoformat(timespec="microseconds" if at.microsecond else "seconds").replace("+00:00", "Z")


def epoch_seconds(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 instant; ValueError where it is none or has no offset."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write for example 2026-01-31T12:00:00Z")
    return at.timestamp()


def _instant(value: object) -> object:
    if isinstance(value, str):
        return epoch_seconds(value)
    return round(value, 6) if isinstance(value, float) else value


Time = Annotated[
    float,
    BeforeValidator(_instant),
    PlainSerializer(rfc3339, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""An instant: seconds since the epoch in Python (to the microsecond, as much as JSON keeps), RFC 3339 in JSON."""

LABEL_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS-1035 label."""
Label = Annotated[
    str,
    Field(pattern=LABEL_PATTERN, max_length=63),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 63,
            "x-kubernetes-validations": [
                {
                    "rule": f"self.matches('{LABEL_PATTERN}')",
                    "message": "not a name; use lower-case letters, digits and dashes, beginning with a letter",
                }
            ],
        }
    ),
]
"""A name that becomes part of other names."""
NodeName = Annotated[str, Field(min_length=1, max_length=253)]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a text must be written. pattern: of the whole text, for Python and CEL alike (RE2); said: what is wrong with one that
    is not, and what would be right, in the same words from the API server and from here."""

    pattern: str
    said: str
    max_length: int

    def check(self, text: str) -> str:
        """The text itself; ValueError where it is written otherwise."""
        if len(text) > self.max_length or not re.fullmatch(self.pattern, text):
            raise ValueError(f"{text!r} is {self.said}")
        return text

    def schema(self) -> dict[str, Any]:
        """As the CRD says it."""
        rule = {"rule": f"self.matches(r'^{self.pattern}$')", "message": self.said}
        return {"type": "string", "maxLength": self.max_length, "x-kubernetes-validations": [rule]}


class ObjectMeta(ApiModel):
    """The parts of an object's metadata that are used here."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _what_is_set(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only what is set: the API server takes an empty resourceVersion or uid for a claim."""
        return {key: value for key, value in dump(self).items() if value}
