"""Everybody whom a decision about nodes may concern: who wants some, who holds some, who leaves some."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus, Victim
from trainyard.cycle.budget import FORECASTS, HINTS, Budget
from trainyard.cycle.locality import Locality, locality
from trainyard.cycle.memory import Memory
from trainyard.cycle.outlook import View
from trainyard.cycle.room import Kept, Room
from trainyard.cycle.wishes import wished
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.lifecycle.unfit import avoided
from trainyard.planner.forecast import End
from trainyard.planner.preempt import Candidate
from trainyard.planner.request import Request, request
from trainyard.render.pod import GRACE_MARGIN_SECONDS
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, Resources, World


@dataclass(frozen=True, slots=True)
class Parties:
    """Everybody whom a decision about nodes may concern.

    claimed: uids of the victims chosen in this cycle. memory: what the planner said in it. ends: when those who said how long
    they run leave at the latest, and what that frees. view: what is known of the network. forecasts, hints:
    how many more this cycle makes.
    """

    jobs: tuple[Job, ...]
    gangs: Mapping[str, Gang]
    decisions: Mapping[str, Decision]
    view: View
    candidates: tuple[Candidate, ...]
    ends: tuple[End, ...] = ()
    forecasts: Budget = field(default_factory=lambda: Budget(FORECASTS))
    hints: Budget = field(default_factory=lambda: Budget(HINTS))
    claimed: set[str] = field(default_factory=set)
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class Seeker:
    """A job that wants nodes.

    kept: nodes it may not have, each with what it is kept for; firm: those of them that it may not have either although it says
    how long it runs. fewest: members with which it would start rather than wait. locality: how far it may spread now.
    doubtful: nodes on which it failed lately.
    """

    job: Job
    request: Request
    priority: int
    preempts: bool
    kept: Kept
    firm: Kept
    fewest: int
    locality: Locality
    doubtful: frozenset[str] = frozenset()


def seeker_of(world: World, job: Job, room: Room, now: float, near: Collection[str] = ()) -> Seeker:
    """What a job wants on the network that most of these nodes are on; where none are given, on that with most nodes."""
    found = seekers_of(world, job, room, now)
    wishes = wished(room.now.inventory, world.fabrics, job).wishes
    return max(zip(wishes, found, strict=True), key=lambda one: one[0].holds(near))[1]


def seekers_of(world: World, job: Job, room: Room, now: float) -> tuple[Seeker, ...]:
    """What a job that waits wants, and what of the room it may not have: once for each network that its gang may be on, that with
    most nodes first."""
    assert job.spec is not None
    priority = world.priority(job.spec.priority_class_name)
    where = locality(job.spec.placement, job.status, now)
    kept, gone_by = room.kept_from(job.key, priority), gone_by_if_started(job, now)
    plain = replace(request(job.key, job.spec), level=where.level, required=where.required)
    first = Seeker(
        job=job,
        request=plain,
        priority=priority,
        preempts=preempts(world, job),
        kept=kept,
        firm=kept if gone_by is None else room.kept_from(job.key, priority, gone_by),
        fewest=job.spec.fewest_nodes,
        locality=where,
        doubtful=doubtful(job.status, now),
    )
    wishes = wished(room.now.inventory, world.fabrics, job).wishes
    out = avoided(job.status, now)
    return tuple(
        replace(first, request=replace(plain, requests=wish.requests, among=wish.among, unfit=out)) for wish in wishes
    )


def least(seekers: Collection[Seeker]) -> Resources:
    """What a member asks on whichever network it is."""
    asked = [seeker.request.requests for seeker in seekers]
    return {name: min(of.get(name, 0) for of in asked) for name in asked[0]}


def doubtful(status: TrainingJobStatus, now: float) -> frozenset[str]:
    """Nodes on which a job failed first lately."""
    failure = status.last_failure
    if failure is None or not failure.node or failure.time is None or now - failure.time > deadlines.DOUBTFUL:
        return frozenset()
    return frozenset({failure.node})


def leaving_takes(spec: TrainingJobSpec) -> float:
    """How long it takes at most from the request to leave until its nodes are free, in seconds: the time to answer the request,
    and once more when the pods are deleted."""
    return 2 * spec.checkpoint.grace_seconds + GRACE_MARGIN_SECONDS


def gone_by_if_started(job: Job, now: float) -> float | None:
    """When a job that starts now will have left, by its maxRuntime; None where it has none."""
    assert job.spec is not None
    limit = job.spec.max_runtime_seconds
    if limit is None:
        return None
    return now + deadlines.USUAL_START + limit - job.status.ran_seconds + leaving_takes(job.spec)


def ends(jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision]) -> tuple[End, ...]:
    """When those who train leave at the latest, and what that frees.

    Only where it is certain: a job that does not say maxRuntime is taken to train for ever, and so is one that has not begun to
    train, since its time does not run yet. Those who leave already are counted elsewhere.
    """
    found: list[End] = []
    for job in jobs:
        status = decisions[job.uid].status
        if job.spec is None or job.deleted is not None or status.running_at is None or status.started_at is None:
            continue
        limit = job.spec.max_runtime_seconds
        times = [status.running_at + limit - status.ran_seconds] if limit is not None else []
        times += [status.leave_by] if status.leave_by is not None else []
        if times and status.stop is None and status.ending is None:
            live = [(place_of(pod), pod.requests) for pod in gangs[job.uid].pods if pod.live]
            found.append((min(times) + leaving_takes(job.spec), usage_of(live)))
    return tuple(found)


def preempts(world: World, job: Job) -> bool:
    """Whether a job may take the nodes of others: its class, or the default one, may forbid it."""
    assert job.spec is not None
    name = job.spec.priority_class_name
    if name is not None:
        found = world.priority_classes.get(name)
        return found is not None and found.preempts
    return next((c.preempts for c in world.priority_classes.values() if c.default), True)


def usage_of(taken: Iterable[tuple[str, Resources]]) -> Mapping[str, Resources]:
    """The sum of what is taken, by node."""
    usage: dict[str, dict[str, int]] = {}
    for node, requests in taken:
        at = usage.setdefault(node, {})
        for name, amount in requests.items():
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
