"""Where a job's time went: every second since it was made belongs to one cause.

The status remembers until when it has accounted (`until`) and, whenever anything else of it changes, the time since then is given
to the state that it was in: nobody counts along, so an operator that was away, or two at once, cannot count a second twice or
miss one. The sum of all causes is `until - since` in whole milliseconds, whatever is said by launchers, whose figures only divide
the time in which a gang trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trainyard.api.conditions import Phase
from trainyard.api.training_job import Accounted, Goodput, TrainingJobStatus
from trainyard.contract.status import Status
from trainyard.lifecycle.gang import Gang, came_from
from trainyard.world.records import Job

CAUSES: Final = (
    "productive",
    "recomputed",
    "starting",
    "checkpointing",
    "evaluating",
    "data",
    "waiting",
    "suspended",
    "leaving",
    "lost",
)
"""The fields of Goodput that are seconds."""

_WHILE: Final[Mapping[Phase | None, str]] = {
    None: "waiting",
    Phase.PENDING: "waiting",
    Phase.SUSPENDED: "suspended",
    Phase.STARTING: "starting",
}
"""What the time of a phase is that divides no further."""

_OF_TRAINER: Final[Mapping[str, str]] = {
    "import": "starting",
    "init": "starting",
    "load": "starting",
    "warm-up": "starting",
    "save": "checkpointing",
    "eval": "evaluating",
    "data": "data",
}
"""By phase of the trainer (trainyard_trainer.report.Phase): what its seconds are, where they are not steps."""


def settle(job: Job, status: TrainingJobStatus, gang: Gang, now: float) -> TrainingJobStatus:
    """The new status of a job with the time accounted until `now`. job: as it was until now, with the gang that it had."""
    before = job.status
    if before.phase is not None and before.phase.ended and (status.phase is None or status.phase.ended):
        return status
    known = before.goodput or Goodput(since=job.created, until=job.created)
    until = max(known.until, round(now, 3))
    spent = {cause: round(getattr(known, cause) * 1000) for cause in CAUSES}
    due = round((until - known.since) * 1000) - sum(spent.values())
    leader = next((seat.status for seat in gang.seats if seat.rank == 0), None)
    if before.phase is not None and before.phase.ended:  # an edit brought it back
        spent["waiting"] += due
        accounted = known.accounted
    else:
        for cause, ms in _divide(job, status, gang, leader, known, due, until):
            spent[cause] += ms
        accounted = _accounted(job, gang, leader, known, due)
    furthest = max(known.furthest, accounted.step if accounted is not None else 0)
    whole = sum(spent.values())
    return status.but(
        goodput=known.but(
            until=until,
            percent=round(100 * spent["productive"] / whole) if whole else 0,
            furthest=furthest,
            accounted=accounted,
            **{cause: ms / 1000 for cause, ms in spent.items()},
        )
    )


def so_far(status: TrainingJobStatus, now: float) -> Mapping[str, float]:
    """Seconds by cause until `now`: what is accounted, and since then what the present state says."""
    goodput = status.goodput
    if goodput is None:
        return {}
    seconds = {cause: float(getattr(goodput, cause)) for cause in CAUSES}
    if status.phase is None or not status.phase.ended:
        cause = _WHILE.get(status.phase) or ("productive" if status.phase is Phase.RUNNING else _leaving(status))
        seconds[cause] += max(0.0, now - goodput.until)
    return seconds


def _divide(
    job: Job, status: TrainingJobStatus, gang: Gang, leader: Status | None, known: Goodput, due: int, until: float
) -> Iterator[tuple[str, int]]:
    """`due` milliseconds until `until`, by cause; their sum is `due`."""
    before = job.status
    if before.phase in _WHILE:
        yield _WHILE[before.phase], due
    elif before.phase is Phase.YIELDING:
        yield from _leave(before, gang, due, until)
    else:
        yield from _train(job, status, gang, leader, known, due, until)


def _leaving(status: TrainingJobStatus) -> str:
    return "lost" if status.ending is not None else "checkpointing"


def _leave(before: TrainingJobStatus, gang: Gang, due: int, until: float) -> Iterator[tuple[str, int]]:
    """A gang that failed loses its time until it is gone. One that was asked to leave saves, and leaves when that is done."""
    commit, stop = gang.commit, before.stop
    if _leaving(before) == "lost" or stop is None:
        yield "lost", due
        return
    saved = commit is not None and commit.attempt == before.attempt and commit.time >= stop.requested_at
    after = _clip(round((until - commit.time) * 1000), due) if saved and commit is not None else 0
    yield "checkpointing", due - after
    yield "leaving", after


def _train(
    job: Job, status: TrainingJobStatus, gang: Gang, leader: Status | None, known: Goodput, due: int, until: float
) -> Iterator[tuple[str, int]]:
    """A gang that trains: what the trainer says it did beside steps, and the rest is steps, new ones or those of an earlier
    attempt again. A gang that broke lost the time since: since a member ended, or, where it did no step since the last account,
    all of it."""
    rest = due
    first, last = _steps(job, gang, leader, known)
    if _broke(job.status, status):
        ends = [seat.ended.finished for seat in gang.seats if seat.ended is not None]
        lost = rest if last <= first else _clip(round((until - min(ends, default=until)) * 1000), rest)
        yield "lost", lost
        rest -= lost
    for cause, ms in _taken(job, leader, known, rest).items():
        yield cause, ms
        rest -= ms
    again = _clip(min(last, known.furthest) - first, last - first)
    repeated = round(rest * again / (last - first)) if last > first else 0
    yield "recomputed", repeated
    yield "productive", rest - repeated


def _broke(before: TrainingJobStatus, after: TrainingJobStatus) -> bool:
    """Whether the attempt ended, or has to, by a fault."""
    failed = after.ending is not None and before.ending is None
    over = after.started_at is None or after.attempt != before.attempt
    closed = over and before.stop is None and after.phase is not Phase.SUCCEEDED
    return failed or closed


def _steps(job: Job, gang: Gang, leader: Status | None, known: Goodput) -> tuple[int, int]:
    """From which step to which this attempt got since the last account."""
    seen = _of_attempt(job, known)
    first = seen.step if seen is not None else came_from(job, gang)
    last = max(gang.step, leader.step if leader is not None else 0)
    return first, max(first, last)


def _of_attempt(job: Job, known: Goodput) -> Accounted | None:
    seen = known.accounted
    return seen if seen is not None and seen.attempt == job.status.attempt else None


def _trainers(leader: Status | None) -> dict[str, int]:
    """Milliseconds of the attempt by cause, as its first worker says."""
    spent: dict[str, int] = {}
    for phase, seconds in (leader.phase_seconds if leader is not None else {}).items():
        cause = _OF_TRAINER.get(phase)
        if cause is not None:
            spent[cause] = spent.get(cause, 0) + round(max(0.0, min(seconds, 1e9)) * 1000)
    return spent


def _taken(job: Job, leader: Status | None, known: Goodput, room: int) -> dict[str, int]:
    """Of what the trainer says and was not accounted yet, as much as fits into `room`."""
    seen = _of_attempt(job, known)
    if seen is None or job.status.phase is not Phase.RUNNING:
        return {}
    taken: dict[str, int] = {}
    for cause, ms in sorted(_trainers(leader).items()):
        more = _clip(ms - round(seen.seconds.get(cause, 0.0) * 1000), room)
        if more:
            taken[cause] = more
            room -= more
    return taken


def _accounted(job: Job, gang: Gang, leader: Status | None, known: Goodput, due: int) -> Accounted | None:
    """What of the attempt's figures is accounted now: while it starts all of them, since that time is counted by the clock."""
    if job.status.started_at is None:
        return known.accounted
    _, last = _steps(job, gang, leader, known)
    seen, told = _of_attempt(job, known), _trainers(leader)
    if seen is None or job.status.phase is not Phase.RUNNING:
        seconds = {cause: ms / 1000 for cause, ms in told.items()}
    else:
        taken = _taken(job, leader, known, due)
        seconds = {cause: seen.seconds.get(cause, 0.0) for cause in {*seen.seconds, *taken}}
        seconds = {cause: round(total + taken.get(cause, 0) / 1000, 3) for cause, total in sorted(seconds.items())}
    return Accounted(attempt=job.status.attempt, step=last, seconds=seconds)


def _clip(value: int, most: int) -> int:
    return max(0, min(value, most))
