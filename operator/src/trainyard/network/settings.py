"""Which settings of the network libraries a job's pods get, where each came from and why.

Few on purpose: what a library finds out by itself is left to it. Three sources, each winning over the one before: what follows
from the fabric's description, the fabric's own settings, the job's (spec.network.env and the environment of its trainer
container). Who a process is in the gang is nobody's to set here: that is the plan's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from trainyard.api.fabric import FabricKind, FabricSpec, PodAdditions
from trainyard.api.names import is_reserved_env
from trainyard.api.template import trainer_container
from trainyard.api.training_job import TrainingJobSpec


class Source(StrEnum):
    """Who said so."""

    DERIVED = "derived"
    """Trainyard, from the fabric's description."""
    FABRIC = "fabric"
    """The settings of the Fabric object."""
    JOB = "job"
    """The job's spec.network.env."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable of the trainer container, and why it is there."""

    name: str
    value: str
    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What the network wants of a job's pods.

    settings: each name once, those of the fabric before those of the job, so that a value may refer to what precedes it.
    additions: volumes, mounts and environment that the fabric adds to its pods. warnings: what the job had better change.
    """

    settings: tuple[Setting, ...] = ()
    additions: PodAdditions = field(default_factory=PodAdditions)
    warnings: tuple[str, ...] = ()


def derive(fabric: FabricSpec | None, spec: TrainingJobSpec) -> Settings:
    """The settings of a job on a fabric; None: nothing is known of the network, and nothing about it is written."""
    container = trainer_container(spec.template) or {}
    of_template = _names(container)
    of_job = {variable.name: variable.value for variable in spec.network.env}
    of_fabric = (
        ()
        if fabric is None
        else tuple(
            Setting(variable.name, variable.value, Source.FABRIC, "set by the Fabric object") for variable in fabric.env
        )
    )
    theirs = {*of_template, *of_job}
    named_by_fabric = {setting.name for setting in of_fabric}
    derived = (s for s in _derived(fabric, _wants_cuda(container)) if s.name not in named_by_fabric)
    ours = tuple(s for s in (*derived, *of_fabric) if s.name not in theirs and not is_reserved_env(s.name))
    jobs = tuple(
        Setting(name, value, Source.JOB, "set by spec.network.env")
        for name, value in of_job.items()
        if not is_reserved_env(name)
    )
    return Settings(
        settings=ours + jobs,
        additions=fabric.pod_additions if fabric is not None else PodAdditions(),
        warnings=tuple(_warnings(container, of_job)),
    )


def _derived(fabric: FabricSpec | None, cuda: bool) -> Iterable[Setting]:
    """What follows from a fabric's kind and interface."""
    if fabric is not None and fabric.interface is not None:
        name = fabric.interface
        # gloo takes plain names; NCCL takes prefixes unless told that a name is whole.
        yield Setting(
            "GLOO_SOCKET_IFNAME", name, Source.DERIVED, "the fabric's interface; gloo would ask the host name"
        )
        if cuda:
            why = "the fabric's interface, as a whole name: without = eth1 would mean eth10 as well"
            yield Setting("NCCL_SOCKET_IFNAME", f"={name}", Source.DERIVED, why)
    if cuda:
        if fabric is not None and fabric.kind is FabricKind.TCP:
            yield Setting(
                "NCCL_IB_DISABLE", "1", Source.DERIVED, "a fabric of kind tcp has no RDMA devices worth looking for"
            )
        yield Setting("NCCL_DEBUG", "WARN", Source.DERIVED, "NCCL says nothing by itself, not even why it fails")


def _warnings(container: Mapping[str, Any], of_job: Mapping[str, str]) -> Iterable[str]:
    for name in sorted({*_names(container), *of_job}):
        if is_reserved_env(name):
            yield f"{name} is left out: who a process is in the gang is the plan's to say"
    values = {**_values(container), **of_job}
    gloo = values.get("GLOO_SOCKET_IFNAME", "")
    if re.match(r"[=^]", gloo):
        yield f"GLOO_SOCKET_IFNAME: {gloo!r} is no interface; gloo knows neither = nor ^, write plain names such as eth0"
    if container.get("envFrom"):
        yield "envFrom: Kubernetes lets env win over it; a setting of Trainyard is replaced by env or spec.network.env alone"


_CUDA: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)")


def _wants_cuda(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return isinstance(limits, Mapping) and any(
        _CUDA.fullmatch(str(name)) and str(count) != "0" for name, count in limits.items()
    )


def _variables(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    env = container.get("env")
    return [variable for variable in env if isinstance(variable, Mapping)] if isinstance(env, list) else []


def _names(container: Mapping[str, Any]) -> list[str]:
    return [str(variable.get("name")) for variable in _variables(container)]


def _values(container: Mapping[str, Any]) -> dict[str, str]:
    return {str(v.get("name")): str(v["value"]) for v in _variables(container) if "value" in v}
