"""What an attempt came to: the alarm that ends it early, and the outcome once all members have settled.

Two questions, asked at different times. `alarm`: must the attempt end now? It looks for the first thing that makes going on
pointless, and its answer is recorded. `outcome`: everybody has ended; what does it count as? Yields are never an alarm: a gang
that was asked to leave is given its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Failure
from trainyard.contract.alike import Unlike
from trainyard.contract.exits import Exit
from trainyard.contract.network import Bearing, Sign, Trouble
from trainyard.contract.preflight import Finding
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.compare import missing
from trainyard.lifecycle.gang import Gang, Seat, came_from, speechless
from trainyard.lifecycle.outcome import Outcome, Verdict
from trainyard.lifecycle.unbegun import displaced, untaken
from trainyard.world.records import Job, Terminated

_SIGNS: Final = frozenset(Sign)
"""Each is a reason of the same name."""


def alarm(job: Job, gang: Gang, digest: str, blind: bool, now: float, unlike: Unlike | None = None) -> Verdict | None:
    """Why the current attempt has to end now; None where it may go on.

    digest: of the plan that the members should run. blind: the operator itself reaches nobody, so silence means nothing. unlike:
    in what the members' networks differ, None while that is not known.
    """
    all_were_made = job.status.reservation is None
    return (
        untaken(job, gang, now)
        or _refused(job, gang)
        or _preflight_failed(job, gang, now)
        or _failed(job, gang, now)
        or _node_lost(job, gang, now)
        or (_vanished(gang) if all_were_made and job.status.stop is None else None)
        or displaced(gang, now)
        or _impostor(job, gang, digest)
        or (_unlike(job, gang, unlike, now) if unlike is not None else None)
        or (None if blind else _silent(job, gang, now))
        or _late(job, gang, now)
    )


def outcome(job: Job, gang: Gang, now: float) -> Verdict:
    """What the attempt counts as, when every seat has settled and no alarm was given."""
    stop = job.status.stop
    ended = [seat.ended for seat in gang.seats]
    if all(end is not None and end.exit_code == Exit.DONE for end in ended):
        return Verdict(Outcome.DONE, Reason.COMPLETED, f"all {len(gang.seats)} members are done after step {gang.step}")
    if stop is None:
        return Verdict(Outcome.LOST, Reason.MEMBER_LOST, "the members went away without a word")
    reason = Reason(stop.reason)
    saved = gang.commit
    if saved is not None and saved.attempt == job.status.attempt and _yields(gang):
        lost = gang.step - saved.step
        note = "no step is lost" if lost <= 0 else f"{lost} steps after it are lost"
        return Verdict(Outcome.YIELDED, reason, f"saved step {saved.step} and left; {note}")
    if speechless(job, gang):
        return Verdict(Outcome.YIELDED, reason, "left; it reports no steps, so what it saved is its own to know")
    if gang.step <= came_from(job, gang):
        return Verdict(Outcome.YIELDED, reason, "left before its first new step; no step is lost")
    missing = "its last save is of an earlier attempt" if saved is None or saved.attempt != job.status.attempt else ""
    missing = missing or f"its last save is of step {saved.step if saved else 0}"
    return Verdict(Outcome.YIELDED, reason, f"left at step {gang.step} without a save within its grace; {missing}")


def _yields(gang: Gang) -> bool:
    return any(seat.ended is not None and seat.ended.exit_code == Exit.YIELDED for seat in gang.seats)


def _first(seats: Iterable[tuple[Seat, Terminated]]) -> tuple[Seat, Terminated]:
    """The earliest end. By the launcher's clock where it said when, as the kubelet rounds to seconds; then by rank."""

    def when(item: tuple[Seat, Terminated]) -> tuple[float, int]:
        seat, end = item
        words = seat.words
        fault = words.fault if words is not None else None
        return (fault.time if fault is not None else end.finished, seat.rank)

    return min(seats, key=when)


