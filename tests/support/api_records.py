"""Arbitrary records of the API, for properties that hold for all of them."""

from __future__ import annotations

import types
import typing
from enum import Enum
from typing import Any, TypeVar

from hypothesis import strategies as st
from trainyard.api.model import ApiModel
from trainyard.api.parallelism import AUTO, Parallelism
from trainyard.api.training_job import Segments, TrainingJobSpec

M = TypeVar("M", bound=ApiModel)

LATEST = 4e9
"""In the year 2096, in seconds since the epoch."""

_words = st.text("abcdefghij-0123456789", min_size=1, max_size=8).map(lambda text: f"a{text}z")
_durations = st.lists(
    st.tuples(st.integers(1, 999), st.sampled_from(["ms", "s", "m", "h"])).map(lambda part: f"{part[0]}{part[1]}"),
    min_size=1,
    max_size=3,
).map("".join)

_sizes = st.just(AUTO) | st.integers(1, 10**6)


def records(model: type[M], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[M]:
    """Instances of a model, every field of which takes any value of its type; `given` where a type says too little."""
    fields = {
        name: given[name] if name in given else _values(field.annotation) for name, field in model.model_fields.items()
    }
    return st.fixed_dictionaries(fields).map(model.model_validate)


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _values(inner[0])
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(_values(choice) for choice in inner))
    if origin is tuple:
        return st.lists(_values(inner[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_words, _values(inner[1]), max_size=3)
    if annotation is types.NoneType:
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(0, 2**53)
    if annotation is float:
        return st.floats(0, LATEST)
    if annotation is str:
        return _words
    if issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    return records(annotation)


def specs() -> st.SearchStrategy[TrainingJobSpec]:
    """Specifications within their bounds; the built-in trainer's part is its defaults or absent."""
    fields = TrainingJobSpec.model_fields
    checkpoint, restart, placement = (
        typing.cast(Any, fields[name].annotation) for name in ("checkpoint", "restart", "placement")
    )
    return records(
        TrainingJobSpec,
        nodes=st.integers(1, 20_000),
        min_nodes=st.none() | st.integers(1, 20_000),
        processes_per_node=st.none() | st.integers(1, 128),
        template=st.just({"spec": {"containers": [{"name": "trainer", "image": "trainyard/trainer"}]}}),
        trainer=st.sampled_from([None, {}, {"steps": 20}]),
        parallelism=st.none() | records(Parallelism, shard=_sizes, replicate=_sizes, tensor=_sizes, pipeline=_sizes),
        max_runtime=st.none() | _durations,
        checkpoint=records(
            checkpoint,
            url=st.none() | st.just("s3://bucket/runs"),
            memory=st.none() | st.just("16Gi"),
            every=st.integers(1, 10**6) | _durations,
            keep=st.integers(1, 1000),
            grace=_durations,
        ),
        placement=records(
            placement,
            relax=st.lists(st.fixed_dictionaries({"after": _durations, "level": _words}), max_size=3),
            segments=st.none() | records(Segments, nodes=st.integers(2, 20_000)),
            pods_per_node=st.integers(1, 128),
            spares=st.integers(0, 64),
        ),
        restart=records(restart, failures=st.integers(0, 1000), per=_durations),
    )
