"""The fields of a profile file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from trainyard.api.fabric import AddressFamily, Rails
from trainyard.api.names import LABEL_INSTANCE_TYPE, is_reserved_env

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Text = Annotated[str, StringConstraints(strict=True)]
Env = dict[Name, Text]


class Transport(StrEnum):
    """What carries the packets of the collectives."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    TCPX = "tcpx"
    """GPUDirect over TCP, by a plugin and a daemon beside the pod's container."""
    TCP = "tcp"

    @property
    def verbs(self) -> bool:
        """Whether NCCL itself drives the adapters, so that its NCCL_IB_* variables count."""
        return self in (Transport.INFINIBAND, Transport.ROCE)

    @property
    def fast(self) -> bool:
        """Whether there is something that sockets would only stand in for."""
        return self is not Transport.TCP


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        frozen=True,
        extra="forbid",
    )


class Match(_Part):
    """What nodes of this kind carry. Any of the three will do; all that one of them lists must be there, instance types aside."""

    instance_types: tuple[str, ...] = ()
    """Values of node.kubernetes.io/instance-type, with * for any text."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that a node has, with * for any text."""
    advertised: tuple[str, ...] = ()
    """Resources that a node offers."""


class Roce(_Part):
    """How switches know the packets of the collectives. Each value stands for what the site's switches are set to."""

    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    ecn: Annotated[int, Field(ge=0, le=3)] = 0
    """The two bits below the DSCP in the traffic class."""
    service_level: Annotated[int, Field(ge=0, le=15)] | None = None
    address_family: AddressFamily = AddressFamily.IPV4
    """Of the addresses of the adapters."""
    address_range: str | None = None
    """The network that the addresses of the adapters are in, where an adapter has addresses of several."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """The row that the vendor's guide names. Never written: a pod's table is its own. A job that sets this one is believed."""


class Machine(_Part):
    """What one kind of node has, in whole."""

    instance_types: tuple[str, ...]
    """As in `match`."""
    accelerators: int = 8
    """How many of them; what is counted by node is for all of them together."""
    nics: int
    """Interfaces for collectives."""
    nic_gbps: int
    """Rate of each, per direction, in 1e9 bit/s."""
    devices: tuple[str, ...] = ()
    """Names of the adapters of the compute network, all of them."""
    env: Env = Field(default_factory=dict)
    """Settings besides those of the profile."""
    annotations: dict[Name, Text] = Field(default_factory=dict)
    """Annotations besides those of the profile."""
    nvlink_domains: bool = False
    """NVLink goes beyond the node."""


class Resource(_Part):
    """An extended resource that the trainer container asks for."""

    per_node: Annotated[int, Field(ge=1)] | None = None
    """How many of a whole node; fewer for a part of its accelerators. Left out: as many as the machine has interfaces."""
    shared: bool = False
    """One is enough for any number of adapters."""
    unless: tuple[str, ...] = ()
    """Not where the container asks for one of these already, with * for any text."""


class Host(_Part):
    """What gives a pod rights on its node. Added only where an administrator's Fabric names the profile."""

    host_network: bool = False
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    volume_mounts: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()
    """Sidecars: containers that start before the trainer and end after it (restartPolicy Always)."""
    required: bool = False
    """Whether nothing of the fast network works without them, or what the template brings in their place."""


class Profile(_Part):
    """One kind of network: how its nodes are known, what is written for it, and what its pods need."""

    name: str
    title: str
    about: str = ""
    """What there is to know of it, for whoever runs such machines."""
    sources: Annotated[tuple[str, ...], Field(min_length=1)]
    """Where the values are from."""
    transport: Transport
    match: Match = Field(default_factory=Match)
    like: str | None = None
    """Chosen by name alone, where the nodes match this other profile."""
    net: str | None = None
    """Name of NCCL's network (NCCL_NET) that must be there: without it NCCL would fall back to sockets and say nothing."""
    interface: str | None = None
    """Interface of a pod that is not on its node's network."""
    roce: Roce | None = None
    timeout: Annotated[int, Field(ge=1, le=31)] | None = None
    """NCCL_IB_TIMEOUT; lowered where it would outlast the process group's."""
    rails: Rails = Rails.ROUTED
    nvlink_domains: bool = False
    """NVLink goes beyond the node, whatever the machine."""
    env: Env = Field(default_factory=dict)
    machines: tuple[Machine, ...] = ()
    resources: dict[Name, Resource] = Field(default_factory=dict)
    fixed_resources: dict[Name, Text] = Field(default_factory=dict)
    """Resources in the same amount for every pod, whatever its accelerators."""
    annotations: dict[Name, Text] = Field(default_factory=dict)
    annotations_per_nic: dict[Name, Text] = Field(default_factory=dict)
    """Annotations whose value stands as often as the pod has interfaces for collectives, separated by commas."""
    host: Host = Field(default_factory=Host)
    env_scripts: tuple[str, ...] = ()
    """Scripts of the vendor that set variables anew when they are sourced, and so undo what stands in the pod."""
    memory_gib_per_accelerator: int | None = None
    """Below this much memory of the container its pods were seen to be killed."""

    @model_validator(mode="after")
    def _sense(self) -> Profile:
        if (self.roce is not None) != (self.transport is Transport.ROCE):
            raise ValueError("roce: is for the transport roce, and for no other")
        for name in (*self.env, *(name for machine in self.machines for name in machine.env)):
            if is_reserved_env(name):
                raise ValueError(f"env: {name} is the plan's")
            if name in DERIVED:
                raise ValueError(f"env: {name} follows from another field")
        return self

    def machine(self, labels: Mapping[str, str]) -> Machine | None:
        """The machine that a node's labels name."""
        kind = labels.get(LABEL_INSTANCE_TYPE, "")
        return next((m for m in self.machines if matches_any(kind, m.instance_types)), None) if kind else None


DERIVED = frozenset(
    {
        "NCCL_NET",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_TC",
        "NCCL_IB_SL",
        "NCCL_IB_TIMEOUT",
        "NCCL_IB_ADDR_FAMILY",
        "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_GID_INDEX",
        "NCCL_CROSS_NIC",
        "NCCL_MNNVL_ENABLE",
        "NCCL_DEBUG",
    }
)
"""Variables that a profile says by fields of its own, which a Fabric can override one by one."""


def matches_any(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns, with * for any text, is the whole text."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)
