"""plan.json: who is who in one attempt of a job, on which nodes, and what it continues.

One ConfigMap per attempt holds it; every pod of the attempt reads the same text. It grows with the gang, so everything that
repeats is written once: domains are referred to by index, and the groups of the mesh follow by arithmetic from its axes. At
10,000 members it stays under 700 KB (an object in etcd may hold 1.5 MiB, a ConfigMap 1 MiB).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trainyard.contract.codec import ContractError, dumps, loads
from trainyard.contract.preflight import Preflight

FORMAT = 1


class NewerFormat(ContractError):
    """The plan was written for a newer launcher than this one: the image has to be updated, trying again cannot help."""


def pod_name(job: str, member: int) -> str:
    """Name and host name of a member. The number is never used twice in a job, so the name speaks of one pod alone."""
    return f"{job}-{member}"


class Member(NamedTuple):
    """One pod of the gang; its index in `Plan.members` is its node rank. A tuple, so that JSON repeats no names.

    member: the member's number in the job, never used twice. node: the node it is pinned to. domain: index into
    `Plan.domains` of the narrowest domain that holds the node; -1 where the node carries no topology.
    """

    member: int
    node: str
    domain: int = -1


PROCESS_GROUP_TIMEOUT_SECONDS: Final = 120.0
"""Unless a plan says otherwise. Whatever may be waited for below the collectives must have given up before."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A subtree of the network. level: index into `Plan.levels`; parent: index into `Plan.domains`, -1 at the top."""

    level: int
    name: str
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the process mesh. The axes are row-major over rank: the last one varies fastest."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the lineage: what `attempt` had done after `step` (steps are counted from 1; 0 is the start)."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which checkpoints count.

    history: for each earlier attempt that counts, in order, the last step of it that is history. A commit of an attempt
    beyond its mark, or of an attempt without a mark, was written by something that had been given up: it is never loaded.
    An attempt whose mark is -1 is one that nobody could ask any more: its newest commit that verifies counts.
    resume: the commit to start from where the operator knows one; the newest commit of the history otherwise.
    """

    history: tuple[Mark, ...] = ()
    resume: Mark | None = None


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where and how often state is saved.

    folder: absolute path in the pod, on the volume that all members share, or a URL of an object store, such as
    s3://bucket/folder; it belongs to this job alone (its uid is in it).
    every_steps / every_seconds: the interval; whichever is set; neither: only when asked to stop and at the end.
    every_auto: the trainer finds the interval itself, from what it measures and from `failures` of the job in `over_seconds`.
    keep: how many commits stay. grace_seconds: the longest that the save at a stop may take. copies_bytes: of each pod's memory,
    for copies of the newest commit; 0: none.
    """

    folder: str
    every_steps: int | None = None
    every_seconds: float | None = None
    every_auto: bool = False
    failures: int = 0
    over_seconds: float = 0.0
    keep: int = 3
    grace_seconds: float = 120.0
    copies_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt of one job.

    levels: names of the network's tiers, broadest first. mesh: axes whose sizes multiply to members x processes.
    trainer: configuration of the built-in trainer as JSON (`trainyard.api.trainer`), None for one's own script.
    process_group_timeout_seconds: how long a collective may take before the gang counts as broken. preflight: what the gang is to
    prove before its first step; None: nothing.
    """

    namespace: str
    job: str
    uid: str
    attempt: int
    service: str
    processes_per_node: int
    members: tuple[Member, ...]
    mesh: tuple[Axis, ...]
    levels: tuple[str, ...] = ()
    domains: tuple[Domain, ...] = ()
    rendezvous_port: int = 29500
    process_group_timeout_seconds: float = PROCESS_GROUP_TIMEOUT_SECONDS
    lineage: Lineage = field(default_factory=Lineage)
    checkpoints: Checkpoints | None = None
    trainer: Mapping[str, Any] | None = None
    preflight: Preflight | None = None
    format: int = FORMAT

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return len(self.members) * self.processes_per_node

    @property
    def master_address(self) -> str:
        """Host name of node rank 0 as its peers resolve it: within the namespace, whatever the cluster's domain is."""
        return f"{self.pod(0)}.{self.service}"

    def pod(self, rank: int) -> str:
        """Name of the pod that plays a node rank."""
        return pod_name(self.job, self.members[rank].member)

    def node_rank(self, pod: str) -> int:
        """The rank of a pod of this attempt; KeyError where the pod is not in it."""
        for rank in range(len(self.members)):
            if self.pod(rank) == pod:
                return rank
        raise KeyError(f"pod {pod} is not a member of attempt {self.attempt} of {self.namespace}/{self.job}")

    def path(self, rank: int) -> tuple[str, ...]:
        """The domains of a member from the top, as names; () where its node carries no topology."""
        names: list[str] = []
        at = self.members[rank].domain
        while at >= 0:
            names.append(self.domains[at].name)
            at = self.domains[at].parent
        return tuple(reversed(names))

    @property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """By rank of the processes: the domains around it from the top, and its node."""
        of_nodes = [(*self.path(rank), member.node) for rank, member in enumerate(self.members)]
        return tuple(place for place in of_nodes for _ in range(self.processes_per_node))


def encode(plan: Plan) -> str:
    """The text of plan.json. Equal plans have equal texts."""
    return dumps(plan)


def decode(text: str | bytes) -> Plan:
    """Read plan.json; ContractError names what is wrong with it."""
    plan = loads(Plan, text)
    if plan.format > FORMAT:
        raise NewerFormat(
            f"Plan.format: {plan.format} is newer than {FORMAT}, the newest that this launcher reads; update the image"
        )
    for contradiction in _contradictions(plan):
        raise ContractError(f"Plan.{contradiction}")
    return plan


def _contradictions(plan: Plan) -> Iterator[str]:
    """What in a plan cannot be, as field and reason."""
    for name, at_least in (("processes_per_node", 1), ("attempt", 1)):
        if getattr(plan, name) < at_least:
            yield f"{name}: {getattr(plan, name)}; it is counted from {at_least}"
    if not 0 < plan.rendezvous_port < 65536:
        yield f"rendezvous_port: {plan.rendezvous_port} is not a port"
    yield from _mesh_contradictions(plan)
    for n, domain in enumerate(plan.domains):
        if not -1 <= domain.parent < n or not 0 <= domain.level < len(plan.levels):
            yield f"domains[{n}]: parent must come before it, and its level must exist"
    seen: set[int] = set()
    for n, member in enumerate(plan.members):
        if member.member < 0:
            yield f"members[{n}].member: {member.member}; members are counted from 0"
        if member.member in seen:
            yield f"members[{n}].member: {member.member} plays two ranks"
        seen.add(member.member)
        if not -1 <= member.domain < len(plan.domains):
            yield f"members[{n}].domain: {member.domain} is not in domains"


def _mesh_contradictions(plan: Plan) -> Iterator[str]:
    if not plan.members:
        yield "members: empty; a gang has at least one"
    for n, axis in enumerate(plan.mesh):
        if axis.size < 1:
            yield f"mesh[{n}].size: {axis.size}; an axis has at least 1"
    product = math.prod(axis.size for axis in plan.mesh)
    if product != plan.world_size:
        yield f"mesh: its axes multiply to {product}, but members x processes is {plan.world_size}"


def digest(plan: Plan) -> str:
    """Short name of a plan's content: what a pod was made from, and what its launcher says it runs."""
    return hashlib.sha256(encode(plan).encode()).hexdigest()[:16]
