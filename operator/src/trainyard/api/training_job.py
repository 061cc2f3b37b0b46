"""TrainingJob: what a user asks for, and what Trainyard answers.

The specification holds only what acts. What is trained (nodes, processesPerNode, template, trainer, where checkpoints lie) is
fixed when the job is made; how it is run may change at any time and counts from the next decision on. The status is all the
memory that the operator has: whatever must survive its restart stands there, in `reservation`, `stop`, `lineage`, `resume` and
`nextMember`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator

from trainyard.api import names
from trainyard.api.conditions import Phase
from trainyard.api.model import (
    DURATION_PATTERN,
    ApiModel,
    Duration,
    Label,
    NodeName,
    ObjectMeta,
    Spelling,
    Time,
    duration_seconds,
    positive_duration,
)
from trainyard.api.parallelism import AUTO, Parallelism
from trainyard.api.sent import SentInStep
from trainyard.api.template import TEMPLATE_SCHEMA, is_our_image, requested_accelerators, trainer_container
from trainyard.api.trainer import TrainerConfig

MAX_NODES = 20_000
MAX_NETWORK_ENV = 256
_URL = Spelling(
    r"[a-z][a-z0-9+.-]*://[^/\s?#]+(/[^\s?#]*)?",
    "not a place in an object store; write one such as s3://bucket/folder, or name a volume of the template by checkpoint.volume",
    1024,
)
_MEMORY = Spelling(
    r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?",
    "not an amount of memory; write one such as 16Gi (of 2^30 bytes) or 16G (of 10^9)",
    32,
)
_VARIABLE = Spelling(
    r"[A-Za-z_][A-Za-z0-9_.\-]*",
    "not the name of a variable; use letters, digits and underscores, and no digit first",
    253,
)
Url = Annotated[str, AfterValidator(_URL.check), WithJsonSchema(_URL.schema())]
"""Of an object store: protocol, bucket, and a folder in it."""
Memory = Annotated[str, AfterValidator(_MEMORY.check), WithJsonSchema(_MEMORY.schema())]
"""A Kubernetes quantity of whole bytes."""
VariableName = Annotated[str, AfterValidator(_VARIABLE.check), WithJsonSchema(_VARIABLE.schema())]


def _checked_interval(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"{value} is too small; use 1 step or more, or a time such as 5m")
        return value
    if value == AUTO:
        return value
    if isinstance(value, str):
        return positive_duration(value)
    raise ValueError(f"{value!r} is neither steps nor a time; use a number such as 200, a time such as 5m, or auto")


Interval = Annotated[
    int | str,
    BeforeValidator(_checked_interval),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "x-kubernetes-validations": [
                {
                    "rule": f"type(self) == int ? self >= 1 : string(self) == '{AUTO}' || "
                    f"string(self).matches('{DURATION_PATTERN}') && duration(string(self)) > duration('0s')",
                    "message": "neither steps nor a time; use a number of steps, such as 200, a time, such as 5m, or auto",
                }
            ],
        }
    ),
]
"""How often: an int is a number of steps, a text is a time or AUTO."""


class Within(ApiModel):
    """The tier of the network that the gang should not leave."""

    level: Label
    """Name of a level of the fabric, such as leaf or spine: all nodes lie in one domain of it."""
    required: bool = False
    """Whether to wait for such a domain; otherwise the fewest domains that are free will do."""


class Relaxation(ApiModel):
    """A deadline on locality."""

    after: Duration
    """How long the job waits, this time, before the level counts."""
    level: Label
    """Name of a broader level that is enough from then on; cluster for anywhere."""

    @property
    def after_seconds(self) -> float:
        """`after` in seconds."""
        return duration_seconds(self.after)


class Segments(ApiModel):
    """Parts of the gang of which each stays together, such as the members of one pipeline stage."""

    nodes: Annotated[int, Field(ge=2, le=MAX_NODES)]
    """How many consecutive ranks make one; spec.nodes is a multiple of it."""
    level: Label
    """Name of a level of the fabric, such as leaf or nvlink: each segment lies in one domain of it."""
    required: bool = True
    """Whether to wait for such domains; otherwise segments are torn where there are none."""


class Placement(ApiModel):
    """Which nodes the gang may have."""

    within: Within | None = None
    """Locality. Left out: the narrowest level that fits now."""
    relax: Annotated[tuple[Relaxation, ...], Field(max_length=8)] = ()
    """Broader levels that are enough where the required one was waited for long enough; each broader and later than the one
    before."""
    segments: Segments | None = None
    """Ranks that must lie together. Left out: only the gang as a whole is kept together."""
    pods_per_node: Annotated[int, Field(ge=1, le=128)] = 1
    """The most members that share a node of the cluster, where each takes a part of it. Every member counts as one of
    `spec.nodes`."""
    spares: Annotated[int, Field(ge=0, le=64)] = 0
    """Nodes held ready while the job runs, in the domain that its nodes share: no other job of equal or lower priority gets
    them, and a failed node is replaced by one of them. Fewer are held where the domain has no more free."""
    mixed: bool = False
    """Whether its nodes may have different kinds of accelerators; otherwise all are of the kind on which the gang lies best."""
    avoid_nodes: Annotated[tuple[NodeName, ...], Field(max_length=1024)] = ()
    """Names of nodes that this job never gets."""


class CheckpointPolicy(ApiModel):
    """Where the job's state is saved, and how often."""

    volume: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of a volume of the template that all nodes share (ReadWriteMany). Left out, and url as well: nothing is saved, and a
    restarted job begins anew. Fixed for the life of the job."""
    url: Url | None = None
    """In place of a volume: where in an object store, such as s3://bucket/folder. The store must put an object on condition that
    there is none, as S3 does; the image needs fsspec and its package for the store, and the container that trains the
    credentials, by its env. Fixed for the life of the job."""
    memory: Memory | None = None
    """How much of each pod's memory (in /dev/shm, so it counts against the container's limit) may hold copies of the newest
    checkpoint, such as 16Gi: each pod's own part and that of a pod in another failure domain. A gang whose processes start again,
    or in which one node was replaced, loads from there. It takes three times a pod's part, and what does not fit is not kept.
    Left out: none. For the built-in trainer, and scripts that save by `session`."""
    every: Interval = "5m"
    """Interval between saves: a number of steps, such as 200, a time, such as 5m, or auto: what loses least time, by what saves
    cost and how often the job has failed, between 10 s and 30 min. auto is for the built-in trainer and scripts that ask
    `session.should_save`."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many checkpoints stay on the volume; the one to resume from always does."""
    grace: Duration = "2m"
    """The longest that the save may take when the job is asked to leave its nodes; afterwards it is killed."""

    @property
    def saves(self) -> bool:
        """Whether anything is saved."""
        return self.volume is not None or self.url is not None

    @property
    def every_steps(self) -> int | None:
        """The interval in steps, None where it is a time."""
        return self.every if isinstance(self.every, int) else None

    @property
    def every_seconds(self) -> float | None:
        """The interval in seconds, None where it is a number of steps or AUTO."""
        return duration_seconds(self.every) if isinstance(self.every, str) and self.every != AUTO else None

    @property
    def grace_seconds(self) -> float:
        """`grace` in seconds."""
        return duration_seconds(self.grace)


