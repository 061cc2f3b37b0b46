"""Who gets which nodes: the jobs that wait, in the order of priority, then age.

Each is given, in this order: the nodes it has reserved already; nodes that are free; nodes that somebody leaves anyway; the
nodes of jobs of lower priority, if those help. One that gets nothing says why in numbers, and the free nodes of the domain
that it is nearest to filling are kept from younger jobs of its priority, so that a large job is not starved by small ones.
Jobs of lower priority may use them meanwhile: they can be asked to leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.model import rfc3339
from trainyard.api.names import plan_name
from trainyard.api.template import pod_spec
from trainyard.api.training_job import Pending, Reservation, TrainingJobStatus, Victim
from trainyard.cycle import actions as act
from trainyard.cycle.members import make_members, sample, summary, warnings
from trainyard.cycle.memory import Memory
from trainyard.cycle.room import Room
from trainyard.lifecycle import conditions, deadlines
from trainyard.lifecycle.decide import refuse
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.planner.place import Placement, Shortfall, place
from trainyard.planner.preempt import Candidate, preempt
from trainyard.planner.request import Request, request
from trainyard.topology.tree import Tree
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, Pod, Resources, Trial, Verdict, World
from trainyard.world.resources import pod_requests
from trainyard.world.selection import selection


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the queue decided for a job that waits. wake: when to look again if nothing happens."""

    status: TrainingJobStatus
    actions: tuple[act.Action, ...] = ()
    wake: float | None = None


def serve(
    world: World,
    jobs: Iterable[Job],
    gangs: Mapping[str, Gang],
    decisions: Mapping[str, Decision],
    room: Room,
    tree: Tree,
    now: float,
) -> dict[str, Waiting | Exception]:
    """Serve the queue. room is used up on the way; jobs whose decision is not to queue only take theirs from it.

    A job that cannot be served because of a bug of ours has the exception in its place.
    """
    everyone = list(jobs)
    _count_unmade(everyone, gangs, decisions, room)
    waiting = [job for job in everyone if decisions[job.uid].queue]
    served: dict[str, Waiting | Exception] = {}
    parties = Parties(
        tuple(everyone), gangs, decisions, _candidates(world, everyone, gangs, decisions), set(), Memory()
    )
    for job in sorted(waiting, key=lambda job: _turn(world, job, decisions[job.uid].status)):
        current = job.with_status(decisions[job.uid].status)
        try:
            barred = _gate(world, current, now)
            if barred is not None:
                _keep_reserved(world, current.with_status(barred.status), room, now)
            served[job.uid] = barred or _serve_one(world, tree, current, parties, room, now)
        except Exception as error:
            served[job.uid] = error
    return served


def _turn(world: World, job: Job, status: TrainingJobStatus) -> tuple[int, float, str, str]:
    assert job.spec is not None
    age = status.queued_at if status.queued_at is not None else job.created
    return (-world.priority(job.spec.priority_class_name), age, job.namespace, job.name)


def _count_unmade(
    jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision], room: Room
) -> None:
    """Members of started attempts whose pods are still to be made have their room already."""
    for job in jobs:
        reservation = decisions[job.uid].status.reservation
        if job.spec is None or reservation is None or decisions[job.uid].queue:
            continue
        missing = [seat.rank for seat in gangs[job.uid].seats if seat.pod is None]
        nodes = [reservation.nodes[rank] for rank in missing if rank < len(reservation.nodes)]
        room.take(nodes, pod_requests(pod_spec(job.spec.template)))


# What has to be true before a job may have nodes at all -------------------------------------------------------------------


def _gate(world: World, job: Job, now: float) -> Waiting | None:
    assert job.spec is not None
    status = job.status
    if world.namespace_leaving(job.namespace):
        without = job.with_status(status.but(reservation=None))
        return _wait(without, Reason.NAMESPACE_TERMINATING, f"namespace {job.namespace} is being deleted", (), now)
    priority = job.spec.priority_class_name
    if priority is not None and priority not in world.priority_classes:
        known = _names(world.priority_classes)
        message = f"spec.priorityClassName: there is no PriorityClass {priority}; the cluster has {known}"
        doubtful = conditions.put(
            status, ConditionType.ACCEPTED, False, Reason.PRIORITY_CLASS_NOT_FOUND, message, now, job.generation
        )
        unblock = (f"create PriorityClass {priority}",)
        return _wait(job.with_status(doubtful), Reason.PRIORITY_CLASS_NOT_FOUND, message, unblock, now)
    return _tried(world, job, now)


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "none"