def _describe(seat: Seat, end: Terminated) -> str:
    words = seat.words
    pod = seat.pod.name if seat.pod is not None else f"member {seat.member}"
    if words is not None:
        more = words.fault.message.strip() if words.fault is not None else ""
        detail = f": {more}" if more and more not in words.cause else ""
        return f"{pod}, after step {words.step}: {words.cause}{detail}"
    said = f": {end.message.strip()}" if end.message.strip() else ""
    return f"{pod}: exited {end.exit_code} ({end.reason or 'no reason given'}){said}"


def _failure(job: Job, seat: Seat, end: Terminated | None, reason: Reason, message: str, now: float) -> Failure:
    words = seat.words
    fault = words.fault if words is not None else None
    return Failure(
        attempt=job.status.attempt,
        reason=reason,
        message=message[:2000],
        pod=seat.pod.name if seat.pod is not None else "",
        node=seat.pod.node if seat.pod is not None else "",
        rank=fault.rank if fault is not None else None,
        exit_code=end.exit_code if end is not None else None,
        time=end.finished if end is not None else now,
    )


def _refused(job: Job, gang: Gang) -> Verdict | None:
    found = [(s, s.ended) for s in gang.seats if s.ended is not None and s.ended.exit_code == Exit.CONFIGURATION]
    if not found:
        return None
    seat, end = _first(found)
    message = _describe(seat, end)
    failure = _failure(job, seat, end, Reason.INVALID_CONFIGURATION, message, end.finished)
    return Verdict(Outcome.REFUSED, Reason.INVALID_CONFIGURATION, message, failure)


def _failed(job: Job, gang: Gang, now: float) -> Verdict | None:
    """A member ended badly. While a stop stands, an end is what was asked for, and `outcome` judges what it brought.

    It was asked for as well where somebody deleted a member first, and all had left before the operator could record the stop.
    """
    if job.status.stop is not None:
        return None
    asked = _asked(gang)
    ended = [(s, s.ended) for s in gang.seats if s.ended is not None and s.ended.exit_code != Exit.DONE]
    bad = [(seat, end) for seat, end in ended if asked is None or end.finished < asked]
    if not bad or _more_to_hear(gang, min(end.finished for _, end in bad), now):
        return None
    seat, end = _first(bad)
    code = Exit(end.exit_code) if end.exit_code in Exit._value2member_map_ else Exit.FAILURE
    reason = {Exit.YIELDED: Reason.UNASKED_YIELD, Exit.HANG: Reason.HANG}.get(code)
    if reason is None:
        seat, end, reason = _recognised(bad, seat, end)
    message = _describe(seat, end)
    if reason is Reason.UNASKED_YIELD:
        message += "; exit code 75 means that it saved because it was asked to leave, and nobody asked"
    mesh = job.status.plan.mesh if job.status.plan is not None else {}
    found = missing(gang, job.status.attempt, mesh) if reason in (Reason.HANG, Reason.COLLECTIVE_TIMEOUT) else None
    if found is None:
        return Verdict(Outcome.FAILED, reason, message, _failure(job, seat, end, reason, message, end.finished))
    message = f"{found.sentence}; {message}"
    failure = _failure(job, found.seat, end, reason, message, end.finished).but(rank=found.at.rank)
    return Verdict(Outcome.FAILED, reason, message, failure)


def _more_to_hear(gang: Gang, since: float, now: float) -> bool:
    """Whether a member that still answers may have failed before the one that was heard of first. since: by a node's clock, which
    may be any: nothing is waited for that should be over already."""
    left = any(seat.ended is None and seat.status is not None and seat.running is not None for seat in gang.seats)
    return left and 0 <= now - since < deadlines.GATHER