class RestartPolicy(ApiModel):
    """How many failures are forgiven. Yields (preemption, drain, suspension) are free and counted apart."""

    failures: Annotated[int, Field(ge=0, le=1000)] = 10
    """How many failures within `per` the job survives; one more ends it."""
    per: Duration = "24h"
    """The time over which failures are counted."""

    @property
    def per_seconds(self) -> float:
        """`per` in seconds."""
        return duration_seconds(self.per)


class Variable(ApiModel):
    """An environment variable."""

    name: VariableName
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value."""


class Network(ApiModel):
    """Settings of the network libraries (NCCL, gloo, libfabric and others)."""

    fabric: Annotated[str, Field(min_length=1, max_length=253)] = "auto"
    """Name of a Fabric, or of a built-in profile such as aws-efa, from which settings follow. auto: what the nodes are on."""
    preflight: bool = True
    """Whether a gang of several nodes proves before its first step that its nodes are alike and its network is as fast as
    predicted. Nodes that fail are left out for an hour, and the gang is planned again."""
    env: Annotated[
        tuple[Variable, ...],
        Field(
            max_length=MAX_NETWORK_ENV,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Variables that win over the ones that Trainyard derives from the fabric."""
    allow_unsafe: bool = False
    """Whether NCCL_COMM_ID, NCCL_GRAPH_FILE and NCCL_HOSTID may be set, here or in the template: each makes NCCL take something
    for granted that is another on other nodes."""


