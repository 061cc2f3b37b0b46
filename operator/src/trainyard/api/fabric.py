"""Fabric: what kind of network a group of nodes has, and what its pods need for it.

Cluster-scoped, and written by administrators alone: its pod additions can mount what the user of a job may not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, WithJsonSchema, model_validator

from trainyard.api import names, rules
from trainyard.api.model import ApiModel, Label, ObjectMeta, Time
from trainyard.api.quantities import Bandwidth, Latency
from trainyard.api.training_job import Variable


def _preserved(**properties: str) -> dict[str, Any]:
    """Schema of an object of the core API of which only some names are declared, all of them needed."""
    declared = {name: {"type": "string", "maxLength": 1024, "description": text} for name, text in properties.items()}
    kept = {"x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "required": list(properties), "properties": declared, **kept}


_Volume = Annotated[dict[str, Any], WithJsonSchema(_preserved(name="Name of the volume."))]
_Mount = Annotated[
    dict[str, Any],
    WithJsonSchema(_preserved(name="Name of the volume.", mountPath="Where the trainer container sees it.")),
]
_Env = Annotated[dict[str, Any], WithJsonSchema(_preserved(name="Name of the variable."))]
_Container = Annotated[dict[str, Any], WithJsonSchema(_preserved(name="Name of the container.", image="Its image."))]
_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class FabricKind(StrEnum):
    """What the collectives run over."""

    GENERIC = "generic"
    """Nothing is assumed; only the fabric's own settings are written."""
    TCP = "tcp"
    """Sockets: the libraries are told to look for nothing else."""
    INFINIBAND = "infiniband"
    """InfiniBand, as the profile infiniband."""
    ROCE = "roce"
    """RDMA over Ethernet, as the profile roce."""


class AddressFamily(StrEnum):
    """Kinds of addresses, as NCCL names them."""

    IPV4 = "AF_INET"
    IPV6 = "AF_INET6"


class Rails(StrEnum):
    """How the first adapters of all nodes, the second ones, and so on, hang together."""

    ROUTED = "routed"
    """Every adapter reaches every other; those of one rail over fewer switches."""
    ISOLATED = "isolated"
    """An adapter reaches those of its own rail alone."""
    ONE = "one"
    """All adapters are on the same switches, so that it does not matter which talk."""


class Level(ApiModel):
    """A tier of the network."""

    name: Label
    """Name of the tier, such as spine or leaf, as placement.within.level says it."""
    node_label: Annotated[str, Field(min_length=1, max_length=317)]
    """Label of the nodes whose value names the domain of this tier that a node is in."""
    bandwidth: Bandwidth | None = None
    """Bandwidth per direction by which one domain of this tier is joined to the rest, all of its links together, such as
    12.8Tbps. Left out: as much as what is below it, divided by its oversubscription."""
    oversubscription: Annotated[float, Field(ge=1.0, le=1000.0)] | None = None
    """How many times the bandwidth of what is below a domain of this tier is that of its way up: 3 for a leaf with 48 ports
    down and 16 up. Left out: 1, every node of it can leave it at full rate at once."""
    latency: Latency | None = None
    """What a message takes longer that leaves a domain of this tier, there and into another, such as 1us. Left out: a
    usual value for the kind of network."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.bandwidth is not None and self.oversubscription is not None:
            raise ValueError(f"oversubscription: {rules.BANDWIDTH_SAID}")
        return self


class NodeLinks(ApiModel):
    """What one node has to send with."""

    nics: Annotated[int, Field(ge=1, le=64)] | None = None
    """Network interfaces for collectives. Left out: as the kind of machine has, else 1."""
    nic_bandwidth: Bandwidth | None = None
    """Rated bandwidth of each, per direction, such as 400Gbps. Left out: as the kind of machine has."""
    latency: Latency | None = None
    """From one node to another of the same narrowest domain, what the libraries take included, such as 14us. Left out: a usual
    value for the kind of network."""
    accelerator_bandwidth: Bandwidth | None = None
    """Rated bandwidth per direction between an accelerator and the others of its node, such as 450GB/s for NVLink 4. Left out:
    as the kind of accelerator has."""


class Rdma(ApiModel):
    """Adapters that write into each other's memory, and how switches know their packets."""

    devices: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=63)], ...], Field(max_length=32)] = ()
    """Names of the adapters of the compute network, such as mlx5_0; nothing else is used. Left out: as the machine has, or as
    the node's annotation trainyard.dev/hcas says."""
    address_family: AddressFamily | None = None
    """Of the adapters' own addresses, on Ethernet. Left out: AF_INET."""
    address_range: Annotated[str, Field(min_length=1, max_length=49)] | None = None
    """Network that the adapters' addresses are in, such as 10.4.0.0/16, where an adapter has addresses of several."""
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    """DSCP that the switches protect, on Ethernet. The traffic class of the packets is four times it, plus ecn."""
    ecn: Annotated[int, Field(ge=0, le=3)] | None = None
    """The two bits below the DSCP. Left out: 0."""
    service_level: Annotated[int, Field(ge=0, le=15)] | None = None
    """Service level of the packets. Left out: NCCL's own."""
    timeout: Annotated[int, Field(ge=1, le=31)] | None = None
    """How long an adapter waits for an answer: 4.096 us times 2 to the power of this, eight times."""
    rails: Rails | None = None
    """How the adapters of one rail are joined with those of another. Left out: routed."""


