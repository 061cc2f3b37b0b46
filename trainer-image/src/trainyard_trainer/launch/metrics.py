"""What is known as Prometheus text (format 0.0.4), by hand: the launcher has nothing but the standard library. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.contract.network import Trouble
from trainyard.contract.plan import Plan
from trainyard.contract.preflight import Finding, PreflightResult

from trainyard_trainer.launch.ending import Notice
from trainyard_trainer.launch.network import counters
from trainyard_trainer.launch.progress import Progress, durable_in, last_saved
from trainyard_trainer.launch.usage import Usage
from trainyard_trainer.report import Phase

PREFIX = "trainyard_trainer_"


@dataclass(frozen=True, slots=True)
class Measured:
    """A worker for the metrics. unreadable: lines on its report pipe that were no report. usage: of its processes."""

    rank: int
    alive: bool
    progress: Progress
    unreadable: int = 0
    usage: Usage | None = None

    @property
    def speaks(self) -> bool:
        """Whether it has ever reported: of one that does not, nothing is known of steps."""
        return self.progress.heard is not None or self.progress.beat is not None


Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]

Metric = tuple[str, str, str, Callable[[Measured], float | None]]

PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    ("worker_up", "gauge", "Whether the worker process runs.", lambda w: float(w.alive)),
    (
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory of the worker and its children, pages that they share counted for each.",
        lambda w: w.usage and w.usage.resident_bytes,
    ),
    (
        "process_cpu_seconds_total",
        "counter",
        "CPU time of the worker and its children.",
        lambda w: w.usage and w.usage.cpu_seconds,
    ),
    ("unreadable_reports_total", "counter", "Lines on the report pipe that were no report.", lambda w: w.unreadable),
)
"""Name, kind, help and value of what is known of every worker."""
WORKER_METRICS: Final[tuple[Metric, ...]] = (
    ("step", "gauge", "Steps done, those before a resume included.", lambda w: w.progress.step),
    ("loss", "gauge", "Mean loss over the tokens of the last step's global batch.", lambda w: w.progress.loss),
    ("gradient_norm", "gauge", "Norm of the whole gradient before clipping.", lambda w: w.progress.grad_norm),
    ("tokens_total", "counter", "Tokens of all ranks that this attempt trained on.", lambda w: w.progress.tokens),
    ("tokens_per_second", "gauge", "Tokens of all ranks over the last step.", lambda w: w.progress.tokens_per_second),
    ("mfu", "gauge", "Model FLOP utilisation of the last step, 0 to 1.", lambda w: w.progress.mfu),
    ("memory_bytes", "gauge", "Most memory taken: of the GPU, else of the process.", lambda w: w.progress.memory_bytes),
    (
        "step_own_seconds",
        "gauge",
        "Of a step, what it did not wait for others: median of 20.",
        lambda w: w.progress.own_seconds,
    ),
    (
        "waited_seconds_total",
        "counter",
        "Time in steps waiting for others in collectives.",
        lambda w: w.progress.waited_seconds,
    ),
    ("data_seconds_total", "counter", "Time in steps waiting for samples.", lambda w: w.progress.data_seconds),
    ("collectives_entered", "gauge", "Collectives entered, by the last heartbeat.", lambda w: w.progress.entered),
    (
        "heartbeat_cpu_seconds_total",
        "counter",
        "CPU time of the thread that beats.",
        lambda w: w.progress.heartbeat_cpu_seconds,
    ),
    ("checkpoints_total", "counter", "Checkpoints made durable by this attempt.", lambda w: w.progress.saves),
    ("checkpoint_step", "gauge", "Step of the newest durable checkpoint.", lambda w: _commit(w, "step")),
    ("checkpoint_bytes", "gauge", "Size of the newest durable checkpoint.", lambda w: _commit(w, "bytes")),
    (
        "checkpoint_seconds",
        "gauge",
        "From the decision to save until durable, newest.",
        lambda w: _commit(w, "seconds"),
    ),
    (
        "checkpoint_timestamp_seconds",
        "gauge",
        "When the newest became durable, Unix time.",
        lambda w: _commit(w, "time"),
    ),
)
"""The same of what workers report."""


SENT: Final = (
    ("sent_bytes", "Logical bytes of one step, counted at the process groups."),
    ("sent_predicted_bytes", "The same by the planner's formulas."),
    ("sent_wire_bytes", "Bytes of one step that the interface sends, by the backend's factors."),
    ("sent_predicted_wire_bytes", "The same of what the planner predicts."),
    ("sent_seconds", "Time on their way in one step; of several at once, each counts."),
)
"""Name and help, in the order of progress.SentBytes."""
OVERLAP: Final = (
    ("communication_seconds", "Time of one step in which anything was on its way."),
    ("communication_exposed_seconds", "Time of the same step in which training waited for that."),
    ("communication_step_seconds", "How long that step took."),
)
"""Name and help, in the order of progress.Overlap."""


def text(
    plan: Plan,
    node_rank: int,
    workers: Sequence[Measured],
    notice: Notice | None,
    now: float,
    cpu_seconds: float | None = None,
) -> str:
    """All metrics of a pod. now: seconds since the epoch. cpu_seconds: of the launcher itself. A value that is not known yet is
    left out, not 0."""
    who = {"namespace": plan.namespace, "job": plan.job, "attempt": str(plan.attempt), "node_rank": str(node_rank)}
    everybody, workers = workers, [w for w in workers if w.speaks]
    known = [w.progress for w in workers]
    waited, durable = notice_to_durable_seconds(notice, known), durable_in(known, now)
    in_phase = [(_labels(w, phase=p.value), float(w.progress.phase is p)) for w in workers for p in Phase]
    spent = [(_labels(w, phase=p.value), _spent(w, p, now)) for w in workers for p in Phase]
    warned = [(_labels(w, reason=r), float(n)) for w in workers for r, n in sorted(w.progress.warned.items())]
    families = [
        _family("info", "gauge", "Whose launcher this is; always 1.", [(who, 1.0)]),
        _family("restarts", "gauge", "Attempts of the job before this one.", [({}, plan.attempt - 1)]),
        _family("notice_timestamp_seconds", "gauge", "When a stop was asked.", [({}, notice.time if notice else None)]),
        _family("notice_to_durable_seconds", "gauge", "From the notice to a durable checkpoint.", [({}, waited)]),
        _family(
            "durable_in_seconds",
            "gauge",
            "A save from now until durable, as estimated.",
            [({}, durable.seconds if durable else None)],
        ),
        _family("launcher_cpu_seconds_total", "counter", "CPU time of the launcher.", [({}, cpu_seconds)]),
        _family("phase", "gauge", "1 for the phase that the worker is in.", in_phase),
        _family("phase_seconds_total", "counter", "Time that the worker has spent in each phase.", spent),
        _family("warnings_total", "counter", "Warnings reported by the worker.", warned),
        _step_seconds(workers),
        *(_family(name, "gauge", about, _sent(workers, n)) for n, (name, about) in enumerate(SENT)),
        *(_family(name, "gauge", about, _overlap(workers, n)) for n, (name, about) in enumerate(OVERLAP)),
    ]
    for metrics, those in ((PROCESS_METRICS, everybody), (WORKER_METRICS, workers)):
        families += [_family(n, kind, about, [(_labels(w), of(w)) for w in those]) for n, kind, about, of in metrics]
    return "".join(families)


def network_text(
    counted: Iterable[counters.Counted], trouble: Sequence[Trouble], preflight: PreflightResult | None
) -> str:
    """What is known of the network: counters of adapters, complaints of libraries, how the preflight ended."""
    by_kind: dict[str, list[Sample]] = {}
    for one in counted:
        labels = {"device": one.device, "port": one.port, "rail": "" if one.rail is None else str(one.rail)}
        by_kind.setdefault(one.kind, []).append((labels, one.value))
    families = [
        _family(f"rdma_{kind}_total", "counter", counters.meaning(kind), samples) for kind, samples in by_kind.items()
    ]
    complaints = [
        ({"reason": t.sign, "device": t.device or "", "peer": t.peer or "", "rank": str(t.rank)}, float(t.count))
        for t in trouble
    ]
    families.append(
        _family("trouble_total", "counter", "Lines in which NCCL, torch or gloo named a trouble.", complaints)
    )
    if preflight is not None:
        ended: list[Sample] = [({"finding": f.value}, float(preflight.finding == f)) for f in Finding]
        measured, expected = preflight.bus_bandwidth, preflight.expected_bus_bandwidth
        families += [
            _family("preflight", "gauge", "1 for how the preflight ended.", ended),
            _family("preflight_seconds", "gauge", "How long the preflight took.", [({}, preflight.seconds)]),
            _family("preflight_bus_bandwidth_bytes", "gauge", "All-reduce measured, bytes a second.", [({}, measured)]),
            _family("preflight_expected_bus_bandwidth_bytes", "gauge", "All-reduce by the model.", [({}, expected)]),
        ]
    return "".join(families)


def notice_to_durable_seconds(notice: Notice | None, workers: Iterable[Progress]) -> float | None:
    """From the notice to the newest durable save after it: what a preemption costs its victim."""
    saved = last_saved(workers)
    if notice is None or saved is None or saved < notice.clock:
        return None
    return saved - notice.clock


def _sent(workers: Sequence[Measured], which: int) -> list[Sample]:
    """Of what is sent in a step, the figure of this number in SENT."""
    return [
        (_labels(w, **along._asdict()), figure)
        for w in workers
        for along, figures in sorted(w.progress.sent.items())
        if (figure := figures[which]) is not None
    ]


def _overlap(workers: Sequence[Measured], which: int) -> list[Sample]:
    return [(_labels(w), w.progress.overlap[which]) for w in workers if w.progress.overlap is not None]


def _labels(worker: Measured, **more: str) -> Labels:
    return {"rank": str(worker.rank), **more}


def _commit(worker: Measured, figure: str) -> float | None:
    return getattr(worker.progress.commit, figure, None)


def _spent(worker: Measured, phase: Phase, now: float) -> float:
    progress = worker.progress
    over = progress.phase_seconds.get(phase, 0.0)
    if progress.phase is phase and progress.phase_since is not None and worker.alive:
        return over + max(now - progress.phase_since, 0.0)
    return over


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    lines = [_sample(PREFIX + name, labels, value) for labels, value in samples if value is not None]
    return _head(name, kind, about) + "".join(lines) if lines else ""


def _step_seconds(workers: Iterable[Measured]) -> str:
    """A summary without quantiles: rate(sum) / rate(count) is the mean over any window."""
    name = "step_seconds"
    workers = list(workers)
    sums = [_sample(f"{PREFIX}{name}_sum", _labels(w), w.progress.step_seconds_sum) for w in workers]
    counts = [_sample(f"{PREFIX}{name}_count", _labels(w), w.progress.steps_reported) for w in workers]
    return _head(name, "summary", "Wall time of the steps.") + "".join([*sums, *counts]) if sums else ""


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {PREFIX}{name} {about}\n# TYPE {PREFIX}{name} {kind}\n"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {_number(value)}\n" if inner else f"{name} {_number(value)}\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