class TrainingJobSpec(ApiModel):
    """What to train, on how many nodes, and how to treat it. Only nodes and template must be given."""

    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    """How many nodes train, all or none of them. Fixed for the life of the job."""
    min_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] | None = None
    """The fewest nodes with which an attempt may start rather than wait for all of them. Left out: always all."""
    processes_per_node: Annotated[int, Field(ge=1, le=128)] | None = None
    """How many processes train on each node. Left out: as many as the trainer container requests accelerators, else 1. Fixed."""
    template: Annotated[dict[str, Any], WithJsonSchema(TEMPLATE_SCHEMA)]
    """The pod of every node: an ordinary pod template. The container named trainer, or the only one, trains. Fixed."""
    trainer: TrainerConfig | None = None
    """Configuration of the built-in trainer. Left out for one's own script, which the container's command names. Fixed."""
    parallelism: Parallelism | None = None
    """How the processes share the work. Left out: all of them share one copy of the model (FSDP)."""
    suspend: bool = False
    """Whether the job should save, leave its nodes and wait until this is false again."""
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """PriorityClass that orders the queue and says who may preempt whom. Left out: the cluster's default."""
    max_runtime: Duration | None = None
    """The longest that the job may run, all attempts together, such as 48h; waiting does not count. Left out: no limit."""
    placement: Placement = Field(default_factory=Placement)
    """Which nodes the gang may have."""
    checkpoint: CheckpointPolicy = Field(default_factory=CheckpointPolicy)
    """Where the job's state is saved, and how often."""
    restart: RestartPolicy = Field(default_factory=RestartPolicy)
    """How many failures are forgiven."""
    network: Network = Field(default_factory=Network)
    """Settings of the network libraries."""

    @property
    def training(self) -> TrainerConfig | None:
        """What the built-in trainer is to do, by default where nothing is said; None for a script of one's own."""
        if self.trainer is not None:
            return self.trainer
        container = trainer_container(self.template) or {}
        built_in = not container.get("command") and is_our_image(str(container.get("image", "")))
        return TrainerConfig() if built_in else None

    @property
    def fewest_nodes(self) -> int:
        """The fewest nodes with which an attempt may start."""
        return self.nodes if self.min_nodes is None else min(self.nodes, self.min_nodes)

    @property
    def max_runtime_seconds(self) -> float | None:
        """`maxRuntime` in seconds, None where there is no limit."""
        return None if self.max_runtime is None else duration_seconds(self.max_runtime)

    @property
    def processes(self) -> int:
        """Processes on each node: as asked for, else one per accelerator of the trainer container, else 1."""
        if self.processes_per_node is not None:
            return self.processes_per_node
        container = trainer_container(self.template)
        return max(1, requested_accelerators(container) if container is not None else 0)


