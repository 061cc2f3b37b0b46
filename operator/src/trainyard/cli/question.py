"""What the queue would say of one job now, and why: the operator's own rules on the world as the command line reads it.

What only the operator knows is taken to be as the statuses say: attempts under way go on, and the API server takes the pods that
it has not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.training_job import Reservation, TrainingJobStatus
from trainyard.cycle.candidates import candidates
from trainyard.cycle.outlook import View, site_of
from trainyard.cycle.parties import ends, leaving_takes, seeker_of
from trainyard.cycle.queue import serve
from trainyard.cycle.room import Keep, Room, rooms
from trainyard.lifecycle import conditions, deadlines
from trainyard.lifecycle.decide import decide
from trainyard.lifecycle.gang import Gang, is_open, muster
from trainyard.lifecycle.needs import Decision, Surroundings
from trainyard.planner.explain import Explanation, explain
from trainyard.planner.links import accelerator_most
from trainyard.planner.parallelism import estimate, model_of_job
from trainyard.planner.ways import Case, Pace
from trainyard.topology.tree import Tree
from trainyard.world.inventory import Inventory
from trainyard.world.records import Job, Pod, Trial, Verdict, World


@dataclass(frozen=True, slots=True)
class Ahead:
    """A job that waits and comes first. members: that it asks for; priority: of its class."""

    key: str
    members: int
    priority: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the queue says.

    status: of the job, as the operator would write it; reservation: the nodes that it starts on, or that others leave for it.
    ahead: who comes first, in the order of the queue. case, explanation: what it is judged by, why it waits and what would start
    it; None where it starts.
    """

    job: Job
    tree: Tree
    status: TrainingJobStatus
    priority: int
    ahead: tuple[Ahead, ...]
    case: Case | None
    explanation: Explanation | None

    @property
    def starts(self) -> Reservation | None:
        """The nodes of the attempt that would start now; None where none would."""
        return self.status.reservation if self.status.phase is Phase.STARTING else None


def waits(job: Job) -> bool:
    """Whether a job is one that the queue decides about."""
    ended = job.status.phase is not None and job.status.phase.ended
    return job.spec is not None and job.deleted is None and not ended and not is_open(job) and not job.spec.suspend


def ask(world: World, job: Job, now: float) -> Answer:
    """What becomes of a job that waits (`waits`), or would be new. It need not be in the world."""
    job = replace(job, held=True)
    everyone = {**world.jobs, job.uid: job}
    world = replace(world, jobs=everyone, trials={uid: _trial(one, now) for uid, one in everyone.items()})
    inventory = Inventory.of(world)
    gangs = _gangs(world, now)
    decisions = {uid: _decision(world, one, gangs[uid], now) for uid, one in everyone.items()}
    judged = sorted(everyone.values(), key=lambda one: (one.created, one.namespace, one.name))
    served = serve(world, judged, gangs, decisions, _rooms(inventory, world, gangs, decisions), inventory.tree, now)
    outcome = served[job.uid]
    if isinstance(outcome, Exception):
        raise outcome
    ahead = _ahead(world, judged, decisions, job)
    starts = outcome.status.phase is Phase.STARTING
    case = None if starts else _case(world, inventory, job, ahead, judged, gangs, decisions, now)
    return Answer(
        job=job,
        tree=inventory.tree,
        status=outcome.status,
        priority=_priority(world, job),
        ahead=tuple(Ahead(o.key, o.spec.nodes if o.spec else 0, _priority(world, o)) for o in ahead),
        case=case,
        explanation=explain(case) if case is not None else None,
    )


def pace_of(world: World, tree: Tree, job: Job) -> Pace:
    """How long a step of a job would take on nodes, or its communication alone where nothing is known of its model."""
    spec = job.spec
    assert spec is not None
    model = model_of_job(spec)
    known = model is not None and accelerator_most([node.labels for node in world.nodes.values()]) is not None

    def seconds(nodes: Sequence[str]) -> float:
        found = estimate(spec, site_of(world, tree, job, nodes))
        if found.compute_seconds is None or not known:
            return sum(found.prediction.seconds.values())
        return found.prediction.step(found.compute_seconds).seconds

    return Pace(seconds, alone=not known)


