"""What the status says of an attempt under way: phase, how many train, how far, what is saved, and the conditions.

A status that has nothing new but progress, or other words about why its job waits, is written every few seconds at most:
everybody who watches jobs is sent each of them, and what a job needs done must not stand behind what others have to tell.
"""

from __future__ import annotations

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.sent import SentData, SentInStep, SentOver
from trainyard.api.training_job import Progress, SavedCheckpoint, TrainingJobStatus
from trainyard.contract.codec import LATEST, MOST_INTEGER
from trainyard.contract.sent import Sent
from trainyard.contract.status import Status
from trainyard.lifecycle import closing, conditions, deadlines
from trainyard.lifecycle.gang import Gang, Seat, runs_own_script
from trainyard.lifecycle.needs import Surroundings
from trainyard.lifecycle.verdict import why_not_running
from trainyard.world.records import Job


def report(job: Job, gang: Gang, around: Surroundings, status: TrainingJobStatus, now: float) -> TrainingJobStatus:
    ready = sum(1 for seat in gang.seats if _trains(job, seat, now))
    count = len(gang.seats)
    if ready == count and status.running_at is None and status.ending is None:
        status = status.but(running_at=now)
    if status.ending is not None or status.stop is not None:
        phase = Phase.YIELDING
    else:
        phase = Phase.RUNNING if status.running_at is not None else Phase.STARTING
    status = status.but(phase=phase, ready_nodes=ready, pending=None, lineage=closing.resolve(status.lineage, gang))
    status = _conditions(job, gang, around, status, ready, now)
    return _progress(job, with_checkpoint(status, gang), gang, now)


def only_tells(before: TrainingJobStatus, after: TrainingJobStatus) -> bool:
    """Whether a new status decides nothing: what is new is how far training is, or the words of a wait for the same reason."""
    return _decided(before) == _decided(after)


def _decided(status: TrainingJobStatus) -> TrainingJobStatus:
    waits = status.pending.but(message="", unblock=()) if status.pending is not None else None
    told = tuple(
        one.but(message="") if waits is not None and one.type == ConditionType.PLACED else one
        for one in status.conditions
    )
    return status.but(progress=None, checkpoint=None, pending=waits, conditions=told)


def _trains(job: Job, seat: Seat, now: float) -> bool:
    """It runs, and its launcher says that the workers train; or it runs and cannot be asked, or trained before it fell silent."""
    if seat.running is None:
        return False
    if seat.status is not None:
        if seat.status.ended is not None:
            return False
        spoken = seat.status.first_step_time is not None or seat.status.phase in ("training", "saving", "stopping")
        return spoken or runs_own_script(job)
    return seat.unreached(now) or job.status.running_at is not None


def with_checkpoint(status: TrainingJobStatus, gang: Gang) -> TrainingJobStatus:
    commit, known = gang.commit, status.checkpoint
    if commit is None or (known is not None and (known.attempt, known.step) >= (commit.attempt, commit.step)):
        return status
    return status.but(
        checkpoint=SavedCheckpoint(
            step=commit.step,
            attempt=commit.attempt,
            path=commit.path,
            bytes=commit.bytes,
            seconds=commit.seconds,
            time=commit.time or None,
        )
    )


def _progress(job: Job, status: TrainingJobStatus, gang: Gang, now: float) -> TrainingJobStatus:
    leader = next((seat.status for seat in gang.seats if seat.rank == 0), None)
    if leader is None or leader.step == 0:
        return status
    durable, basis = _durable(status, leader)
    new = Progress(
        step=leader.step,
        loss=_short(leader.loss),
        tokens_per_second=_short(leader.tokens_per_second),
        step_seconds=_short(leader.step_seconds),
        grad_norm=_short(leader.grad_norm),
        mfu=_short(leader.mfu),
        memory_bytes=leader.memory_bytes,
        sent=_sent(leader.sent),
        eta=_eta(job, leader, now),
        durable_seconds=_short(durable),
        durable_basis=basis,
        time=now,
    )
    old = status.progress
    if old is not None and old.step == new.step and old.loss == new.loss:  # the rest moves with every look at it
        return status
    return status.but(progress=new)


def _sent(said: Sent | None) -> SentInStep | None:
    if said is None:
        return None
    return SentInStep(
        data=tuple(SentData(data=name, bytes=_whole(size_bytes)) for name, size_bytes in said.data.items()),
        bytes=_whole(said.size_bytes),
        predicted_bytes=_whole(said.predicted_bytes),
        wire_bytes=_whole(said.wire_bytes),
        predicted_wire_bytes=_whole(said.predicted_wire_bytes),
        levels=tuple(
            SentOver(level=name, wire_bytes=_whole(over), seconds=_short(said.level_seconds.get(name)))
            for name, over in said.level_bytes.items()
        ),
        communication_seconds=_short(said.communication_seconds),
        exposed_seconds=_short(said.exposed_seconds),
        step_seconds=_short(said.step_seconds),
    )