def _tried(world: World, job: Job, now: float) -> Waiting | None:
    trial = world.trials.get(job.uid)
    if trial is None or trial.generation != job.generation:
        message = "the API server is asked whether it takes the pods"
        checking = _doubt(job, None, Reason.CHECKING, message, now)
        if checking.pending is None:
            checking = checking.but(pending=Pending(reason=Reason.CHECKING, message=message, since=now))
        return Waiting(checking, (_ask(world, job),))
    if trial.verdict is Verdict.REFUSED:
        refused = refuse(job, Reason(trial.reason), trial.message, now)
        return Waiting(refused.status, _told(job, Reason(trial.reason), trial.message))
    if trial.verdict is Verdict.WAIT:
        return _try_again(world, job, trial, now)
    return None


def _ask(world: World, job: Job) -> act.TryPod:
    return act.TryPod(job.uid, job.generation, sample(world, job))


def _try_again(world: World, job: Job, trial: Trial, now: float) -> Waiting:
    reason = Reason(trial.reason or Reason.API_REFUSES)
    doubtful = job.with_status(_doubt(job, False, reason, trial.message, now))
    due = trial.time + deadlines.TRY_AGAIN
    waiting = _wait(doubtful, reason, trial.message, (), now)
    actions = (*waiting.actions, _ask(world, job)) if now >= due else waiting.actions
    return Waiting(waiting.status, actions, due if now < due else now + deadlines.TRY_AGAIN)


