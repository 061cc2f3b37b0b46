"""What becomes of one job, and what would start it: asked of the whole queue, since who is ahead may have the nodes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainyard.api.conditions import Phase
from trainyard.api.training_job import Reservation, TrainingJobStatus, Within
from trainyard.cli.turns import Turns, turns, without
from trainyard.planner.advice.ways import Case, Kind, Way
from trainyard.planner.explain import Explanation, explain
from trainyard.topology.tree import Tree
from trainyard.world.records import Job, Node, Resources, World


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
    it; None where it starts. passed: ways that would start it if nobody was ahead; those who are would have the nodes.
    """

    job: Job
    tree: Tree
    status: TrainingJobStatus
    priority: int
    ahead: tuple[Ahead, ...]
    case: Case | None = None
    explanation: Explanation | None = None
    passed: tuple[Way, ...] = ()

    @property
    def starts(self) -> Reservation | None:
        """The nodes of the attempt that would start now; None where none would."""
        return self.status.reservation if self.status.phase is Phase.STARTING else None


def ask(world: World, job: Job, now: float) -> Answer:
    """What becomes of a job that waits (`turns.waits`), or would be new. It need not be in the world."""
    queue = turns(replace(world, jobs={**world.jobs, job.uid: job}), now)
    ahead = queue.ahead(job)
    served = queue.serve(queue.room(), queue.jobs)
    answer = Answer(
        job=job,
        tree=queue.inventory.tree,
        status=served[job.uid],
        priority=queue.priority(job),
        ahead=tuple(Ahead(one.key, one.spec.nodes if one.spec else 0, queue.priority(one)) for one in ahead),
    )
    if answer.starts is not None:
        return answer
    case = queue.case(job)
    found, victims = explain(case), _victims(served)
    sure = tuple(way for way in found.ways if not ahead or _holds(queue, case, job, way, victims))
    passed = tuple(way for way in found.ways if way not in sure)
    return replace(answer, case=case, explanation=replace(found, ways=sure), passed=passed)


def _holds(queue: Turns, case: Case, job: Job, way: Way, victims: frozenset[str]) -> bool:
    """Whether the job would start in its turn, those ahead having had theirs on the nodes that a way makes free.

    victims: whom jobs of the queue take nodes from as it is.
    """
    if way.kind not in _OF_OTHERS:
        return True
    if way.kind in (Kind.UNCORDON, Kind.READY):
        changed = {name: _well(queue.world.nodes[name]) for name in way.nodes}
        queue = turns(replace(queue.world, nodes={**queue.world.nodes, **changed}), queue.now)
    if way.within is not None:
        queue = _relaxed(queue, job, way.within)
    room = queue.room()
    for usage in _freed(case, way):
        room.now.give(usage)
        room.soon.give(usage)
    after = queue.serve(room, without(queue.jobs, way.jobs))
    # Whom another job takes its nodes from then, comes back into the queue before this one.
    return after[job.uid].phase is Phase.STARTING and _victims(after) <= victims


def _victims(statuses: Mapping[str, TrainingJobStatus]) -> frozenset[str]:
    """Whom jobs of the queue take nodes from."""
    reserved = (status.reservation for status in statuses.values())
    return frozenset(victim.uid for one in reserved if one is not None for victim in one.victims)


_OF_OTHERS = frozenset({Kind.YIELD, Kind.WAIT, Kind.FREE, Kind.UNCORDON, Kind.READY})
"""The ways that give room to everybody. The others change the job alone."""


def _freed(case: Case, way: Way) -> Sequence[dict[str, Resources]]:
    """What becomes free, by node."""
    match way.kind:
        case Kind.YIELD:
            whole = [dict(c.usage) for c in case.candidates if c.uid in way.jobs]
            part = [
                {n: c.usage[n] for n in way.nodes if n in c.usage} for c in case.candidates if c.uid not in way.jobs
            ]
            return [*whole, *part]
        case Kind.WAIT:
            return [dict(usage) for time, usage in case.ends if time <= way.time]
        case Kind.FREE:
            return [{name: _used(case, name) for name in way.nodes}]
        case _:
            return []


def _used(case: Case, name: str) -> dict[str, int]:
    """What others take of a node."""
    free = case.room.free(name)
    has = case.room.inventory.nodes[name].allocatable
    return {resource: max(0, amount - free.get(resource, 0)) for resource, amount in has.items()}


def _well(node: Node) -> Node:
    """A node that takes pods, without the taints by which the control plane says that it does not."""
    taints = tuple(taint for taint in node.taints if not taint.key.startswith("node.kubernetes.io/"))
    return replace(node, ready=True, unschedulable=False, taints=taints)


def _relaxed(queue: Turns, job: Job, level: str) -> Turns:
    """The same with another level required for a job; "": none."""
    assert job.spec is not None
    placement = job.spec.placement
    wished = placement.within.level if placement.within is not None else level
    within = Within(level=level, required=True) if level else Within(level=wished)
    changed = replace(job, spec=job.spec.but(placement=placement.but(within=within)))
    return turns(replace(queue.world, jobs={**queue.world.jobs, job.uid: changed}), queue.now)
