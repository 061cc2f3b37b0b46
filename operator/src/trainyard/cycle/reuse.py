"""Pods of the attempt that ended, in which the next may begin: which, as whom, and the room that they hold for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainyard.api.training_job import TrainingJobStatus
from trainyard.cycle.parties import Parties, usage_of
from trainyard.cycle.room import Room
from trainyard.lifecycle.gang import Gang, is_open
from trainyard.network.derive import settings_for
from trainyard.render.pod import forms
from trainyard.world.capacity import place_of
from trainyard.world.demand import Demand
from trainyard.world.records import Job, Pod, World

Reused = Mapping[int, Pod]
"""By node rank, the pod that plays it again."""


def misfits(world: World, job: Job, gang: Gang) -> frozenset[str]:
    """Uids of pods that would be made otherwise now: another image, other settings, another operator. They are replaced."""
    status, pods = job.status, gang.others
    if job.spec is None or job.deleted is not None or is_open(job) or status.former is None:
        return frozenset()
    nodes = status.reservation.nodes if status.reservation is not None else status.former.nodes
    return frozenset(pod.uid for pod in _misfits(world, job, nodes, pods))


def reused(world: World, job: Job, nodes: Sequence[str], parties: Parties) -> Reused:
    """Who is kept for an attempt on these nodes, in rank order. Whoever can keeps its rank; where ranks went, the order."""
    kept = parties.decisions[job.uid].kept
    if not kept:
        return {}
    other = {pod.uid for pod in _misfits(world, job, nodes, kept)}
    left: dict[
        str, list[tuple[int, Pod]]
    ] = {}  # by node, so that a gang that moved is not looked through for each of its ranks
    for pod in kept:
        if pod.uid not in other and pod.membership is not None:
            left.setdefault(pod.membership.node, []).append((pod.membership.rank, pod))
    found: dict[int, Pod] = {}
    for exact in (True, False):
        for rank, node in enumerate(nodes):
            here = left.get(node, [])
            one = next((one for one in here if not exact or one[0] == rank), None)
            if rank not in found and one is not None:
                found[rank] = one[1]
                here.remove(one)
    return found


def room_with(room: Room, again: Reused, nodes: Sequence[str], demand: Demand) -> bool:
    """Whether these nodes have room for a member each, with what is held for it already."""
    if not again:
        return room.holds(nodes, demand)
    view = room.now.fork()
    view.give(held_by(again))
    return view.holds(nodes, demand)


def held_by(again: Reused) -> Mapping[str, Mapping[str, int]]:
    """What the pods take that play again, by node."""
    return usage_of([(place_of(pod), pod.requests) for pod in again.values()])


def plans_mounted(again: Reused) -> tuple[int, ...]:
    """The attempts whose plans the pods mount that play again."""
    return tuple(sorted({pod.membership.made for pod in again.values() if pod.membership is not None}))


def plans_left(status: TrainingJobStatus, again: Reused) -> tuple[int, ...]:
    """The attempts whose plans nobody mounts any more when the attempt after this one begins; the pods that did may be gone."""
    before = status.roster.plans if status.roster is not None else ()
    return tuple(sorted({status.attempt, *before} - {0, *plans_mounted(again)}))


def plans_over(status: TrainingJobStatus) -> tuple[int, ...]:
    """Of an attempt that was opened, the one before whose plan nobody mounts any more: its deletion may have failed."""
    mounted = status.roster.plans if status.roster is not None else ()
    return tuple({status.attempt - 1} - {0, *mounted})


def _misfits(world: World, job: Job, nodes: Iterable[str], pods: Iterable[Pod]) -> list[Pod]:
    assert job.spec is not None
    known = [world.nodes[name] for name in dict.fromkeys(nodes) if name in world.nodes]
    form = forms(job, settings_for(job.spec, known, world.fabrics), world.launcher_image)
    return [pod for pod in pods if pod.membership is not None and pod.membership.form != form(pod.membership.node)]