def _recognised(bad: Iterable[tuple[Seat, Terminated]], seat: Seat, end: Terminated) -> tuple[Seat, Terminated, Reason]:
    """Why members failed, as far as libraries said, and who said so. bad: all that did; seat, end: the first.

    What the first failed by may follow from something that only another saw, since each rank prints what it sees. Where nobody
    names that, a collective that timed out is what there is to say.
    """
    said = _complaint(seat)
    if said is not None and said.bearing != Bearing.ERROR:
        of = [(complaint, one, its) for one, its in bad if (complaint := _complaint(one)) is not None]
        errors = (found for found in of if found[0].bearing == Bearing.ERROR)
        first = min(errors, key=lambda found: found[0].time, default=None)
        timeout = next((found for found in of if found[0].sign == Sign.COLLECTIVE_TIMEOUT), None)
        said, seat, end = first or timeout or (None, seat, end)
    return seat, end, Reason(said.sign) if said is not None else Reason.MEMBER_FAILED


def _complaint(seat: Seat) -> Trouble | None:
    """What its libraries complained of before a member failed, as far as that is known here."""
    said = seat.words.trouble if seat.words is not None else None
    known = said is not None and said.sign in _SIGNS and said.bearing != Bearing.OBSERVATION
    return said if known else None


def _preflight_failed(job: Job, gang: Gang, now: float) -> Verdict | None:
    """Nodes were measured and found unfit: a verdict on them, not on the job. Where none is named it is the job's own, since
    trying again on the same nodes may well fail again.

    What a launcher says of it counts before its exit code: to take workers down takes longer, and those that lose their peers
    meanwhile end as if it were their own fault.
    """
    if job.status.stop is not None:
        return None
    found = [(s, s.ended) for s in gang.seats if s.ended is not None and s.ended.exit_code == Exit.PREFLIGHT]
    seat, end = _first(found) if found else (None, None)
    result = gang.preflight
    if result is not None and result.finding == Finding.FAILED:
        at = end.finished if end is not None else now
        return _left_out(job, gang, Reason.PREFLIGHT_FAILED, result.message, result.nodes, at, end)
    if seat is None or end is None:
        return None
    its_own = gang.nodes[seat.rank : seat.rank + 1]  # all that is known is who said so
    return _left_out(job, gang, Reason.PREFLIGHT_FAILED, _describe(seat, end), its_own, end.finished, end)


def _unlike(job: Job, gang: Gang, unlike: Unlike, now: float) -> Verdict | None:
    """Members whose networks differ so that they would hang: said before the rendezvous times out, which names nobody."""
    known, running = job.status.network, job.status.running_at
    compared = known is not None and known.compared
    if not unlike.fatal or compared or job.status.stop is not None:
        return None
    if running is not None and now - running > deadlines.PLAUSIBLE:
        return None  # they do train
    return _left_out(job, gang, Reason.NODES_UNLIKE, "; ".join(unlike.fatal), unlike.nodes, now)


def _left_out(
    job: Job, gang: Gang, reason: Reason, message: str, blamed: Iterable[str], now: float, end: Terminated | None = None
) -> Verdict:
    """An attempt that ends before its first step. blamed: nodes, of which those of the gang count. end: of who said so."""
    nodes = tuple(node for node in dict.fromkeys(blamed) if node and node in gang.nodes)
    if len(nodes) == len({*gang.nodes}) > 1:
        nodes = ()  # what all nodes have is not a fault of theirs: others would have it as well
    on_it = next((one for one in gang.seats if nodes and gang.nodes[one.rank] == nodes[0]), gang.seats[0])
    failure = _failure(job, on_it, end, reason, message, now)
    if not nodes:
        return Verdict(Outcome.FAILED, reason, f"{message}; no node is to blame", failure.but(node="", pod=""))
    return Verdict(Outcome.UNFIT, reason, message, failure.but(node=nodes[0]), nodes)


def _asked(gang: Gang) -> float | None:
    """Since when somebody else takes a member away; None where nobody does.

    When a disruption began is not known. A kubelet that evicts a pod for what the pod used up calls that one as well, so it
    is an excuse only for a gang that saved before it left.
    """
    times = [pod.deleted for pod in gang.pods if pod.deleted is not None]
    if _yields(gang):
        times += [0.0 for pod in gang.pods if pod.disrupted]
    return min(times, default=None)