def _case(
    world: World,
    inventory: Inventory,
    job: Job,
    ahead: Iterable[Job],
    judged: Iterable[Job],
    gangs: dict[str, Gang],
    decisions: dict[str, Decision],
    now: float,
) -> Case:
    """The job's case when those ahead of it have had their turn."""
    before = {one.uid for one in ahead}
    holding = [one for one in judged if one.uid in before or not decisions[one.uid].queue]
    room = _rooms(inventory, world, gangs, decisions)
    served = serve(world, holding, gangs, decisions, room, inventory.tree, now)
    taken = {
        victim.uid
        for outcome in served.values()
        if not isinstance(outcome, Exception) and outcome.status.reservation is not None
        for victim in outcome.status.reservation.victims
    }
    seeker = seeker_of(world, job.with_status(decisions[job.uid].status), room, now)
    return Case(
        room=room.soon,
        request=seeker.request,
        priority=seeker.priority,
        candidates=[one for one in candidates(world, holding, gangs, decisions, now) if one.uid not in taken],
        without={node: keep.key for node, keep in seeker.kept.items()},
        ends=ends(holding, gangs, decisions),
        now=now,
        lent=_lent(job, seeker.kept, now),
        pace=pace_of(world, inventory.tree, job),
        outlook=View(world, inventory.tree, tuple(holding), gangs).outlook(seeker.doubtful),
    )


def _lent(job: Job, kept: Mapping[str, Keep], now: float) -> dict[str, float]:
    """With which maxRuntime at most the job may have nodes that are kept for others until a certain time."""
    assert job.spec is not None
    takes = deadlines.USUAL_START + leaving_takes(job.spec) - job.status.ran_seconds
    found = {node: keep.until - now - takes for node, keep in kept.items() if keep.until is not None}
    return {node: longest for node, longest in found.items() if longest > 0}


def _rooms(inventory: Inventory, world: World, gangs: dict[str, Gang], decisions: dict[str, Decision]) -> Room:
    """What is free, and what will be when all that is leaving has left."""
    leaving = {pod.uid for pod in world.pods.values() if pod.deleted is not None}
    for uid, gang in gangs.items():
        status = decisions[uid].status
        if world.jobs[uid].deleted is not None or status.stop is not None or status.ending is not None:
            leaving.update(pod.uid for pod in gang.pods)
        leaving.update(pod.uid for pod in gang.others)
    return rooms(inventory, world, leaving)


def _trial(job: Job, now: float) -> Trial:
    """What the API server last said of the job's pods, as far as its condition tells."""
    accepted = conditions.find(job.status, ConditionType.ACCEPTED)
    if accepted is not None and accepted.status == "False" and accepted.observed_generation == job.generation:
        reason = accepted.reason if accepted.reason in set(Reason) else Reason.API_REFUSES
        return Trial(job.generation, Verdict.WAIT, now, str(reason), accepted.message)
    return Trial(job.generation, Verdict.ACCEPTED, now)


def _gangs(world: World, now: float) -> dict[str, Gang]:
    pods: dict[str, list[Pod]] = {uid: [] for uid in world.jobs}
    for pod in world.pods.values():
        if pod.membership is not None and pod.membership.job_uid in pods:
            pods[pod.membership.job_uid].append(pod)
    return {uid: muster(job, pods[uid], {}, world.nodes, now) for uid, job in world.jobs.items()}


def _decision(world: World, job: Job, gang: Gang, now: float) -> Decision:
    """An attempt under way is left as it is: what its launchers say is not known here."""
    if is_open(job):
        return Decision(job.status)
    job = replace(job, held=True)  # one that is not yet would be at once
    return decide(job, gang, Surroundings(leaving=world.namespace_leaving(job.namespace)), now)


def _ahead(world: World, jobs: Iterable[Job], decisions: dict[str, Decision], job: Job) -> list[Job]:
    """Who waits and has its turn before a job."""

    def turn(one: Job) -> tuple[int, float, str, str]:
        queued = decisions[one.uid].status.queued_at
        return -_priority(world, one), one.created if queued is None else queued, one.namespace, one.name

    waiting = [one for one in jobs if decisions[one.uid].queue]
    return [one for one in sorted(waiting, key=turn) if turn(one) < turn(job)]


def _priority(world: World, job: Job) -> int:
    return world.priority(job.spec.priority_class_name if job.spec is not None else None)
