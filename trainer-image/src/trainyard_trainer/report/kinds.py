"""What a worker can say: one frozen record for each kind of report."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.contract.words import StrEnum


class Phase(StrEnum):
    """What a worker is doing. Every second of a worker's life belongs to exactly one phase."""

    IMPORT = "import"
    INIT = "init"  # process group, mesh, model
    LOAD = "load"
    WARM_UP = "warm-up"  # the first step of this process, which compiles, allocates and connects
    TRAIN = "train"
    DATA = "data"  # waits for samples, longer than a moment
    SAVE = "save"
    EVAL = "eval"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What all reports carry.

    at: when it was said, in seconds since the epoch, by the worker's clock.
    rank: the global rank of the worker.
    """

    at: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Report):
    """The worker enters a phase. `step` is the number of steps that are done."""

    phase: Phase
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Report):
    """A step of training is done on all ranks.

    step: steps done, this one included: the first step reports 1.
    loss: mean over the tokens of the global batch; None if it is not a finite number.
    tokens: tokens that counted for the loss, over all ranks.
    step_seconds: wall time of the step on this rank.
    grad_norm: norm of the whole gradient before clipping; None if it is not finite.
    digest: hex digest of the sample ids of the global batch, the same at any world size.
    waited_seconds: of step_seconds, how long this rank waited for others in collectives; None: not measured.
    data_seconds: of step_seconds, how long it waited for its samples.
    mfu: model FLOP utilisation, 0 to 1; None where the accelerator's peak is not known.
    """

    step: int
    loss: float | None
    tokens: int
    step_seconds: float
    grad_norm: float | None
    digest: str
    waited_seconds: float | None = None
    data_seconds: float = 0.0
    mfu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Report):
    """The process is there, said by a thread of its own every few seconds, whatever the training does meanwhile.

    entered: collectives that it has entered so far, over all process groups of the mesh; ranks of one pipeline stage enter the
    same ones in the same order. waits_in: the collective that it waits in, by the flight recorder; "" where it waits in none
    or went on since the last beat. memory_bytes: most memory taken so far, of the GPU or, on a CPU, of the process.
    cpu_seconds: of the thread that says this, so far.
    """

    entered: int
    waits_in: str
    memory_bytes: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveExpected(Report):
    """How long a save would take, where none was made yet by this attempt. basis: what that rests on, in a few words."""

    seconds: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentInStep(Report):
    """What a step of this rank sends along an axis of the mesh: logical bytes, counted in one step; all steps send alike.

    data: which of the five classes: gradients, activations, parameter shards, training state, control. count: collectives.
    predicted_bytes: by the planner's formulas. level: the broadest of the network's that it crosses. wire_bytes: that the rank's
    interface sends, by the backend's factor; predicted_wire_bytes: the same of what is predicted. seconds: on their way, those of
    several at once counted for each; None: not measured.
    """

    axis: str
    data: str
    collective: str
    bytes: int
    count: int
    predicted_bytes: float
    level: str = ""
    wire_bytes: float = 0.0
    predicted_wire_bytes: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped(Report):
    """How much of a step's communication is hidden behind its computing, in the step that was counted.

    communication_seconds: in which anything was on its way; exposed_seconds: in which the training waited for it.
    """

    communication_seconds: float
    exposed_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStarted(Report):
    """A save of the state after `step` began."""

    step: int
    attempt: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDurable(Report):
    """The commit record of a checkpoint is on the volume and synced: it survives whatever happens next.

    path: the checkpoint's directory.
    bytes: of all of its files, over all ranks.
    seconds: from the start of the save until now.
    """

    step: int
    attempt: int
    path: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAcknowledged(Report):
    """All ranks agreed to stop after `step`, the last step that is done."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrom(Report):
    """Training continues from a checkpoint that verified: written by `attempt` after `step`, in directory `path`."""

    step: int
    attempt: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Report):
    """The worker ends because of an error.

    error: the exception's class name.
    configuration: the user's configuration or data is at fault, and trying again cannot help (exit code 78).
    preflight: the gang failed its preflight (exit code 77); PreflightDone says the figures.
    """

    error: str
    message: str
    configuration: bool = False
    preflight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Report):
    """Training goes on, but somebody should know: a checkpoint that did not verify, a history with a gap.

    reason: one CamelCase word to count by.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightDone(Report):
    """The preflight is over, with the same result on all ranks; fields as in `contract.preflight.PreflightResult`.

    nodes: names with commas between, as many as have room. edges: numbers with commas between.
    """

    finding: str
    message: str
    seconds: float
    bus_bandwidth: float | None
    expected_bus_bandwidth: float | None
    nodes: str
    edges: str