class Condition(ApiModel):
    """One aspect of the job, in the usual Kubernetes shape."""

    type: Annotated[str, Field(max_length=316)]
    """Which aspect."""
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})]
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why, in one CamelCase word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, in a sentence."""
    last_transition_time: Time
    """When the status last changed."""
    observed_generation: int = 0
    """The generation of the specification that this speaks of."""


class PlanQuality(ApiModel):
    """How good the choice of nodes is, by the predicted cost of the gang's communication.

    A cost is the seconds that a gigabyte takes once around the ring of ranks, with those for which it keeps shared uplinks busy.
    """

    summary: str
    """optimal, or by how many percent at most another choice could be cheaper, of the nodes that were free."""
    cost: float
    """The cost of this plan."""
    lower_bound: float
    """No choice of the nodes that were free costs less."""
    worked: int = 0
    """How many states the search looked at."""
    spent: bool = False
    """Whether the search was cut short, so that a better plan or bound may exist."""


class PlannedPreflight(ApiModel):
    """What the gang of the current attempt is to prove before its first step."""

    message_bytes: int
    """Size of the all-reduce that is timed."""
    expected_seconds: float | None = None
    """How long it takes by the model; left out: nothing is known of the network, and nodes are compared with each other only."""
    edge_bytes_per_second: tuple[float, ...] = ()
    """What one node should send to another that shares a domain with it, broadest first; 0 where that is not known."""
    alone: bool = False
    """Whether a gang that is slow as a whole fails: what it should reach was declared, and no other job uses its links."""
    bottleneck: str = ""
    """What holds it up, by the specification alone."""


class PlanSummary(ApiModel):
    """The plan of the current attempt in numbers; the plan itself is in the ConfigMap of the attempt."""

    nodes: int
    """How many nodes it holds."""
    span: str = ""
    """The narrowest level one domain of which holds the whole gang; cluster where none does."""
    spans: dict[str, int] = Field(default_factory=dict)
    """For each level, over how many of its domains the gang extends."""
    ring_edges: dict[str, int] = Field(default_factory=dict)
    """For each level, how many edges of the closed ring of ranks leave a domain of it."""
    mesh: dict[str, int] = Field(default_factory=dict)
    """Sizes of the axes of the process mesh by name; an axis that is not named has one member."""
    digest: str = ""
    """Short name of the plan's content."""
    spares: tuple[str, ...] = ()
    """Names of the nodes held ready to replace one of its own."""
    quality: PlanQuality | None = None
    """How far it is from the best possible."""
    predicted_bus_bandwidth: float = 0.0
    """Bus bandwidth of an all-reduce of 1 GiB over the whole gang as predicted, in bytes a second."""
    communication_share: float | None = None
    """Share of a step in which the processes wait for communication, as predicted; left out where the model is not known."""
    bottleneck: str = ""
    """What holds up the ring over all nodes: the uplinks of a level, the interfaces of a node, or the links inside the node."""
    preflight: PlannedPreflight | None = None
    """What the gang is to prove before its first step; left out: nothing."""


class Pending(ApiModel):
    """Why the job waits."""

    reason: str
    """In one word."""
    message: str = ""
    """In a sentence with numbers."""
    unblock: tuple[str, ...] = ()
    """What would let it start, each a sentence."""
    since: Time | None = None
    """Since when it waits for this reason."""


class Progress(ApiModel):
    """How far training is, as the launchers last said."""

    step: int = 0
    """The last step that all members finished."""
    loss: float | None = None
    """The last loss reported; left out while it is not a number."""
    tokens_per_second: float | None = None
    """Over all members."""
    step_seconds: float | None = None
    """Duration of a step."""
    grad_norm: float | None = None
    """Norm of the whole gradient before clipping."""
    mfu: float | None = None
    """Model FLOP utilisation, 0 to 1; left out where the accelerator's peak is not known."""
    memory_bytes: int | None = None
    """Most memory that a worker of rank 0's pod has taken: of its GPU, or of the process where it has none."""
    sent: SentInStep | None = None
    """What a step sends; left out until it was counted."""
    eta: Time | None = None
    """When the last step will be done at this pace; left out where it is not known which is the last."""
    durable_seconds: float | None = None
    """How long a save from now would take until it is durable, as estimated."""
    durable_basis: str = ""
    """What that estimate rests on."""
    time: Time | None = None
    """When this was reported."""

    @field_validator("loss", "tokens_per_second", "step_seconds", "grad_norm", "mfu", "durable_seconds")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        """JSON has no NaN and no infinity."""
        return value if value is not None and math.isfinite(value) else None


class SavedCheckpoint(ApiModel):
    """The newest checkpoint known to be durable."""

    step: int
    """The step after which it was taken."""
    attempt: int
    """The attempt that wrote it."""
    path: str = ""
    """Where it is, as the pods see it."""
    bytes: int = 0
    """Its size."""
    seconds: float = 0.0
    """From the decision to save until it was durable."""
    time: Time | None = None
    """When it became durable."""