def _doubt(job: Job, value: bool | None, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    return conditions.put(job.status, ConditionType.ACCEPTED, value, reason, message, now, job.generation)


# Nodes --------------------------------------------------------------------------------------------------------------------


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


def _candidates(
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
        usage = _usage(live)
        found.append(Candidate(uid=job.uid, key=job.key, priority=priority, started=status.started_at, usage=usage))
    return tuple(found)


def _usage(pods: Iterable[Pod]) -> Mapping[str, Resources]:
    usage: dict[str, dict[str, int]] = {}
    for pod in pods:
        at = usage.setdefault(place_of(pod), {})
        for name, amount in pod.requests.items():
            at[name] = at.get(name, 0) + amount
    return usage


def _serve_one(world: World, tree: Tree, job: Job, parties: Parties, room: Room, now: float) -> Waiting:
    assert job.spec is not None
    accepted = "the specification makes sense, and the API server takes its pods"
    job = job.with_status(
        conditions.put(job.status, ConditionType.ACCEPTED, True, Reason.VALID, accepted, now, job.generation)
    )
    if job.status.not_before is not None and now < job.status.not_before:
        return _back_off(job, now)
    seeker = _seeker(world, job, room)
    standing = _standing(world, seeker, room, now)
    if standing is not None:
        ready = room.holds(standing.nodes, seeker.request.demand)
        room.take(standing.nodes, seeker.request.requests)
        return _start(world, tree, job, standing.nodes, now) if ready else _await_victims(job, standing, parties, now)
    kept = frozenset(seeker.kept)
    found = _place(seeker, kept, parties, room)
    if isinstance(found, Placement):
        room.take(found.nodes, seeker.request.requests)
        return _start(world, tree, job, found.nodes, now)
    later = _place(seeker, kept, parties, room, soon=True)
    if isinstance(later, Placement):
        room.take(later.nodes, seeker.request.requests)
        return _reserve(job, later.nodes, _leaving(later.nodes, parties), parties, now)
    taken = _take(seeker, kept, parties, room, now) if seeker.preempts else None
    return taken if taken is not None else _stay(seeker, found, parties, room, now)


def _place(
    seeker: Seeker, kept: frozenset[str], parties: Parties, room: Room, soon: bool = False
) -> Placement | Shortfall:
    """Ask the planner, unless an equal was told the same. kept: nodes that the seeker may not have."""
    view = room.soon if soon else room.now
    question = ("soon" if soon else "now", room.version, parties.memory.wish(seeker.request), kept)

    def ask() -> Placement | Shortfall:
        supply = view.supply(seeker.request.demand)
        return place(supply.without(kept, "kept for others") if kept else supply, seeker.request)

    return parties.memory.recall(question, ask)


def _seeker(world: World, job: Job, room: Room) -> Seeker:
    assert job.spec is not None
    priority = world.priority(job.spec.priority_class_name)
    return Seeker(
        job=job,
        request=request(job.key, job.spec),
        priority=priority,
        preempts=_preempts(world, job),
        kept=room.kept_from(priority),
    )


def _preempts(world: World, job: Job) -> bool:
    assert job.spec is not None
    name = job.spec.priority_class_name
    if name is not None:
        found = world.priority_classes.get(name)
        return found is not None and found.preempts
    return next((c.preempts for c in world.priority_classes.values() if c.default), True)


def _standing(world: World, seeker: Seeker, room: Room, now: float) -> Reservation | None:
    """The job's reservation, if it still is for the next attempt, in time, and its nodes still are to be had."""
    reservation = seeker.job.status.reservation
    if reservation is None or reservation.attempt != seeker.job.status.attempt + 1 or now >= reservation.deadline:
        return None
    demands = selection(seeker.request.pod_spec, seeker.request.avoid)
    mine = [world.nodes.get(name) if name not in seeker.kept else None for name in reservation.nodes]
    good = all(node is not None and demands.admits(node) for node in mine)
    return reservation if good and room.holds(reservation.nodes, seeker.request.demand, soon=True) else None


def _keep_reserved(world: World, job: Job, room: Room, now: float) -> None:
    """A job that is barred for a moment (it was edited, or a new operator has the API server asked again) keeps the nodes that
    others already leave for it; the reservation's own deadline ends that."""
    if job.status.reservation is None:
        return
    seeker = _seeker(world, job, room)
    standing = _standing(world, seeker, room, now)
    if standing is not None:
        room.take(standing.nodes, seeker.request.requests)


def _leaving(nodes: Collection[str], parties: Parties) -> tuple[str, ...]:
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


def _take(seeker: Seeker, kept: frozenset[str], parties: Parties, room: Room, now: float) -> Waiting | None:
    """Take the nodes of jobs of lower priority, if that helps."""
    candidates = [candidate for candidate in parties.candidates if candidate.uid not in parties.claimed]
    wish = parties.memory.wish(seeker.request)
    found = parties.memory.recall(
        ("preempt", room.version, wish, kept, seeker.priority),
        lambda: preempt(room.soon, seeker.request, seeker.priority, candidates, kept),
    )
    if found is None:
        return None
    parties.claimed.update(found.victims)
    for candidate in candidates:
        if candidate.uid in found.victims:
            room.give(candidate.usage)
    room.take(found.placement.nodes, seeker.request.requests)
    victims = {*found.victims, *_leaving(found.placement.nodes, parties)}
    return _reserve(seeker.job, found.placement.nodes, victims, parties, now)


def _reserve(job: Job, nodes: tuple[str, ...], victims: Collection[str], parties: Parties, now: float) -> Waiting:
    named = tuple(
        Victim(namespace=other.namespace, name=other.name, uid=other.uid, attempt=other.status.attempt)
        for other in parties.jobs
        if other.uid in victims
    )
    graces = [other.spec.checkpoint.grace_seconds for other in parties.jobs if other.uid in victims and other.spec]
    # A victim has its grace to answer the request, and its pods have it once more when they are deleted.
    deadline = now + 2 * max(graces, default=0.0) + deadlines.RESERVATION
    reservation = Reservation(
        attempt=job.status.attempt + 1, nodes=nodes, victims=named, deadline=deadline, reason=Reason.WAITING_FOR_VICTIMS
    )
    return _await_victims(job.with_status(job.status.but(reservation=reservation)), reservation, parties, now)


def _await_victims(job: Job, reservation: Reservation, parties: Parties, now: float) -> Waiting:
    there = [victim for victim in reservation.victims if _still_there(victim, parties)]
    who = ", ".join(f"{victim.namespace}/{victim.name}" for victim in there) or "pods that are ending"
    message = f"{len(reservation.nodes)} nodes are reserved; {who} must leave them first"
    kept = job.status.but(reservation=reservation)
    waiting = _wait(job.with_status(kept), Reason.WAITING_FOR_VICTIMS, message, (), now, kept)
    return Waiting(waiting.status, waiting.actions, reservation.deadline)


def _still_there(victim: Victim, parties: Parties) -> bool:
    decision = parties.decisions.get(victim.uid)
    return decision is not None and decision.status.attempt == victim.attempt and decision.status.started_at is not None


def _start(world: World, tree: Tree, job: Job, nodes: tuple[str, ...], now: float) -> Waiting:
    """Open the next attempt: its number, its members and its nodes are recorded before anything of it is made."""
    assert job.spec is not None
    attempt = job.status.attempt + 1
    status = job.status.but(
        phase=Phase.STARTING,
        attempt=attempt,
        started_at=now,
        running_at=None,
        ready_nodes=0,
        pending=None,
        not_before=None,
        next_member=job.status.next_member + job.spec.nodes,
        reservation=Reservation(
            attempt=attempt, nodes=nodes, deadline=now + deadlines.START, reason=Reason.GANG_STARTED
        ),
    )
    status = conditions.without(status, ConditionType.CONTROLLED)  # it spoke of the launchers of an earlier attempt
    status = status.but(plan=summary(tree, job.with_status(status)))
    span = status.plan.span if status.plan is not None else ""
    message = f"attempt {attempt} starts on {len(nodes)} nodes within one {span}: {_short(nodes)}"
    if span == "cluster":
        message = f"attempt {attempt} starts on {len(nodes)} nodes across the cluster: {_short(nodes)}"
    status = conditions.put(status, ConditionType.PLACED, True, Reason.GANG_STARTED, message, now, job.generation)
    started = job.with_status(status)
    told = _told(job, Reason.GANG_STARTED, message, "Normal")
    doubts = [a for doubt in warnings(world, started) for a in _told(job, Reason.QUESTIONABLE_SETTINGS, doubt)]
    old = (act.DeletePlan(job.namespace, plan_name(job.name, attempt - 1)),) if attempt > 1 else ()
    return Waiting(status, (*make_members(world, tree, started, frozenset()), *told, *doubts, *old))


def _short(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= 8:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:4])}, ... {nodes[-1]}"


