"""Everybody whom a decision about nodes may concern: who wants some, who holds some, who leaves some."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trainyard.api.training_job import Victim
from trainyard.cycle.memory import Memory
from trainyard.cycle.room import Room
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.planner.preempt import Candidate
from trainyard.planner.request import Request, request
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, Pod, Resources, World


@dataclass(frozen=True, slots=True)
class Parties:
    """Everybody whom a decision about nodes may concern.

    claimed: uids of the victims chosen in this cycle. memory: what the planner said in it.
    """

    jobs: tuple[Job, ...]
    gangs: Mapping[str, Gang]
    decisions: Mapping[str, Decision]
    candidates: tuple[Candidate, ...]
    claimed: set[str]
    memory: Memory


@dataclass(frozen=True, slots=True)
class Seeker:
    """A job that wants nodes.

    kept: nodes it may not have, each with the key of the job for which they are kept.
    """

    job: Job
    request: Request
    priority: int
    preempts: bool
    kept: Mapping[str, str]


def seeker_of(world: World, job: Job, room: Room) -> Seeker:
    """What a job that waits wants, and what of the room it may not have."""
    assert job.spec is not None
    priority = world.priority(job.spec.priority_class_name)
    return Seeker(
        job=job,
        request=request(job.key, job.spec),
        priority=priority,
        preempts=preempts(world, job),
        kept=room.kept_from(priority),
    )


def preempts(world: World, job: Job) -> bool:
    """Whether a job may take the nodes of others: its class, or the default one, may forbid it."""
    assert job.spec is not None
    name = job.spec.priority_class_name
    if name is not None:
        found = world.priority_classes.get(name)
        return found is not None and found.preempts
    return next((c.preempts for c in world.priority_classes.values() if c.default), True)


def candidates(
    world: World, jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision]
) -> tuple[Candidate, ...]:
    """The jobs that could be asked to leave: they hold nodes, and nobody has asked them yet."""
    found = []
    for job in jobs:
        status = decisions[job.uid].status
        if job.spec is None or job.deleted is not None or status.started_at is None:
            continue
        if status.stop is not None or status.ending is not None:
            continue
        live = [pod for pod in gangs[job.uid].pods if pod.live]
        named = job.spec.priority_class_name
        if named is None or named in world.priority_classes:
            priority = world.priority(named)
        else:  # the class was deleted; the pods keep what it gave them
            priority = max((pod.priority for pod in live), default=0)
        usage = usage_of(live)
        found.append(Candidate(uid=job.uid, key=job.key, priority=priority, started=status.started_at, usage=usage))
    return tuple(found)


def usage_of(pods: Iterable[Pod]) -> Mapping[str, Resources]:
    """What pods take, by node."""
    usage: dict[str, dict[str, int]] = {}
    for pod in pods:
        at = usage.setdefault(place_of(pod), {})
        for name, amount in pod.requests.items():
            at[name] = at.get(name, 0) + amount
    return usage


def leaving(nodes: Collection[str], parties: Parties) -> tuple[str, ...]:
    """Uids of the jobs that leave these nodes anyway, those included that this cycle chose to."""
    wanted = frozenset(nodes)
    found = []
    for job in parties.jobs:
        status = parties.decisions[job.uid].status
        if status.stop is None and status.ending is None and job.uid not in parties.claimed:
            continue
        if any(place_of(pod) in wanted and pod.live for pod in parties.gangs[job.uid].pods):
            found.append(job.uid)
    return tuple(found)


def still_there(victim: Victim, parties: Parties) -> bool:
    """Whether the attempt that has to leave is still under way."""
    decision = parties.decisions.get(victim.uid)
    return decision is not None and decision.status.attempt == victim.attempt and decision.status.started_at is not None