class Accounted(ApiModel):
    """What of an attempt's own figures is contained in the goodput."""

    attempt: int
    """The attempt."""
    step: int = 0
    """The step that it had reached."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """By cause, of what its trainer said."""


class Goodput(ApiModel):
    """Where the job's time went, in seconds by cause. They add up to `until - since`, over all attempts."""

    since: Time
    """When the job was made."""
    until: Time
    """Until when the time is accounted; since then it is what the phase says."""
    percent: int = 0
    """Share of `productive`, in percent."""
    productive: float = 0.0
    """Steps that no attempt had done before."""
    recomputed: float = 0.0
    """Steps that an earlier attempt had done and not saved."""
    starting: float = 0.0
    """From the start of an attempt to its first step: images, rendezvous, preflight, loading, compiling; and the first step."""
    checkpointing: float = 0.0
    """Training stood still for a save, or saved because it was asked to leave."""
    evaluating: float = 0.0
    """Evaluation."""
    data: float = 0.0
    """Waited for samples."""
    waiting: float = 0.0
    """In the queue, without nodes."""
    suspended: float = 0.0
    """spec.suspend."""
    leaving: float = 0.0
    """Saved, and its pods still there."""
    lost: float = 0.0
    """From a fault until its attempt was closed: the nodes were held, and no step was done."""
    furthest: int = 0
    """The furthest step that any attempt did."""
    accounted: Accounted | None = None
    """What of the current attempt is contained."""


class SlowRank(ApiModel):
    """A rank that the others wait for in each step, since it needs longer for what it does itself."""

    rank: int
    """Which."""
    node: str
    """Where."""
    times: float
    """Its own time by the median of the others' that do the same work, when it was found."""
    own_seconds: float
    """Of a step, without waiting for others: the median of 20 steps."""
    others_seconds: float
    """The median of that over the others."""
    time: Time
    """When it was found."""


class Restarts(ApiModel):
    """Why attempts ended before the job did."""

    failures: int = 0
    """Failures of the job itself."""
    preemptions: int = 0
    """Yields to another job, to a drain or to suspension; they are free."""
    nodes_lost: int = 0
    """Attempts that ended since a node was lost."""
    unfit: int = 0
    """Attempts that ended before the first step since nodes were found unfit; they are free, and these nodes are left out."""
    fruitless: int = 0
    """How many attempts in a row ended without a new step; each makes the next one wait longer."""
    failure_times: tuple[Time, ...] = ()
    """When the failures that still count towards the budget happened, oldest first."""


class PreflightStatus(ApiModel):
    """How the preflight of the current attempt ended, the same on all members."""

    finding: str
    """passed, warned, failed, or skipped where there was nothing to measure."""
    message: str = ""
    """What was found, in a sentence."""
    seconds: float = 0.0
    """How long it took."""
    bus_bandwidth: float | None = None
    """Bus bandwidth of the all-reduce as measured, in bytes a second."""
    expected_bus_bandwidth: float | None = None
    """That of the model."""
    edge_bytes_per_second: tuple[float, ...] = ()
    """What pairs of nodes that share a domain reached, broadest first, as a median; 0 where none was measured."""
    time: Time | None = None
    """When it was reported."""


class NetworkVariable(ApiModel):
    """An environment variable that a network library reads, and why it is there."""

    name: str
    """Its name."""
    value: str
    """Its value."""
    source: str
    """Who said so: profile (the vendor's guide), derived, fabric, job (spec.network.env), template, or pod (found by its
    launcher)."""
    reason: str = ""
    """Why, in a sentence."""
    nodes: int | None = None
    """How many nodes of the gang have it so; left out: all of them."""


