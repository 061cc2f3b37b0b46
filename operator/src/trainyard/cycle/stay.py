"""A job that gets nothing: why, until when, and what is kept for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainyard.api.conditions import Reason
from trainyard.api.model import rfc3339
from trainyard.cycle.parties import Parties, Seeker
from trainyard.cycle.plans import expect, find, gathered, hint
from trainyard.cycle.room import NOTHING, Keep, Room
from trainyard.cycle.waiting import Waiting, wait
from trainyard.lifecycle import unfit
from trainyard.planner.place import CLUSTER, Placement, Shortfall
from trainyard.world.records import Job

CAME_FIRST = "which came first"


def stay(seeker: Seeker, short: Shortfall, parties: Parties, room: Room, now: float) -> Waiting:
    """What a job says that has no place now. What it waits for is kept from those behind it."""
    job = seeker.job.with_status(seeker.job.status.but(reservation=None))
    without = unfit.said(job.status, now)
    later = _relaxed_later(seeker) + (f"; {without}" if without else "")
    alone = find(seeker, NOTHING, parties, room) if seeker.kept else short
    if isinstance(alone, Placement):
        message = f"{short.message}; {_kept_for(seeker, room)}{later}"
        waiting = wait(job, Reason.BEHIND_OTHERS, message, _after_them(seeker, parties, room), now)
        wakes = (*(keep.wake for keep in seeker.kept.values()), unfit.free_again(job.status, now))
        return _look_again(waiting, seeker, wakes)
    expected = _keep(job, seeker, short, parties, room, now)
    # By what was asked for, not by what is free just now: the reason of a wait should not change with every pod that ends.
    reason = Reason.NO_DOMAIN_FITS if seeker.request.required else Reason.INSUFFICIENT_NODES
    found = hint(seeker, parties, room, now)
    helps = (*found, *alone.unblock) if alone.eligible < alone.needed else found or alone.unblock
    helps = (*helps, *_once_fit(seeker, parties, room, now))
    due = (unfit.free_again(job.status, now),)
    return _look_again(wait(job, reason, f"{alone.message}{expected}{later}", helps, now), seeker, due)


def _once_fit(seeker: Seeker, parties: Parties, room: Room, now: float) -> tuple[str, ...]:
    """When the job starts for the nodes alone that it does without, if it does."""
    again = unfit.free_again(seeker.job.status, now)
    if again is None:
        return ()
    first = frozenset(one.node for one in seeker.job.status.avoid if now < one.until <= again)
    with_them = replace(seeker, request=replace(seeker.request, unfit=seeker.request.unfit - first))
    if not isinstance(find(with_them, seeker.kept, parties, room), Placement):
        return ()
    return (f"at {rfc3339(round(again))} {', '.join(sorted(first)[:8])} may be tried again",)


def hold(seekers: Sequence[Seeker], parties: Parties, room: Room, now: float) -> None:
    """Keep from those behind it what a job would have or wait for that is barred for a moment: because it was edited, or a new
    operator has the API server asked again, nobody overtakes it."""
    job = seekers[0].job
    if job.status.not_before is not None and now < job.status.not_before:
        return
    answers = [(seeker, find(seeker, seeker.kept, parties, room)) for seeker in seekers]
    for seeker, found in answers:
        if isinstance(found, Placement):
            room.keep(Keep(job.key, seeker.priority, not seeker.preempts, frozenset(found.nodes), CAME_FIRST))
            return
    for seeker, found in answers:
        if isinstance(found, Shortfall):
            _keep(job, seeker, found, parties, room, now)


def _keep(job: Job, seeker: Seeker, short: Shortfall, parties: Parties, room: Room, now: float) -> str:
    """Keep what the job waits for. Returns what can be said of when it starts, to end a sentence with."""
    if not short.could_ever_fit:
        return ""
    firm = not seeker.preempts
    start = expect(seeker, seeker.kept, parties, room, now)
    if start is None or start.time <= now:
        found = gathered(seeker, parties, room)
        nodes = frozenset(found.holds if isinstance(found, Shortfall) else found.nodes)
        nodes -= room.reserved_for_others(job.key)
        room.keep(Keep(job.key, seeker.priority, firm, nodes, CAME_FIRST))
        return ""
    nodes = frozenset(start.placement.nodes)
    room.keep(Keep(job.key, seeker.priority, firm, nodes, CAME_FIRST, until=start.time))
    return f"; it starts by {rfc3339(round(start.time))}, when those that hold its nodes reach their spec.maxRuntime"


def _relaxed_later(seeker: Seeker) -> str:
    where = seeker.locality
    if where.due is None:
        return ""
    enough = "any nodes are" if where.next == CLUSTER else f"one {where.next} is"
    return f"; from {rfc3339(round(where.due))} on {enough} enough"


def _kept_for(seeker: Seeker, room: Room) -> str:
    """How many free nodes are kept for whom, and until when."""
    supply = room.now.supply(seeker.request.demand)
    positions = {node: supply.index.position.get(node) for node in seeker.kept}
    free = [
        seeker.kept[node] for node, position in positions.items() if position is not None and supply.slots[position]
    ]
    shown = {(keep.key, keep.why, keep.until) for keep in free}
    said = [
        f"{key}, {why}" + (f", until {rfc3339(round(until))}" if until is not None else "")
        for key, why, until in sorted(shown, key=lambda one: (one[0], one[1], one[2] or 0.0))
    ]
    return f"{len(free)} more are free and kept for {', and for '.join(said)}"


def _after_them(seeker: Seeker, parties: Parties, room: Room) -> tuple[str, ...]:
    """What would let a job start that waits behind others."""
    before = ", ".join(sorted({keep.key for keep in seeker.kept.values()}))
    helps = (f"{before} starts or is deleted",)
    until = min((keep.until for keep in seeker.kept.values() if keep.until is not None), default=None)
    if until is None:
        return helps
    if not isinstance(find(seeker, room.never_lent(seeker.kept), parties, room), Placement):
        return helps
    return (*helps, f"a spec.maxRuntime with which it has left by {rfc3339(round(until))}")


def _look_again(waiting: Waiting, seeker: Seeker, due: Iterable[float | None]) -> Waiting:
    wake = min((at for at in (*due, seeker.locality.due) if at is not None), default=None)
    return Waiting(waiting.status, waiting.actions, wake)
