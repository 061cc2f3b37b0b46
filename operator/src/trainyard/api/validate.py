"""From an object as it is written to a record, or to sentences that say what is wrong with it.

The API server has refused most of what is refused here already, by the CRD's bounds and rules. This module says the same without
an API server (the command line), and says what no schema can. The sentence is the one that the condition, the log and the
command line show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from trainyard.api import names, rules
from trainyard.api.errors import FieldError, field_errors, shown
from trainyard.api.fabric import FabricSpec, FabricStatus, Observed
from trainyard.api.model import LABEL_PATTERN
from trainyard.api.parallelism import contradictions
from trainyard.api.template import containers, is_our_image, mount_path, pod_spec, trainer_container, volume_names
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus

__all__ = ["NOT_SHARED", "FieldError", "ReadFabric", "ReadJob", "read_fabric", "read_job"]

M = TypeVar("M", bound=BaseModel)

NOT_SHARED: Final = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")
"""Kinds of volumes of which every pod has its own, or that cannot be written."""


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A TrainingJob as far as it could be read. spec is None exactly where there are errors."""

    spec: TrainingJobSpec | None
    status: TrainingJobStatus
    errors: tuple[FieldError, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadFabric:
    """A Fabric as far as it could be read. spec is None exactly where there are errors. observed: None where the status makes no
    sense, which is left alone: nothing depends on it but how good plans are."""

    spec: FabricSpec | None
    errors: tuple[FieldError, ...] = ()
    observed: Observed | None = None


def read_job(raw: Mapping[str, Any]) -> ReadJob:
    """Read a TrainingJob as the API server sends it or a user writes it. Never raises.

    A status that cannot be read is an error too: it is the operator's memory, and acting without it would repeat or undo
    what was done.
    """
    spec, spec_errors = _parse(TrainingJobSpec, raw.get("spec"), "spec")
    status, status_errors = _parse(TrainingJobStatus, raw.get("status") or {}, "status")
    found = [*_name_errors(raw), *spec_errors, *(_spec_errors(spec) if spec else ()), *status_errors]
    return ReadJob(None if found else spec, status or TrainingJobStatus(), tuple(found))


def read_fabric(raw: Mapping[str, Any]) -> ReadFabric:
    """Read a Fabric. Never raises."""
    spec, errors = _parse(FabricSpec, raw.get("spec") or {}, "spec")
    found = [*errors, *(_fabric_errors(spec) if spec else ())]
    status, _ = _parse(FabricStatus, raw.get("status") or {}, "status")
    return ReadFabric(None if found else spec, tuple(found), status.observed if status is not None else None)


def _name_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    metadata = raw.get("metadata") or {}
    name = str(metadata.get("name") or "")
    if not name and metadata.get("generateName"):
        return  # the API server makes the name, and looks at it
    if len(name) > names.MAX_JOB_NAME or not re.fullmatch(LABEL_PATTERN[1:-1], name):
        yield FieldError("metadata.name", f"{shown(name)} {rules.NO_JOB_NAME}")


def _spec_errors(spec: TrainingJobSpec) -> Iterator[FieldError]:
    """What no single field can tell."""
    yield from _template_errors(spec.template)
    yield from _placement_errors(spec)
    for n, variable in enumerate(spec.network.env):
        if names.is_reserved_env(variable.name):
            yield FieldError(f"spec.network.env[{n}].name", f"{variable.name} {rules.RESERVED}")
    trains = trainer_container(spec.template)
    if not spec.network.allow_unsafe:
        yield from _unsafe_errors(spec)
    if trains is not None:
        commanded = bool(trains.get("command"))
        if spec.trainer is not None and commanded:
            yield FieldError("spec.trainer", rules.COMMAND_OR_TRAINER)
        if spec.trainer is None and not commanded and not is_our_image(str(trains.get("image") or "")):
            yield FieldError("spec.template.spec.containers", rules.NEEDS_COMMAND)
    if spec.checkpoint.volume is not None and spec.checkpoint.url is not None:
        yield FieldError("spec.checkpoint.url", rules.VOLUME_OR_URL)
    if spec.checkpoint.volume is not None:
        yield from _volume_errors(spec.template, trains, spec.checkpoint.volume)


def _unsafe_errors(spec: TrainingJobSpec) -> Iterator[FieldError]:
    for n, variable in enumerate(spec.network.env):
        if variable.name in names.UNSAFE_ENV:
            yield FieldError(f"spec.network.env[{n}].name", f"{variable.name} {rules.UNSAFE}")
    for n, container in enumerate(containers(spec.template)):
        for m, name in enumerate(_env_names(container.get("env"))):
            if name in names.UNSAFE_ENV:
                yield FieldError(f"spec.template.spec.containers[{n}].env[{m}].name", f"{name} {rules.UNSAFE}")


def _placement_errors(spec: TrainingJobSpec) -> Iterator[FieldError]:
    if spec.min_nodes is not None and spec.min_nodes > spec.nodes:
        yield FieldError("spec.minNodes", rules.MORE_THAN_NODES)
    if spec.parallelism is not None:
        for axis, said in contradictions(spec.parallelism, spec.nodes, spec.processes, spec.training):
            yield FieldError(f"spec.parallelism.{axis}", said)
    placement = spec.placement
    if placement.relax and (placement.within is None or not placement.within.required):
        yield FieldError("spec.placement.relax", rules.NOTHING_TO_RELAX)
    if any(b.after_seconds < a.after_seconds for a, b in pairwise(placement.relax)):
        yield FieldError("spec.placement.relax", rules.RELAXES_LATER)
    if placement.segments is not None and spec.nodes % placement.segments.nodes:
        yield FieldError("spec.placement.segments.nodes", rules.TORN_SEGMENT)
    if placement.pods_per_node > 1 and pod_spec(spec.template).get("hostNetwork"):
        yield FieldError(
            "spec.placement.podsPerNode",
            f"{placement.pods_per_node} members of a node cannot all listen on the host's own ports; leave hostNetwork out "
            "of the template, or use 1",
        )


def _template_errors(template: Mapping[str, Any]) -> Iterator[FieldError]:
    at = "spec.template.spec"
    found = pod_spec(template).get("containers")
    if not isinstance(found, list) or not found:
        yield FieldError(f"{at}.containers", "must be a list of at least one container: the one that trains")
        return
    for n, container in enumerate(found):
        if not isinstance(container, Mapping) or not isinstance(container.get("name"), str):
            yield FieldError(f"{at}.containers[{n}]", "must be an object with a name")
    if trainer_container(template) is None:
        yield FieldError(f"{at}.containers", rules.ONE_TRAINER)
    restarts = pod_spec(template).get("restartPolicy")
    if restarts not in (None, "Never"):
        yield FieldError(f"{at}.restartPolicy", rules.NEVER_RESTARTS)
    if pod_spec(template).get("nodeName"):
        yield FieldError(
            f"{at}.nodeName", "nodes are chosen by the plan; leave it out, and narrow the choice by nodeSelector"
        )
    for n, container in enumerate(containers(template)):
        for m, name in enumerate(_env_names(container.get("env"))):
            if names.is_reserved_env(name):
                yield FieldError(f"{at}.containers[{n}].env[{m}].name", f"{name} {rules.RESERVED}")


def _volume_errors(template: Mapping[str, Any], trains: Mapping[str, Any] | None, volume: str) -> Iterator[FieldError]:
    if volume not in volume_names(template):
        yield FieldError("spec.checkpoint.volume", rules.NO_SUCH_VOLUME)
        return
    if trains is not None and mount_path(trains, volume) is None:
        yield FieldError("spec.checkpoint.volume", rules.NOT_MOUNTED)
    declared = next(v for v in pod_spec(template)["volumes"] if isinstance(v, Mapping) and v.get("name") == volume)
    for kind in NOT_SHARED:
        if kind in declared:
            yield FieldError(
                "spec.checkpoint.volume",
                f"{shown(volume)} is a volume of kind {kind}, which the nodes of a gang cannot share and write; "
                "use a persistentVolumeClaim with access mode ReadWriteMany",
            )


def _fabric_errors(spec: FabricSpec) -> Iterator[FieldError]:
    for n, variable in enumerate(spec.env):
        if names.is_reserved_env(variable.name):
            yield FieldError(f"spec.env[{n}].name", f"{variable.name} {rules.RESERVED}")
    for n, name in enumerate(_env_names(list(spec.pod_additions.env))):
        if names.is_reserved_env(name):
            yield FieldError(f"spec.podAdditions.env[{n}].name", f"{name} {rules.RESERVED}")


def _env_names(env: object) -> list[str]:
    found = env if isinstance(env, list) else []
    return [str(v.get("name")) if isinstance(v, Mapping) else "" for v in found]


def _parse(model: type[M], raw: object, at: str) -> tuple[M | None, tuple[FieldError, ...]]:
    try:
        return model.model_validate(raw), ()
    except ValidationError as refused:
        return None, field_errors(refused, at)