class NetworkStatus(ApiModel):
    """What the pods of the current attempt were told of their network; `kubectl trainyard env` tells it rank by rank."""

    fabric: str = ""
    """The Fabric and the built-in profile from which the settings follow; empty: nothing is known of the nodes' network."""
    settings: int = 0
    """How many environment variables were written for the network libraries."""
    variables: Annotated[tuple[NetworkVariable, ...], Field(max_length=96)] = ()
    """Those that network libraries read, the job's own too; one that differs between nodes with its four most frequent values."""
    warnings: Annotated[tuple[str, ...], Field(max_length=32)] = ()
    """What the user had better change, each a sentence."""
    compared: bool = False
    """Whether what all members found of their network at their start has been compared."""
    preflight: PreflightStatus | None = None
    """What was proven before the first step; left out until it was, or where nothing was to be."""


class Victim(ApiModel):
    """A job that yields its nodes to another."""

    namespace: str
    """Namespace of the job."""
    name: str
    """Its name."""
    uid: str
    """Its uid: a job made later under the same name is another."""
    attempt: int
    """The attempt that is asked to leave."""


class Reservation(ApiModel):
    """Nodes that are kept for an attempt until its pods exist. Written before anybody is asked to leave."""

    attempt: int
    """The attempt that they are kept for."""
    nodes: tuple[str, ...]
    """Names of the nodes in rank order."""
    victims: tuple[Victim, ...] = ()
    """The jobs that must leave first."""
    deadline: Time
    """When the reservation lapses and the job is planned again."""
    reason: str = ""
    """Why these nodes, in one word."""
    message: str = ""
    """How they were found, where that is worth saying."""
    spares: tuple[str, ...] = ()
    """Names of nodes to be held ready while the attempt runs."""
    quality: PlanQuality | None = None
    """How good the choice is."""


class Former(ApiModel):
    """Where the last attempt was, for the next to take its place: who survived keeps node and rank."""

    attempt: int
    """The attempt that ended."""
    nodes: tuple[str, ...]
    """Names of its nodes in rank order; empty where nobody could say any more."""
    lost: tuple[str, ...] = ()
    """Those of them that it was ended for."""
    until: Time
    """How long its nodes are kept from jobs of equal and lower priority."""


class MemberRun(ApiModel):
    """Members whose numbers follow each other in rank order."""

    first: int
    """Number of the first."""
    count: int = 1
    """How many there are."""


class Roster(ApiModel):
    """The members of an attempt that kept pods of the one before it."""

    members: tuple[MemberRun, ...]
    """All of them, in rank order."""
    new_from: int
    """From this number on they were made for this attempt; the others were kept."""
    plans: tuple[int, ...] = ()
    """Earlier attempts whose plans the kept members mount."""


class Stop(ApiModel):
    """A recorded request to save and leave. An exit code of 75 counts as a yield only where one stands for its attempt."""

    attempt: int
    """The attempt that is asked."""
    reason: str
    """Why, in one word."""
    requested_at: Time
    """When it was recorded, which is before any launcher hears of it."""
    deadline: Time
    """When the pods are deleted if they have not left."""


class LineageMark(ApiModel):
    """How much of an earlier attempt is history."""

    attempt: int
    """The attempt."""
    step: int
    """Its last step that counts; -1: whatever its newest checkpoint that verifies holds."""


class ResumePoint(ApiModel):
    """The checkpoint that the next attempt starts from."""

    attempt: int
    """The attempt that wrote it."""
    step: int
    """The step after which it was taken."""
    path: str = ""
    """Where it is, as the pods see it."""


class Failure(ApiModel):
    """The first thing that went wrong in an attempt."""

    attempt: int
    """The attempt."""
    reason: str
    """In one word."""
    message: str = ""
    """In a sentence."""
    pod: str = ""
    """Name of the pod where it happened."""
    node: str = ""
    """Name of its node."""
    rank: int | None = None
    """Rank of the process; -1 for the launcher itself."""
    exit_code: int | None = None
    """Exit code of the container or process."""
    time: Time | None = None
    """When it happened."""
    times: int = 1
    """How many attempts in a row failed first on that node."""


class Avoided(ApiModel):
    """A node that this job does not get for a while, whoever else may have it."""

    node: str
    """Its name."""
    reason: str
    """Why, in one word."""
    message: str = ""
    """Why, in a sentence."""
    attempt: int
    """The attempt that found it."""
    time: Time
    """When."""
    until: Time
    """From when on the job may have it again."""


