"""The start of an attempt: recorded before anything of it is made."""

from __future__ import annotations

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.names import plan_name
from trainyard.api.training_job import Reservation
from trainyard.cycle import actions as act
from trainyard.cycle.members import make_members, summary, warnings
from trainyard.cycle.waiting import Waiting, told
from trainyard.lifecycle import conditions, deadlines
from trainyard.topology.tree import Tree
from trainyard.world.records import Job, World


def start(world: World, tree: Tree, job: Job, nodes: tuple[str, ...], now: float) -> Waiting:
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
    news = told(job, Reason.GANG_STARTED, message, "Normal")
    doubts = [a for doubt in warnings(world, started) for a in told(job, Reason.QUESTIONABLE_SETTINGS, doubt)]
    old = (act.DeletePlan(job.namespace, plan_name(job.name, attempt - 1)),) if attempt > 1 else ()
    return Waiting(status, (*make_members(world, tree, started, frozenset()), *news, *doubts, *old))


def _short(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= 8:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:4])}, ... {nodes[-1]}"
