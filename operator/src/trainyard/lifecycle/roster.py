"""Who plays in the current attempt: new members, numbered in rank order, and those that were kept from the attempt before.

A number is never used twice. So where all members are new the numbers follow from the next one; where some were kept, the status
names them, in runs of consecutive numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainyard.api.training_job import MemberRun, Roster
from trainyard.world.records import Job


def size(job: Job) -> int:
    """How many members the current attempt has: what was reserved for it, or its plan says. It may be fewer than the
    specification's where the job may run smaller."""
    if job.spec is None:
        return 0
    reserved, plan = job.status.reservation, job.status.plan
    if reserved is not None and reserved.attempt == job.status.attempt:
        return len(reserved.nodes)
    return plan.nodes if plan is not None else job.spec.nodes


def numbers(job: Job) -> Sequence[int]:
    """The members of the current attempt, in rank order."""
    roster, after = job.status.roster, job.status.next_member
    if roster is None:
        return range(after - size(job), after)
    return tuple(first for run in roster.members for first in range(run.first, run.first + run.count))


def first_new(job: Job) -> int:
    """From which number on the members of the current attempt were made for it."""
    roster = job.status.roster
    return roster.new_from if roster is not None else job.status.next_member - size(job)


def with_kept(
    kept: Mapping[int, int], nodes: int, next_member: int, plans: tuple[int, ...] = ()
) -> tuple[Roster | None, int]:
    """The roster of an attempt on so many nodes, and the next number after it. kept: members that stay, by node rank; plans: the
    attempts whose plans they mount."""
    if not kept:
        return None, next_member + nodes
    new = iter(range(next_member, next_member + nodes))
    playing = [kept[rank] if rank in kept else next(new) for rank in range(nodes)]
    return Roster(members=tuple(_runs(playing)), new_from=next_member, plans=plans), next_member + nodes - len(kept)


def _runs(playing: Iterable[int]) -> list[MemberRun]:
    found: list[MemberRun] = []
    for member in playing:
        last = found[-1] if found else None
        if last is not None and last.first + last.count == member:
            found[-1] = last.but(count=last.count + 1)
        else:
            found.append(MemberRun(first=member, count=1))
    return found