class Proven(ApiModel):
    """Nodes that passed the preflight of one attempt. They are not measured again at a restart within the hour."""

    attempt: int
    """The attempt."""
    time: Time
    """When they passed."""
    nodes: tuple[str, ...]
    """Their names."""


class Ending(ApiModel):
    """The verdict on an attempt that has to end before its time. Recorded once: a launcher that answers again changes nothing."""

    attempt: int
    """The attempt."""
    outcome: str
    """What it counts as: Failed, Refused (never tried again), Lost or Displaced (free)."""
    reason: str
    """Why, in one word."""
    message: str = ""
    """Why, in a sentence."""
    time: Time
    """When the verdict was given."""


class TrainingJobStatus(ApiModel):
    """What became of the job. Written by the operator alone; also its memory, so that it can be restarted at any time."""

    phase: Phase | None = None
    """Where the job stands, in one word."""
    observed_generation: int = 0
    """The generation of the specification that this status speaks of."""
    attempt: int = 0
    """Number of the current or last attempt; 0 before the first."""
    ready_nodes: int = 0
    """How many members train."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """The job's aspects, in the usual Kubernetes shape."""
    plan: PlanSummary | None = None
    """The plan of the current attempt in numbers."""
    network: NetworkStatus | None = None
    """What the pods of the current attempt were told of their network."""
    pending: Pending | None = None
    """Why the job waits, while it does."""
    progress: Progress | None = None
    """How far training is."""
    checkpoint: SavedCheckpoint | None = None
    """The newest checkpoint known to be durable."""
    goodput: Goodput | None = None
    """Where the time went, by cause."""
    straggler: SlowRank | None = None
    """Who is slow in the current attempt, while somebody is."""
    restarts: Restarts = Field(default_factory=Restarts)
    """Why attempts ended before the job did."""
    last_failure: Failure | None = None
    """The first thing that went wrong in the attempt that failed last."""
    reservation: Reservation | None = None
    """Nodes that are kept for the next attempt."""
    former: Former | None = None
    """Where the last attempt was, while the job waits for the next one."""
    stop: Stop | None = None
    """A request to save and leave that stands."""
    ending: Ending | None = None
    """The verdict on the current attempt, while its members are taken down."""
    avoid: Annotated[tuple[Avoided, ...], Field(max_length=64)] = ()
    """Nodes that the job does not get for a while, since an attempt found them unfit."""
    proven: Annotated[tuple[Proven, ...], Field(max_length=16)] = ()
    """Nodes that passed the preflight lately."""
    lineage: tuple[LineageMark, ...] = ()
    """For each earlier attempt that counts, its last step that is history."""
    resume: ResumePoint | None = None
    """The checkpoint that the next attempt starts from; left out: the newest of the lineage."""
    roster: Roster | None = None
    """Who plays in the current attempt, where it kept pods of the one before; left out: the last numbers in rank order."""
    next_member: int = 0
    """Number of the next member; a number is never used twice."""
    queued_at: Time | None = None
    """Since when the job is in the queue: its age against others; kept over yields."""
    waiting_since: Time | None = None
    """Since when it waits, this time, for nodes: what spec.placement.relax counts from."""
    started_at: Time | None = None
    """When the current attempt was started."""
    leave_by: Time | None = None
    """When the current attempt saves and leaves, since its nodes are needed by a job that came first; left out: never."""
    running_at: Time | None = None
    """When all members of the current attempt trained for the first time."""
    ended_at: Time | None = None
    """When the job ended."""
    ran_seconds: float = 0.0
    """How long earlier attempts ran, all together."""
    not_before: Time | None = None
    """No attempt starts earlier: restarts without a new step back off."""


class TrainingJob(ApiModel):
    """A multi-node training job. Trainyard chooses nodes, ranks and network settings as one plan, and saves before it gives
    nodes away."""

    api_version: str = names.API_VERSION
    kind: str = names.KIND_JOB
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: TrainingJobSpec
    """What to train, on how many nodes, and how to treat it."""
    status: TrainingJobStatus = Field(default_factory=TrainingJobStatus)
    """What became of it."""
