"""What `kubectl trainyard status` prints: everything that is known of one job, on one page, in the order in which one asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainyard.api.prose import count
from trainyard.cli.layout import ago, page, table
from trainyard.cli.training import time_lines
from trainyard.world.records import Job, Pod, Running, Terminated, Waiting


def status_page(job: Job, members: Iterable[Pod], now: float) -> str:
    """The page. members: the job's pods of any attempt; now: seconds since the epoch."""
    parts = (
        _heading(job, now),
        _waiting(job, now),
        _errors(job),
        _progress(job, now),
        time_lines(job, now),
        _ranks(job, members),
        _failure(job, now),
        _conditions(job, now),
    )
    return page(parts)


def _heading(job: Job, now: float) -> Iterator[str]:
    status = job.status
    nodes = "its specification makes no sense"
    if job.spec is not None:
        holds = status.plan.nodes if status.plan is not None and status.started_at is not None else job.spec.nodes
        fewer = f" (it wants {job.spec.nodes})" if holds < job.spec.nodes else ""
        nodes = f"{status.ready_nodes} of {holds} nodes train{fewer}"
    leaving = ", being deleted" if job.deleted is not None else ""
    phase = f"{status.phase or 'not seen by an operator yet'}{leaving}"
    yield f"{job.key}: {phase}, attempt {status.attempt}, {nodes}, {ago(job.created, now)} old"


def _waiting(job: Job, now: float) -> Iterator[str]:
    pending = job.status.pending
    if pending:
        since = f" for {ago(pending.since, now)}" if pending.since is not None else ""
        yield f"Waits{since}: {pending.reason}"
        if pending.message:
            yield f"  {pending.message}"
        for way in pending.unblock:
            yield f"  - {way}"
    stop = job.status.stop
    if stop:
        left = max(0.0, stop.deadline - now)
        yield f"Was asked to leave {ago(stop.requested_at, now)} ago ({stop.reason}); killed in {left:.0f} s"


def _errors(job: Job) -> Iterator[str]:
    yield from map(str, job.errors)


def _progress(job: Job, now: float) -> Iterator[str]:
    status = job.status
    rows = []
    if status.progress:
        told = [f"step {status.progress.step}"]
        if status.progress.loss is not None:
            told.append(f"loss {status.progress.loss:.4f}")
        if status.progress.tokens_per_second is not None:
            told.append(f"{status.progress.tokens_per_second:,.0f} tokens/s")
        rows.append(("Progress", ", ".join(told)))
    if status.checkpoint:
        age = f", {ago(status.checkpoint.time, now)} ago" if status.checkpoint.time is not None else ""
        rows.append(("Checkpoint", f"step {status.checkpoint.step} of attempt {status.checkpoint.attempt}{age}"))
    if status.plan:
        edges = ", ".join(f"{n} leave a {level}" for level, n in status.plan.ring_edges.items())
        good = f"; {status.plan.quality.summary}" if status.plan.quality is not None else ""
        where = f"{status.plan.nodes} nodes within one {status.plan.span}{good}"
        rows.append(("Plan", f"{where}; of the ring's edges {edges or 'none is counted'}"))
    lost = status.restarts
    ends = count(lost.failures, "failure"), count(lost.preemptions, "yield"), f"{count(lost.nodes_lost, 'node')} lost"
    rows.append(("Restarts", ", ".join(ends)))
    yield from table(rows)


def _ranks(job: Job, members: Iterable[Pod]) -> Iterator[str]:
    current = [
        (pod.membership, pod) for pod in members if pod.membership and pod.membership.attempt == job.status.attempt
    ]
    if current:
        rows = [
            (str(membership.rank), pod.name, pod.node or f"({membership.node})", state(pod))
            for membership, pod in sorted(current, key=lambda pair: pair[0].rank)
        ]
        yield from table([("RANK", "POD", "NODE", "TRAINER"), *rows])


def state(pod: Pod) -> str:
    """What the trainer container of a member does, in words."""
    leaving = ", being deleted" if pod.deleted is not None else ""
    match pod.trainer:
        case Running():
            return "runs" + leaving
        case Terminated(exit_code=code, reason=reason):
            return f"ended with {code} ({reason})" + leaving
        case Waiting(reason=reason, message=message):
            why = pod.unscheduled or message
            return (reason or "waits") + (f": {why}" if why else "") + leaving


def _failure(job: Job, now: float) -> Iterator[str]:
    failure = job.status.last_failure
    if failure:
        where = " on ".join(filter(None, (failure.pod, failure.node)))
        age = f" {ago(failure.time, now)} ago" if failure.time is not None else ""
        yield f"Attempt {failure.attempt} failed{age}: {failure.reason}{f', {where}' if where else ''}"
        if failure.message:
            yield f"  {failure.message}"


def _conditions(job: Job, now: float) -> Iterator[str]:
    rows = [(c.type, c.status, c.reason, ago(c.last_transition_time, now), c.message) for c in job.status.conditions]
    if rows:
        yield from table([("CONDITION", "", "REASON", "SINCE", "MESSAGE"), *rows])