# Waiting ------------------------------------------------------------------------------------------------------------------


def _stay(seeker: Seeker, short: Shortfall, parties: Parties, room: Room, now: float) -> Waiting:
    job = seeker.job
    without = job.with_status(job.status.but(reservation=None))
    if seeker.kept and isinstance(_place(seeker, frozenset(), parties, room), Placement):
        older = ", ".join(sorted(set(seeker.kept.values())))
        message = f"{short.message}; {len(seeker.kept)} more are kept for {older}, which came first"
        return _wait(without, Reason.BEHIND_OTHERS, message, (f"{older} starts or is deleted",), now)
    if short.could_ever_fit:
        room.keep(seeker.priority, seeker.preempts, short.holds, job.key)
    # By what was asked for, not by what is free just now: the reason of a wait should not change with every pod that ends.
    reason = Reason.NO_DOMAIN_FITS if seeker.request.required else Reason.INSUFFICIENT_NODES
    return _wait(without, reason, short.message, short.unblock, now)


def _back_off(job: Job, now: float) -> Waiting:
    assert job.status.not_before is not None
    count = job.status.restarts.fruitless
    message = (
        f"{count} attempts in a row brought no new step; the next one is due at {rfc3339(round(job.status.not_before))}"
    )
    ended = conditions.find(job.status, ConditionType.RUNNING)
    if ended is not None and ended.message:
        message += f"; the last one: {ended.message}"
    waiting = _wait(job, Reason.BACKING_OFF, message, (), now)
    return Waiting(waiting.status, waiting.actions, job.status.not_before)


def _wait(
    job: Job,
    reason: Reason,
    message: str,
    unblock: tuple[str, ...],
    now: float,
    status: TrainingJobStatus | None = None,
) -> Waiting:
    status = status if status is not None else job.status
    before = status.pending
    same = before is not None and before.reason == reason
    since = before.since if same and before is not None else now
    pending = Pending(reason=reason, message=message, unblock=unblock, since=since)
    status = status.but(phase=Phase.PENDING, pending=pending)
    status = conditions.put(status, ConditionType.PLACED, False, reason, message, now, job.generation)
    return Waiting(status, () if same else _told(job, reason, message, "Normal"))


def _told(job: Job, reason: Reason, message: str, kind: str = "Warning") -> tuple[act.Action, ...]:
    return (act.Announce(job.namespace, job.name, job.uid, kind, reason, message),)
