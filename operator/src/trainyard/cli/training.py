"""What a job says of itself while it trains, and where its time went: lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trainyard.api.model import rfc3339
from trainyard.api.prose import length
from trainyard.api.sent import SentInStep
from trainyard.api.training_job import Progress
from trainyard.cli.layout import WIDTH, table, wrapped
from trainyard.lifecycle.goodput import so_far
from trainyard.world.records import Job

_WORDS: Final[Mapping[str, str]] = {
    "productive": "new steps",
    "recomputed": "steps done again",
    "data": "waiting for samples",
    "leaving": "saved and leaving",
    "lost": "lost to faults",
}
"""Causes whose name says too little."""


def progress_lines(job: Job) -> Iterator[str]:
    """How far it is, how fast, and what a save would take; nothing where no step was reported."""
    progress = job.status.progress
    if progress is None or job.status.running_at is None:
        return
    rows = [("Progress", _pace(job, progress))]
    figures = list(_figures(progress))
    if figures:
        rows.append(("", ", ".join(figures)))
    if progress.sent is not None:
        rows.append(("Sends", _sends(progress.sent)))
    if progress.durable_seconds is not None:
        rows.append(("Save", f"from now durable in {progress.durable_seconds:.3g} s ({progress.durable_basis})"))
    yield from table(rows)


def _pace(job: Job, progress: Progress) -> str:
    training = job.spec.training if job.spec is not None else None
    text = f"step {progress.step}" + (f" of {training.steps}" if training is not None else "")
    if progress.step_seconds:
        text += f", {progress.step_seconds:.3g} s each"
    return text + (f"; done about {rfc3339(round(progress.eta))}" if progress.eta is not None else "")


def _figures(progress: Progress) -> Iterator[str]:
    if progress.loss is not None:
        yield f"loss {progress.loss:.4g}"
    if progress.grad_norm is not None:
        yield f"gradient norm {progress.grad_norm:.3g}"
    if progress.tokens_per_second is not None:
        yield f"{progress.tokens_per_second:.4g} tokens/s"
    if progress.mfu is not None:
        yield f"MFU {progress.mfu:.1%}"
    if progress.memory_bytes is not None:
        yield f"{progress.memory_bytes / 1e9:.3g} GB of memory"


def _sends(sent: SentInStep) -> str:
    """Of rank 0's step: on the wire beside what is predicted, by level, and what of its time is exposed."""
    text = f"{_megabytes(sent.wire_bytes)} a step on the wire ({_megabytes(sent.predicted_wire_bytes)} predicted)"
    levels = ", ".join(f"{_megabytes(over.wire_bytes)} over {over.level or 'an unknown level'}" for over in sent.levels)
    text += f": {levels}" if levels else ""
    if sent.communication_seconds is None or sent.exposed_seconds is None:
        return text
    return f"{text}; {sent.communication_seconds:.3g} s on their way, {sent.exposed_seconds:.3g} s of it waited for"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.4g} MB"


def time_lines(job: Job, now: float, width: int = WIDTH) -> Iterator[str]:
    """Where its time went since it was made, most first. Nothing for a job that has never had nodes: it waited."""
    status = job.status
    seconds = so_far(status, now)
    whole = sum(seconds.values())
    if status.attempt == 0 or not whole:
        return
    parts = sorted(((s, cause) for cause, s in seconds.items() if round(s, 1)), reverse=True)
    text = ", ".join(f"{_WORDS.get(cause, cause)} {length(s)} ({s / whole:.0%})" for s, cause in parts)
    yield from wrapped(text, f"Of its {length(whole)}: ", "  ", width)


def slow_lines(job: Job, width: int = WIDTH) -> Iterator[str]:
    """Who holds it up, where somebody does."""
    said = next((one for one in job.status.conditions if one.type == "Straggler" and one.status == "True"), None)
    if said is not None:
        yield from wrapped(f"{said.reason}: {said.message}", "", "  ", width)
