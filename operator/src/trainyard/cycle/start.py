"""The start of an attempt: recorded before anything of it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.model import rfc3339
from trainyard.api.training_job import PlanQuality, Reservation
from trainyard.cycle.members import make_members, network_of, obstacle, over_sockets, summary, warnings
from trainyard.cycle.parties import leaving_takes
from trainyard.cycle.reuse import Reused, plans_left, plans_mounted
from trainyard.cycle.waiting import Waiting, told, wait
from trainyard.lifecycle import conditions, deadlines, unfit
from trainyard.lifecycle.roster import with_kept
from trainyard.planner.place import CLUSTER
from trainyard.topology.tree import Tree
from trainyard.world.records import Job, World


@dataclass(frozen=True, slots=True)
class Chosen:
    """What an attempt starts on: nodes in rank order, and spares to be held ready beside it. lent_until: when the first of the
    nodes is needed by somebody else; None where none is. said: how they were found, where that is worth
    saying. quality: how good the choice is. again: pods of the last attempt that play in this one, by node rank."""

    nodes: tuple[str, ...]
    spares: tuple[str, ...] = ()
    lent_until: float | None = None
    said: str = ""
    quality: PlanQuality | None = None
    again: Reused = field(default_factory=dict)

    @classmethod
    def reserved(cls, reservation: Reservation, spares: tuple[str, ...], again: Reused) -> Chosen:
        """What was reserved. spares: those that still can be had."""
        return cls(reservation.nodes, spares, None, reservation.message, reservation.quality, again)


def start(world: World, tree: Tree, job: Job, chosen: Chosen, now: float) -> Waiting:
    """Open the next attempt: its number, its members and its nodes are recorded before anything of it is made."""
    assert job.spec is not None
    nodes, lent = chosen.nodes, chosen.lent_until
    attempt = job.status.attempt + 1
    members = {rank: pod.membership.member for rank, pod in chosen.again.items() if pod.membership is not None}
    roster, next_member = with_kept(members, len(nodes), job.status.next_member, plans_mounted(chosen.again))
    status = job.status.but(
        phase=Phase.STARTING,
        attempt=attempt,
        started_at=now,
        running_at=None,
        ready_nodes=0,
        pending=None,
        not_before=None,
        former=None,
        waiting_since=None,
        plan=None,
        leave_by=lent - leaving_takes(job.spec) if lent is not None else None,
        roster=roster,
        next_member=next_member,
        reservation=Reservation(
            attempt=attempt,
            nodes=nodes,
            deadline=now + deadlines.START,
            reason=Reason.GANG_STARTED,
            spares=chosen.spares,
            quality=chosen.quality,
        ),
    )
    status = unfit.forget(status, now)
    status = conditions.without(status, ConditionType.CONTROLLED)  # it spoke of the launchers of an earlier attempt
    status = conditions.without(status, ConditionType.TOPOLOGY_CHANGED)  # and this one of its plan
    plan = summary(world, tree, job.with_status(status))
    status = status.but(plan=plan)
    message = f"attempt {attempt} starts {_on(job.spec.nodes, nodes, plan.span)}"
    message += _after_preflight(job)
    if chosen.said:
        message += f"; {chosen.said}"
    if chosen.again:
        message += f"; {len(chosen.again)} of {len(nodes)} pods are kept"
    if chosen.spares:
        message += f"; held ready: {_short(chosen.spares)}"
    if lent is not None:
        message += f"; it leaves by {rfc3339(round(lent))}, when the nodes are needed by others"
    status = conditions.put(status, ConditionType.PLACED, True, Reason.GANG_STARTED, message, now, job.generation)
    opened = job.with_status(status)
    problem = obstacle(world, opened)
    if problem:
        without = job.with_status(job.status.but(reservation=None))
        return wait(without, Reason.NETWORK_UNCLEAR, problem, (), now)
    status = status.but(network=network_of(world, opened))
    off = over_sockets(world, opened)
    if off:
        by_user = Reason.RDMA_DISABLED_BY_USER
        status = conditions.put(status, ConditionType.RDMA_DISABLED, True, by_user, off, now, job.generation)
    else:
        status = conditions.without(status, ConditionType.RDMA_DISABLED)
    started = job.with_status(status)
    news = told(job, Reason.GANG_STARTED, message, "Normal")
    doubts = [a for doubt in warnings(world, started) for a in told(job, Reason.QUESTIONABLE_SETTINGS, doubt)]
    left = plans_left(job.status, chosen.again)
    return Waiting(status, (*news, *doubts, *make_members(world, tree, started, chosen.again.keys(), left)))


def _after_preflight(job: Job) -> str:
    """A gang that failed as a whole may well get the same nodes: then it says so."""
    failure = job.status.last_failure
    if failure is None or failure.attempt != job.status.attempt or failure.node:
        return ""
    if failure.reason not in (Reason.PREFLIGHT_FAILED, Reason.NODES_UNLIKE):
        return ""
    return f"; attempt {failure.attempt} failed before its first step, and no node was to blame"


def _on(wanted: int, nodes: tuple[str, ...], span: str) -> str:
    """Where a gang starts. Where several members share a node, how many nodes that makes."""
    hosts = tuple(dict.fromkeys(nodes))
    many = f"{len(nodes)}" if len(nodes) == wanted else f"{len(nodes)} of {wanted}"
    members = f"on {many} nodes" if len(hosts) == len(nodes) else f"with {many} members on {len(hosts)} nodes"
    return f"{members} {'across the cluster' if span == CLUSTER else f'within one {span}'}: {_short(hosts)}"


def _short(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= 8:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:4])}, ... {nodes[-1]}"