class PodAdditions(ApiModel):
    """What every pod on this fabric gets besides its template."""

    volumes: Annotated[tuple[_Volume, ...], Field(max_length=64)] = ()
    """Volumes of the pod, as in a pod specification."""
    volume_mounts: Annotated[tuple[_Mount, ...], Field(max_length=64)] = ()
    """Mounts into the trainer container."""
    env: Annotated[tuple[_Env, ...], Field(max_length=64)] = ()
    """Environment variables of the trainer container, as in a pod specification (valueFrom included)."""
    annotations: Annotated[dict[str, str], Field(max_length=32)] = Field(default_factory=dict)
    """Annotations of the pod, such as the networks that it joins."""
    resources: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)
    """Extended resources that the trainer container asks for if it does not already, such as rdma/ib: "1"."""
    capabilities: Annotated[tuple[str, ...], Field(max_length=16)] = ()
    """Capabilities of the trainer container, such as IPC_LOCK."""
    init_containers: Annotated[tuple[_Container, ...], Field(max_length=8)] = ()
    """Containers that start before the others, sidecars (restartPolicy Always) included."""


class FabricSpec(ApiModel):
    """The network of a group of nodes."""

    kind: FabricKind = FabricKind.GENERIC
    """What the collectives run over; generic: as the nodes are recognised, or as the settings below say."""
    profile: Label | None = None
    """Built-in profile that this fabric is like, such as gcp-gib; the fields here replace its own, one by one, and its pods get
    what the profile needs on the host. Left out: by kind, else as the nodes are recognised, without rights on the host."""
    node_selector: Annotated[dict[str, str], Field(max_length=32)] = Field(default_factory=dict)
    """Labels of the nodes that are on this fabric. Left out: all nodes."""
    levels: Annotated[tuple[Level, ...], Field(max_length=8, json_schema_extra=_BY_NAME)] = ()
    """Tiers of the network, broadest first. Left out: the known label dialects are tried."""
    node: NodeLinks = Field(default_factory=NodeLinks)
    """What one node has to send with. Predictions are made from it; nothing is limited by it."""
    interface: Annotated[str, Field(min_length=1, max_length=15)] | None = None
    """Name of the network interface in the pods that collectives use. Left out: the libraries choose."""
    address_family: AddressFamily | None = None
    """Of the addresses by which the ranks meet. Left out: the libraries take what they find first."""
    rdma: Rdma = Field(default_factory=Rdma)
    """Adapters that write into each other's memory."""
    env: Annotated[tuple[Variable, ...], Field(max_length=256, json_schema_extra=_BY_NAME)] = ()
    """Settings of the network libraries on this fabric; a job's own win over them."""
    pod_additions: PodAdditions = Field(default_factory=PodAdditions)
    """What every pod on this fabric gets besides its template."""


class ObservedBy(StrEnum):
    """How a link was measured."""

    PREFLIGHT = "preflight"
    """By a gang that proved its network before its first step, and passed or was warned."""
    MEASURE = "measure"
    """By `kubectl trainyard measure`; while it is fresh it counts before what preflights found."""


class ObservedLink(ApiModel):
    """What one node was seen to send over one tier of the network."""

    level: Annotated[str, Field(max_length=63)]
    """Broadest level that messages between the measured nodes leave a domain of; node: they are in one narrowest domain."""
    bandwidth: float
    """What one node sends, in bytes a second per direction: the median of pairs of nodes, or the share of its prediction that an
    all-reduce reached which this level holds up, of what is declared."""
    by: ObservedBy
    """How it was measured."""
    job: Annotated[str, Field(max_length=127)]
    """Namespace and name of the job that measured."""
    nodes: int
    """How many nodes the job had."""
    time: Time
    """When it was measured. It counts for a day."""


class ObservedCollective(ApiModel):
    """How long one collective took at one size."""

    collective: Annotated[str, Field(max_length=63)]
    """Such as all-reduce."""
    way: Annotated[str, Field(max_length=63)]
    """ring, tree, hierarchical, or library: as the library chose."""
    bytes: int
    """Of the whole message, as nccl-tests counts it."""
    seconds: float
    """Median of the slowest rank's."""


class Measurement(ApiModel):
    """The last `kubectl trainyard measure` on this fabric."""

    job: Annotated[str, Field(max_length=127)]
    """Namespace and name of the job that measured."""
    backend: Annotated[str, Field(max_length=31)]
    """nccl or gloo."""
    nodes: int
    """How many nodes it had."""
    ranks: int
    """How many processes."""
    time: Time
    """When it ended."""
    collectives: Annotated[tuple[ObservedCollective, ...], Field(max_length=128)] = ()
    """What it measured."""


class Observed(ApiModel):
    """What was measured on this fabric. Plans are made from it where it is not older than a day; preflights are judged by the
    specification alone."""

    summary: Annotated[str, Field(max_length=1024)] = ""
    """By level, the share of what is declared or assumed that one node sends, when this was written."""
    links: Annotated[tuple[ObservedLink, ...], Field(max_length=64)] = ()
    """By level, what was measured last: the newest of up to five jobs that proved their network, and the newest measurement."""
    measurement: Measurement | None = None
    """How long collectives took; left out while nobody has measured."""


class FabricStatus(ApiModel):
    """What is known of a fabric beside what its administrator says."""

    observed: Observed = Field(default_factory=Observed)
    """What was measured on it."""


class Fabric(ApiModel):
    """A kind of network that a group of nodes has: its tiers by node label, its settings, and what its pods need."""

    api_version: str = names.API_VERSION
    kind: str = names.KIND_FABRIC
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: FabricSpec = Field(default_factory=FabricSpec)
    """The network of a group of nodes."""
    status: FabricStatus = Field(default_factory=FabricStatus)
    """What is known of it beside what its administrator says."""