def _node_lost(job: Job, gang: Gang, now: float) -> Verdict | None:
    lost = [seat for seat in gang.seats if seat.node_lost is not None and seat.ended is None]
    if not lost:
        return None
    seat = lost[0]
    node = seat.pod.node if seat.pod is not None else ""
    message = f"node {node} of rank {seat.rank} is not ready or gone"
    if len(lost) > 1:
        message += f", and {len(lost) - 1} more"
    return Verdict(Outcome.LOST, Reason.NODE_LOST, message, _failure(job, seat, None, Reason.NODE_LOST, message, now))


def _vanished(gang: Gang) -> Verdict | None:
    gone = [seat for seat in gang.seats if seat.pod is None]
    if not gone:
        return None
    return Verdict(
        Outcome.LOST, Reason.MEMBER_LOST, f"the pod of rank {gone[0].rank} (member {gone[0].member}) is gone"
    )


def _impostor(job: Job, gang: Gang, digest: str) -> Verdict | None:
    """A member that runs by another plan than ours: its ranks would not be the plan's."""
    for seat in gang.seats:
        status = seat.status
        if status is None or status.attempt != job.status.attempt:
            continue
        if status.node_rank == seat.rank and (not digest or status.plan_digest == digest):
            continue
        pod = seat.pod.name if seat.pod is not None else ""
        message = f"{pod} runs as node rank {status.node_rank} of plan {status.plan_digest}; it should be {seat.rank} of {digest}"
        return Verdict(Outcome.FAILED, Reason.RANK_MISMATCH, message)
    return None


def _silent(job: Job, gang: Gang, now: float) -> Verdict | None:
    silent = [seat for seat in gang.seats if seat.silent(now)]
    if not silent:
        return None
    seat = silent[0]
    pod = seat.pod.name if seat.pod is not None else ""
    quiet = now - seat.heard if seat.heard is not None else 0.0
    why = seat.answer.error if seat.answer is not None else ""
    message = f"the launcher of {pod} (rank {seat.rank}) has not answered for {quiet:.0f} s{f' ({why})' if why else ''}"
    if len(silent) > 1:
        message += f", nor have {len(silent) - 1} others"
    failure = _failure(job, seat, None, Reason.LAUNCHER_SILENT, message, now)
    # Not the job's own doing: a node that dies is often silent before it is known to be dead, and nothing is charged for it.
    return Verdict(Outcome.LOST, Reason.LAUNCHER_SILENT, message, failure)


def _late(job: Job, gang: Gang, now: float) -> Verdict | None:
    """Members that do not start, or do not end when others have, within the time."""
    done = [(s, s.ended) for s in gang.seats if s.ended is not None]
    left = [seat for seat in gang.seats if seat.ended is None]
    if done and left and job.status.stop is None:
        _, end = _first(done)
        if now - end.finished > deadlines.FINISH:
            message = f"rank {left[0].rank} still runs {deadlines.FINISH:.0f} s after another member was done"
            return Verdict(Outcome.FAILED, Reason.MEMBER_FAILED, message)
    started = job.status.started_at
    waiting = [seat for seat in gang.seats if seat.running is None and seat.ended is None]
    if started is not None and waiting and job.status.stop is None and now - started > deadlines.START:
        seat = waiting[0]
        why = why_not_running(seat)
        message = f"rank {seat.rank} does not run {deadlines.START:.0f} s after the start: {why}"
        failure = _failure(job, seat, None, Reason.START_TIMEOUT, message, now)
        return Verdict(Outcome.FAILED, Reason.START_TIMEOUT, message, failure)
    return None


def why_not_running(seat: Seat) -> str:
    """What the API server knows about a member that does not run yet."""
    pod = seat.pod
    if pod is None:
        return "its pod is not there yet"
    if not pod.node:
        return pod.unscheduled or "it is not bound to its node yet"
    waiting = pod.trainer
    reason = getattr(waiting, "reason", "")
    message = getattr(waiting, "message", "")
    return ": ".join(part for part in (reason, message) if part) or "its containers are being made"
