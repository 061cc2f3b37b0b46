"""The queue as the command line sees it: the operator's own rules on a world that was read once.

What only the operator knows is taken to be as the statuses say: attempts under way go on, and the API server takes the pods that
it has not refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainyard.api.conditions import ConditionType, Reason
from trainyard.api.training_job import TrainingJobStatus
from trainyard.cycle.candidates import candidates
from trainyard.cycle.outlook import View, site_of
from trainyard.cycle.parties import ends, leaving_takes, seeker_of
from trainyard.cycle.queue import serve, turn
from trainyard.cycle.room import Keep, Room, rooms
from trainyard.lifecycle import conditions, deadlines
from trainyard.lifecycle.decide import decide
from trainyard.lifecycle.gang import Gang, is_open, muster
from trainyard.lifecycle.needs import Decision, Surroundings
from trainyard.planner.advice.ways import Case, Pace
from trainyard.planner.links import accelerator_most
from trainyard.planner.parallelism import estimate, model_of_job
from trainyard.topology.tree import Tree
from trainyard.world.inventory import Inventory
from trainyard.world.observed import fresh
from trainyard.world.records import Job, Pod, Trial, Verdict, World

ACTING: Final = 300.0
"""How long it may take until somebody has done what is advised."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Everybody in the queue and on the nodes, and how the operator decides about each by itself. jobs: the oldest first."""

    world: World
    inventory: Inventory
    jobs: Sequence[Job]
    gangs: Mapping[str, Gang]
    decisions: Mapping[str, Decision]
    now: float

    def room(self) -> Room:
        """What is free, and what will be when all that is leaving has left."""
        leaving = {pod.uid for pod in self.world.pods.values() if pod.deleted is not None}
        for uid, gang in self.gangs.items():
            status = self.decisions[uid].status
            if self.world.jobs[uid].deleted is not None or status.stop is not None or status.ending is not None:
                leaving.update(pod.uid for pod in gang.pods)
            leaving.update(pod.uid for pod in gang.others)
        return rooms(self.inventory, self.world, leaving)

    def serve(self, room: Room, jobs: Sequence[Job]) -> dict[str, TrainingJobStatus]:
        """What becomes of some jobs when each has had its turn, by uid; of those that wait. room is used up on the way."""
        served = serve(self.world, jobs, self.gangs, self.decisions, room, self.inventory.tree, self.now)
        found = {}
        for uid, outcome in served.items():
            if isinstance(outcome, Exception):
                raise outcome
            found[uid] = outcome.status
        return found

    def ahead(self, job: Job) -> list[Job]:
        """Who waits and has its turn before a job, in this order."""

        def at(one: Job) -> tuple[int, float, str, str]:
            return turn(self.world, one, self.decisions[one.uid].status)

        waiting = [one for one in self.jobs if self.decisions[one.uid].queue]
        return [one for one in sorted(waiting, key=at) if at(one) < at(job)]

    def priority(self, job: Job) -> int:
        """Of a job's class."""
        return self.world.priority(job.spec.priority_class_name if job.spec is not None else None)

    def case(self, job: Job) -> Case:
        """What a job that waits is judged by, when those ahead of it have had their turn."""
        assert job.spec is not None
        before = {one.uid for one in self.ahead(job)}
        holding = [one for one in self.jobs if one.uid in before or not self.decisions[one.uid].queue]
        room = self.room()
        reserved = [status.reservation for status in self.serve(room, holding).values()]
        taken = {victim.uid for one in reserved if one is not None for victim in one.victims}
        seeker = seeker_of(self.world, job.with_status(self.decisions[job.uid].status), room, self.now)
        asked = candidates(self.world, holding, self.gangs, self.decisions, self.now)
        view = View(self.world, self.inventory.tree, tuple(holding), self.gangs)
        return Case(
            room=room.soon,
            request=seeker.request,
            priority=seeker.priority,
            candidates=[one for one in asked if one.uid not in taken],
            without={node: keep.key for node, keep in seeker.kept.items()},
            ends=ends(holding, self.gangs, self.decisions),
            now=self.now,
            pace=pace_of(self.world, self.inventory.tree, job),
            outlook=view.outlook(seeker.doubtful),
            lent=_lent(job, seeker.kept, self.now),
        )


def turns(world: World, now: float) -> Turns:
    """The queue of a world."""
    held = {uid: replace(job, held=True) for uid, job in world.jobs.items()}  # one that is not yet would be at once
    trials = {uid: _trial(job, now) for uid, job in held.items()}
    world = fresh(replace(world, jobs=held, trials=trials), now)
    gangs = _gangs(world, now)
    return Turns(
        world=world,
        inventory=Inventory.of(world),
        jobs=sorted(held.values(), key=lambda job: (job.created, job.namespace, job.name)),
        gangs=gangs,
        decisions={uid: _decision(world, job, gangs[uid], now) for uid, job in held.items()},
        now=now,
    )


def waits(job: Job) -> bool:
    """Whether a job is one that the queue decides about."""
    ended = job.status.phase is not None and job.status.phase.ended
    return job.spec is not None and job.deleted is None and not ended and not is_open(job) and not job.spec.suspend


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


def without(jobs: Sequence[Job], uids: Collection[str]) -> list[Job]:
    """The jobs that are left when some are gone."""
    return [job for job in jobs if job.uid not in uids]


def _lent(job: Job, kept: Mapping[str, Keep], now: float) -> dict[str, float]:
    """With which maxRuntime at most the job may have nodes that are kept for others until a certain time."""
    assert job.spec is not None
    takes = ACTING + deadlines.USUAL_START + leaving_takes(job.spec) - job.status.ran_seconds
    found = {node: keep.until - now - takes for node, keep in kept.items() if keep.until is not None}
    return {node: longest for node, longest in found.items() if longest > 0}


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
    return decide(job, gang, Surroundings(leaving=world.namespace_leaving(job.namespace)), now)
