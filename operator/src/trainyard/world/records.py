"""The cluster as plain records: what the informers decode, what the cycle reads.

A record holds what a decision needs and no more; none refers to another except by name or uid, since the watch streams know
no order between kinds: a pod may arrive before its node. Times are seconds since the epoch. Amounts are whole numbers: cpu in
millicores, everything else in the unit of its name (bytes, devices).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from trainyard.api.fabric import FabricSpec, Observed
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.api.validate import FieldError
from trainyard.contract.status import Status

Resources = Mapping[str, int]
"""Amount by resource name; cpu in millicores."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint. effect: NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """An RDMA adapter of a node, as its driver publishes it. near: it hangs under the PCIe root of an accelerator. mtu: of its
    interface, in bytes; None where it has none."""

    name: str
    near: bool = False
    mtu: int | None = None


@dataclass(frozen=True, slots=True)
class Degraded:
    """A node that is marked for all jobs, by a condition. since: when the newest of the verdicts behind it was given, in whole
    seconds. reason, message: as the condition has them."""

    since: float
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the scheduler sees it. ready: condition Ready is True; ready_since: when that condition last changed. missed: it
    is Unknown, since its heartbeats are missed; a node that joins says False itself.

    annotations: those that are for Trainyard, and no others. adapters: in natural order, where a driver publishes them.
    nvlink_channels: a driver prepares NVLink between nodes for who claims a channel of a ComputeDomain. degraded: no new gang
    gets it; None where nobody marked it. rdma_faults: conditions by which a health check says that its
    RDMA is at fault.
    """

    name: str
    uid: str
    labels: Mapping[str, str]
    allocatable: Resources
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    ready_since: float = 0.0
    missed: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()
    nvlink_channels: bool = False
    degraded: Degraded | None = None
    rdma_faults: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether new members may come to it at all, whatever they demand."""
        return self.ready and not self.unschedulable and self.degraded is None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The trainer container has not started; the kubelet's reason (ImagePullBackOff, CreateContainerError...) and message."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """The trainer container runs since `started`."""

    started: float


@dataclass(frozen=True, slots=True)
class Terminated:
    """The trainer container ended. message: its termination message, the last words where the launcher wrote them."""

    exit_code: int
    reason: str
    message: str
    finished: float


ContainerState = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class Membership:
    """What a pod of ours says of itself in its labels and annotations. node: where the plan pins it.

    attempt, rank, plan_digest: of the attempt that it plays in, or is to play in. made: the attempt that it was made for, whose
    plan it mounts, 0 where it does not say. form: a digest of what it is besides its identity.
    """

    job_uid: str
    attempt: int
    member: int
    rank: int
    node: str
    plan_digest: str
    made: int = 0
    form: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, ours or not.

    node: where it is bound, "" before. requests: as kube-scheduler counts them. live: it takes, or will take, room (its phase
    is neither Succeeded nor Failed). unscheduled: kube-scheduler's message where it found no place. disrupted: a
    DisruptionTarget condition is True. deleted: when its deletion was asked for, grace_seconds: what it was given then.
    held: our finalizer is on it. membership: None where it is not ours.
    """

    namespace: str
    name: str
    uid: str
    created: float
    node: str
    phase: str
    requests: Resources
    priority: int = 0
    ip: str = ""
    deleted: float | None = None
    grace_seconds: float = 30.0
    disrupted: bool = False
    unscheduled: str = ""
    held: bool = False
    trainer: ContainerState = field(default_factory=Waiting)
    membership: Membership | None = None

    @property
    def live(self) -> bool:
        """Whether it still takes room on its node."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def over(self) -> bool:
        """Nothing more is to be expected of its trainer: it ended, whatever its sidecars do; or the pod was deleted before it
        had a node, so that no kubelet ever hears of it."""
        unborn = self.deleted is not None and not self.node
        return not self.live or isinstance(self.trainer, Terminated) or unborn

    @property
    def killed(self) -> float | None:
        """When its kubelet kills it at the latest: the end of the grace of its deletion; None while nobody deletes it."""
        return None if self.deleted is None else self.deleted + self.grace_seconds


@dataclass(frozen=True, slots=True)
class Job:
    """A TrainingJob. spec is None where the object makes no sense; errors then say why, by field."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: float
    spec: TrainingJobSpec | None
    status: TrainingJobStatus
    errors: tuple[FieldError, ...] = ()
    deleted: float | None = None
    held: bool = False

    @property
    def key(self) -> str:
        """Namespace and name, as messages say it."""
        return f"{self.namespace}/{self.name}"

    def with_status(self, status: TrainingJobStatus) -> Job:
        """The job as it will be once this status is written."""
        return replace(self, status=status)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """preempts: its preemptionPolicy is not Never. default: pods without a class get this one."""

    name: str
    value: int
    preempts: bool = True
    default: bool = False


@dataclass(frozen=True, slots=True)
class Fabric:
    """A Fabric object. observed: what was measured on it, None where a newer operator wrote it in words unknown here."""

    name: str
    spec: FabricSpec
    uid: str = ""
    resource_version: str = ""
    observed: Observed | None = field(default_factory=Observed)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the operator knows of one launcher.

    status: its most recent answer, None if it never gave one; time: when that came. asked: when it was first asked, so that
    silence has a beginning; error: why the most recent question got no answer, "" where it got one.
    stop_sent: when a request to stop was last sent to it (0.0: never). plan_sent: when a later plan was; plan_refused: what it
    said when it would not take the last one.
    """

    asked: float
    status: Status | None = None
    time: float = 0.0
    error: str = ""
    stop_sent: float = 0.0
    plan_sent: float = 0.0
    plan_refused: str = ""


class Verdict(StrEnum):
    """What the API server says of a pod that was tried with dryRun."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The user's mistake: 422, or 403 of PodSecurity or PriorityClass."""
    WAIT = "wait"
    """Not the user's mistake: quota, webhook, throttling, a server in trouble; or something that may still appear."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of trying a job's pod. generation: of the job that was tried. reason: a `conditions.Reason`."""

    generation: int
    verdict: Verdict
    time: float
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """That nodes are marked for all jobs. administrators: namespaces whose jobs' verdicts count alone; of others it takes two."""

    administrators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class World:
    """Everything known at one instant; the cycle's whole input besides the time.

    nodes by name; pods and jobs by uid; answers by pod uid; trials by job uid. leaving: namespaces that are being deleted.
    launcher_image: of the container that puts the launcher beside images that have none; "" where all are to have one. marks:
    None where nodes are not marked for all.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    priority_classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    fabrics: Mapping[str, Fabric] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    launcher_image: str = ""
    marks: Marks | None = None

    def namespace_leaving(self, namespace: str) -> bool:
        """No new attempt may start there."""
        return namespace in self.leaving

    def priority(self, name: str | None) -> int:
        """The value of a class; of the default class where none is named; 0 where there is neither."""
        if name is not None:
            found = self.priority_classes.get(name)
            return found.value if found else 0
        return next((c.value for c in self.priority_classes.values() if c.default), 0)


Manifest = Mapping[str, Any]
"""An object as the API server takes it."""
