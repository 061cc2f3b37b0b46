"""What a cycle wants done, as data.

The actions of one job are carried out in order, and the first that fails ends the job's turn: the next cycle looks at what is
there and goes on. So the order within a job is the order of its promises: a status that records a decision stands before the
steps that follow from it. Jobs do not wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.api.fabric import Observed
from trainyard.api.training_job import TrainingJobStatus
from trainyard.contract.requests import Stop
from trainyard.world.records import Manifest


@dataclass(frozen=True, slots=True)
class TryPod:
    """Have the API server check a job's pod without making it; look whether the volumes it names exist."""

    job_uid: str
    generation: int
    pod: Manifest


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object of deterministic name. One of that name that is owned by the same job is success."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CreateControl:
    """Make the job's control Secret; the key is derived where the operator's own key is known."""

    manifest: Manifest
    """The Secret without its data."""
    job_uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod by uid. grace_seconds: None keeps the pod's own; 0 removes the object at once (its node is lost)."""

    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """Delete the ConfigMap of an attempt that is over."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Take our finalizer off: the last words were read, or waited for long enough."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Put our finalizer on, before anything is made that would have to be unmade."""

    namespace: str
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Take our finalizer off: all is unmade."""

    namespace: str
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the status, if the job is still as it was read: resource_version is a precondition."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    status: TrainingJobStatus


@dataclass(frozen=True, slots=True)
class WriteObserved:
    """Replace what was observed on a Fabric, if that is still as it was read: resource_version is a precondition."""

    name: str
    uid: str
    resource_version: str
    observed: Observed


@dataclass(frozen=True, slots=True)
class AskStop:
    """Ask a launcher to save and leave. Sent again by later cycles until it says that it has noticed."""

    job_uid: str
    pod_uid: str
    ip: str
    stop: Stop


@dataclass(frozen=True, slots=True)
class HandPlan:
    """Give a launcher that was kept the plan of the current attempt. Sent again by later cycles until it runs by it."""

    job_uid: str
    pod_uid: str
    ip: str
    plan: bytes
    """plan.json, the same bytes for all members: a gang of thousands shares them."""


@dataclass(frozen=True, slots=True)
class Relabel:
    """Let a pod say which attempt it plays in, and as whom."""

    namespace: str
    name: str
    uid: str
    attempt: int
    rank: int
    plan_digest: str


@dataclass(frozen=True, slots=True)
class Announce:
    """An Event on the job. kind: Normal or Warning; reason: a `conditions.Reason`."""

    namespace: str
    name: str
    uid: str
    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class MarkNode:
    """Say by a node's condition that its network is degraded, or that it is so no more. time: of the newest verdict, or of the
    end."""

    name: str
    uid: str
    degraded: bool
    reason: str
    message: str
    time: float


Action = (
    TryPod
    | Create
    | CreateControl
    | DeletePod
    | DeletePlan
    | ReleasePod
    | HoldJob
    | ReleaseJob
    | WriteStatus
    | WriteObserved
    | MarkNode
    | AskStop
    | HandPlan
    | Relabel
    | Announce
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one job wants done now, in order. What a Fabric or a node wants is a turn under that one's uid.

    tells: nothing but how a job stands; whatever is to be done for another goes first.
    """

    job_uid: str
    actions: tuple[Action, ...]
    tells: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """A job that could not be judged: a bug of ours. It is left as it is, and the others are served."""

    job_uid: str
    key: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cycle's whole output. wake: the earliest time at which something is due even if nothing happens until then."""

    turns: tuple[Turn, ...]
    wake: float | None = None
    broken: tuple[Broken, ...] = ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, job by job."""
        return tuple(action for turn in self.turns for action in turn.actions)