def _eta(job: Job, leader: Status, now: float) -> float | None:
    """At the pace of the last steps. None where nobody knows how many there are, or how long one takes."""
    training = job.spec.training if job.spec is not None else None
    if training is None or not leader.step_seconds:
        return None
    at = now + max(0, training.steps - leader.step) * leader.step_seconds
    return round(at) if at <= LATEST else None


def _durable(status: TrainingJobStatus, leader: Status) -> tuple[float | None, str]:
    """How long a save from now would take, and what that rests on. What an earlier attempt's save took is worth more than what
    the trainer expects of its first."""
    saved = status.checkpoint
    if leader.commit is None and saved is not None and saved.seconds > 0:
        basis = f"the save of step {saved.step} by attempt {saved.attempt}"
        return saved.seconds + (leader.step_seconds or 0.0), basis
    return leader.durable_seconds, leader.durable_basis


def _whole(size_bytes: float) -> int:
    return min(round(size_bytes), MOST_INTEGER)


def _short(value: float | None) -> float | None:
    """Five digits: people read it, in a column of kubectl."""
    return None if value is None else float(f"{value:.5g}")


def _conditions(
    job: Job, gang: Gang, around: Surroundings, status: TrainingJobStatus, ready: int, now: float
) -> TrainingJobStatus:
    put, generation, count = conditions.put, job.generation, len(gang.seats)
    held = f"attempt {status.attempt} holds {count} nodes"
    status = put(status, ConditionType.PLACED, True, Reason.GANG_STARTED, held, now, generation)
    if status.phase is Phase.YIELDING:
        why = status.ending or status.stop
        assert why is not None
        message = getattr(why, "message", "") or f"asked to save and leave: {why.reason}"
        status = put(status, ConditionType.RUNNING, False, Reason(why.reason), message, now, generation)
    elif status.phase is Phase.RUNNING:
        status = put(
            status,
            ConditionType.RUNNING,
            True,
            Reason.ALL_RUNNING,
            f"all {count} members train{_doubted(gang, around)}",
            now,
            generation,
        )
    else:
        first = next((seat for seat in gang.seats if not _trains(job, seat, now)), None)
        why_not = f"; rank {first.rank}: {_not_yet(first)}" if first is not None else ""
        if around.refusal and not all(seat.pod for seat in gang.seats):
            why_not = f"; the API server does not take the others: {around.refusal}"
        message = f"{ready} of {count} members train{why_not}{_doubted(gang, around)}"
        status = put(status, ConditionType.RUNNING, False, Reason.MEMBERS_STARTING, message, now, generation)
    if around.moved:
        status = put(status, ConditionType.TOPOLOGY_CHANGED, True, Reason.LABELS_CHANGED, around.moved, now, generation)
    else:
        status = conditions.without(status, ConditionType.TOPOLOGY_CHANGED)
    return _controlled(gang, around, status, now, generation)


def _doubted(gang: Gang, around: Surroundings) -> str:
    """Nodes that are not ready and are waited for, and why; "" where there is none."""
    found = [(seat.pod.node, seat.rank) for seat in gang.seats if seat.doubted is not None and seat.pod is not None]
    if not found:
        return ""
    (node, rank), more = found[0], f", and {len(found) - 1} more" if len(found) > 1 else ""
    why = "most nodes fell NotReady together" if around.disrupted else "its launcher answers"
    return f"; node {node} of rank {rank} is not ready{more}, and is waited for: {why}"


def _not_yet(seat: Seat) -> str:
    if seat.running is None:
        return why_not_running(seat)
    return f"its workers are {seat.status.phase}" if seat.status is not None else "its launcher has not answered yet"


def _controlled(
    gang: Gang, around: Surroundings, status: TrainingJobStatus, now: float, generation: int
) -> TrainingJobStatus:
    put = conditions.put
    if around.blind:
        message = "no launcher of several jobs answers: the operator's own network is in trouble, the jobs go on"
        return put(status, ConditionType.CONTROLLED, False, Reason.OPERATOR_UNREACHABLE, message, now, generation)
    if gang.unheard(now):
        message = (
            f"none of its {len(gang.seats)} launchers answers any more, though their nodes are ready: the operator's own network "
            f"may be in trouble, or a NetworkPolicy shut port 9400 of the pods; the job goes on for "
            f"{deadlines.UNHEARD / 60:.0f} min at least"
        )
        return put(status, ConditionType.CONTROLLED, False, Reason.OPERATOR_UNREACHABLE, message, now, generation)
    unreached = [seat for seat in gang.seats if seat.unreached(now)]
    if unreached:
        error = unreached[0].answer.error if unreached[0].answer is not None else "it was not asked yet"
        message = (
            f"{len(unreached)} of {len(gang.seats)} launchers never answered (rank {unreached[0].rank}: {error}); a yield goes "
            f"by SIGTERM alone. Is the operator allowed to reach port 9400 of the pods (NetworkPolicy)?"
        )
        return put(status, ConditionType.CONTROLLED, False, Reason.LAUNCHER_UNREACHABLE, message, now, generation)
    if all(seat.status is not None for seat in gang.seats):
        return put(
            status, ConditionType.CONTROLLED, True, Reason.LAUNCHERS_ANSWER, "all launchers answer", now, generation
        )
    return status
