"""What is known as Prometheus text (format 0.0.4), by hand: the launcher has nothing but the standard library. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.contract.plan import Plan

from trainyard_trainer.launch.ending import Notice
from trainyard_trainer.launch.progress import Progress, newest_commit
from trainyard_trainer.report import Phase

PREFIX = "trainyard_trainer_"


@dataclass(frozen=True, slots=True)
class Measured:
    """A worker for the metrics. unreadable: lines on its report pipe that were no report."""

    rank: int
    alive: bool
    progress: Progress
    unreadable: int = 0


Sample = tuple[Mapping[str, str], float | None]


def text(plan: Plan, node_rank: int, workers: Sequence[Measured], notice: Notice | None, now: float) -> str:
    """All metrics of a pod. now: seconds since the epoch. A value that is not known yet is left out, not 0."""
    return "".join(_families(plan, node_rank, workers, notice, now))


def notice_to_durable_seconds(notice: Notice | None, workers: Iterable[Progress]) -> float | None:
    """From the notice to the first durable save after it: what a preemption costs its victim."""
    commit = newest_commit(workers)
    if notice is None or commit is None or commit.time < notice.time:
        return None
    return commit.time - notice.time


def _families(
    plan: Plan, node_rank: int, workers: Sequence[Measured], notice: Notice | None, now: float
) -> Iterator[str]:
    def each(value: str) -> list[Sample]:
        return [({"rank": str(w.rank)}, getattr(w.progress, value)) for w in workers]

    who = {"namespace": plan.namespace, "job": plan.job, "attempt": str(plan.attempt), "node_rank": str(node_rank)}
    yield _family("info", "gauge", "Whose launcher this is; always 1.", [(who, 1)])
    yield _family("restarts", "gauge", "Attempts of the job before this one.", [({}, plan.attempt - 1)])
    up: list[Sample] = [({"rank": str(w.rank)}, float(w.alive)) for w in workers]
    yield _family("worker_up", "gauge", "Whether the worker process runs.", up)
    phases: list[Sample] = [
        ({"rank": str(w.rank), "phase": phase.value}, float(w.progress.phase is phase))
        for w in workers
        for phase in Phase
    ]
    yield _family("phase", "gauge", "1 for the phase that the worker is in.", phases)
    spent: list[Sample] = [
        ({"rank": str(w.rank), "phase": phase.value}, _spent(w, phase, now)) for w in workers for phase in Phase
    ]
    yield _family("phase_seconds_total", "counter", "Time that the worker has spent in each phase.", spent)
    yield _family("step", "gauge", "Steps done, those before a resume included.", each("step"))
    yield _family("loss", "gauge", "Mean loss over the tokens of the last step's global batch.", each("loss"))
    yield _family("gradient_norm", "gauge", "Norm of the whole gradient before clipping.", each("grad_norm"))
    yield _family("tokens_total", "counter", "Tokens of all ranks that this attempt trained on.", each("tokens"))
    yield _family(
        "tokens_per_second", "gauge", "Tokens of all ranks per second of the last step.", each("tokens_per_second")
    )
    rank_sums: list[Sample] = [({"rank": str(w.rank)}, w.progress.step_seconds_sum) for w in workers]
    rank_counts: list[Sample] = [({"rank": str(w.rank)}, w.progress.steps_reported) for w in workers]
    yield _summary("step_seconds", "Wall time of the steps.", rank_sums, rank_counts)
    commits = [({"rank": str(w.rank)}, w.progress.commit) for w in workers if w.progress.commit]
    yield _family("checkpoints_total", "counter", "Checkpoints made durable by this attempt.", each("saves"))
    yield _family(
        "checkpoint_step", "gauge", "Step of the newest durable checkpoint.", [(r, c.step) for r, c in commits]
    )
    yield _family(
        "checkpoint_bytes", "gauge", "Size of the newest durable checkpoint.", [(r, c.bytes) for r, c in commits]
    )
    yield _family(
        "checkpoint_seconds",
        "gauge",
        "From the decision to save until durable, newest.",
        [(r, c.seconds) for r, c in commits],
    )
    yield _family(
        "checkpoint_timestamp_seconds",
        "gauge",
        "When the newest became durable, Unix time.",
        [(r, c.time) for r, c in commits],
    )
    yield _family(
        "notice_timestamp_seconds", "gauge", "When a stop was asked.", [({}, notice.time if notice else None)]
    )
    waited = notice_to_durable_seconds(notice, [w.progress for w in workers])
    yield _family("notice_to_durable_seconds", "gauge", "From the notice to a durable checkpoint.", [({}, waited)])
    warned: list[Sample] = [
        ({"rank": str(w.rank), "reason": reason}, count)
        for w in workers
        for reason, count in sorted(w.progress.warned.items())
    ]
    yield _family("warnings_total", "counter", "Warnings reported by the worker.", warned)
    unreadable: list[Sample] = [({"rank": str(w.rank)}, w.unreadable) for w in workers]
    yield _family("unreadable_reports_total", "counter", "Lines on the report pipe that were no report.", unreadable)


def _spent(worker: Measured, phase: Phase, now: float) -> float:
    progress = worker.progress
    over = progress.phase_seconds.get(phase, 0.0)
    if progress.phase is phase and progress.phase_since is not None and worker.alive:
        return over + max(now - progress.phase_since, 0.0)
    return over


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    lines = [_sample(PREFIX + name, labels, value) for labels, value in samples if value is not None]
    return _head(name, kind, help_text) + "".join(lines) if lines else ""


def _summary(name: str, help_text: str, sums: Sequence[Sample], counts: Sequence[Sample]) -> str:
    lines = [
        _sample(PREFIX + name + suffix, labels, value)
        for suffix, samples in (("_sum", sums), ("_count", counts))
        for labels, value in samples
        if value is not None
    ]
    return _head(name, "summary", help_text) + "".join(lines) if lines else ""


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {PREFIX}{name} {help_text}\n# TYPE {PREFIX}{name} {kind}\n"


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
