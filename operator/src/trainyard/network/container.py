"""What a job's template says that the network depends on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from trainyard.api.template import pod_spec, requested_accelerators, trainer_container
from trainyard.api.training_job import TrainingJobSpec
from trainyard.world.resources import parse_quantity

SHM: Final = "/dev/shm"
INFINIBAND: Final = "/dev/infiniband"
NCCL_CONF: Final = "/etc/nccl.conf"


class Backend(StrEnum):
    """Which library carries the collectives of tensors."""

    NCCL = "nccl"
    """NVIDIA's, or RCCL of AMD, which reads the same variables."""
    GLOO = "gloo"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a job, as its template has it.

    accelerators: how many the trainer container asks for. env: its variables with a value; named: all of its variables, those
    whose value comes from elsewhere too. words: its command and arguments. wishes: spec.network.env. limits: what it asks for, as
    written. hosts: by path of a mount, the folder of the host behind it, None where it is no hostPath. claims: whether the pod
    claims devices.
    """

    nodes: int
    per_node: int
    backend: Backend
    accelerators: int
    env: Mapping[str, str] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    wishes: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str | None] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    host_network: bool = False
    claims: bool = False
    env_from: bool = False

    @property
    def many(self) -> bool:
        """Whether there is a network between its members."""
        return self.nodes > 1

    @property
    def said(self) -> Mapping[str, str]:
        """What the job says of variables; spec.network.env wins over the template."""
        return {**self.env, **self.wishes}

    def asks(self, pattern: str) -> str | None:
        """The resource that its container asks for and that this pattern, with * for any text, means."""
        return next((name for name in self.limits if fnmatchcase(name, pattern)), None)

    def amount(self, resource: str) -> int | None:
        """How much of a resource its container may have; None where it does not say, or not so that it can be read."""
        try:
            return parse_quantity(self.limits[resource], resource)
        except (KeyError, ValueError):
            return None


_NVIDIA: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)")
_AMD: Final = "amd.com/gpu"


def pod_of(spec: TrainingJobSpec) -> Pod:
    """What matters of a job's template. Whatever makes no sense in it is passed over; the API server has an opinion of it."""
    container = trainer_container(spec.template) or {}
    of_pod = pod_spec(spec.template)
    variables = list(_objects(container.get("env")))
    limits = _limits(container)
    fast = any((_NVIDIA.fullmatch(name) or name == _AMD) and count != "0" for name, count in limits.items())
    return Pod(
        nodes=spec.nodes,
        per_node=spec.placement.pods_per_node,
        backend=Backend.NCCL if fast else Backend.GLOO,
        accelerators=requested_accelerators(container),
        env={str(v.get("name")): str(v["value"]) for v in variables if "value" in v},
        named=tuple(str(v.get("name")) for v in variables),
        wishes={variable.name: variable.value for variable in spec.network.env},
        limits=limits,
        hosts=_hosts(of_pod, container),
        words=tuple(str(word) for key in ("command", "args") for word in _list(container.get(key))),
        host_network=of_pod.get("hostNetwork") is True,
        claims=bool(of_pod.get("resourceClaims")),
        env_from=bool(container.get("envFrom")),
    )


def _limits(container: Mapping[str, Any]) -> Mapping[str, str]:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return {str(name): str(amount) for name, amount in limits.items()} if isinstance(limits, Mapping) else {}


def _hosts(of_pod: Mapping[str, Any], container: Mapping[str, Any]) -> Mapping[str, str | None]:
    folders: dict[str, str | None] = {}
    for volume in _objects(of_pod.get("volumes")):
        host = volume.get("hostPath")
        folders[str(volume.get("name"))] = str(host.get("path")) if isinstance(host, Mapping) else None
    mounts = _objects(container.get("volumeMounts"))
    return {str(m.get("mountPath")).rstrip("/"): folders.get(str(m.get("name"))) for m in mounts}


def _objects(found: object) -> Iterator[Mapping[str, Any]]:
    return (one for one in _list(found) if isinstance(one, Mapping))


def _list(found: object) -> Sequence[Any]:
    return found if isinstance(found, list) else []
