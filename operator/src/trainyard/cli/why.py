"""What `kubectl trainyard why` prints: why a job waits and what would start it, or why it has the nodes that it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainyard.api.conditions import Phase
from trainyard.api.model import rfc3339
from trainyard.api.prose import count
from trainyard.api.training_job import PlanSummary
from trainyard.cli.layout import WIDTH, ago, page, table, wrapped
from trainyard.cli.question import Ahead, Answer
from trainyard.cli.ranks import ranks_table
from trainyard.cli.training import progress_lines, slow_lines, time_lines
from trainyard.planner import predict
from trainyard.planner.advice.ways import Way
from trainyard.planner.explain import Explanation, Verdict
from trainyard.planner.machines import GB
from trainyard.topology.tree import Tree
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, Pod

MOST_AHEAD = 8
"""How many of the jobs that come first are named."""


def waiting_page(answer: Answer, now: float, width: int = WIDTH) -> str:
    """The page of a job that waits."""
    parts = [_head(answer, now, width)]
    if answer.starts is not None:
        parts.append(iter(["Its turn has come: the operator would start it now."]))
    if answer.status.reservation is not None:
        parts.append(ranks_table(answer.tree, answer.status.reservation.nodes))
    elif answer.explanation is not None:
        parts += explanation_parts(answer, width)
    parts.append(ahead_lines(answer.ahead, answer.priority, width))
    parts.append(time_lines(answer.job, now, width))
    return page(parts)


def running_page(job: Job, members: Iterable[Pod], tree: Tree, now: float, width: int = WIDTH) -> str:
    """The page of a job that has nodes: which, in what order, and how good they are. tree: as the network is now."""
    current = [pod for pod in members if pod.membership and pod.membership.attempt == job.status.attempt and pod.live]
    current.sort(key=lambda pod: pod.membership.rank if pod.membership else 0)
    nodes = [place_of(pod) for pod in current]
    age = ago(job.status.started_at, now)
    head = f"{job.key}: {job.status.phase}, attempt {job.status.attempt} for {age}, {count(len(nodes), 'node')}"
    plan = plan_lines(job.status.plan) if job.status.plan is not None else iter(())
    said = [progress_lines(job), slow_lines(job, width), time_lines(job, now, width)]
    return page([wrapped(head, width=width), *said, plan, ranks_table(tree, nodes)])


def recorded_page(job: Job, now: float, width: int = WIDTH) -> str:
    """The page of a job that waits, for somebody who may not see the cluster: what the operator wrote into its status."""
    pending = job.status.pending
    since = job.status.waiting_since if job.status.waiting_since is not None else job.created
    reason = f": {pending.reason}" if pending is not None else ""
    lines = [f"{job.key} waits since {rfc3339(round(since))} ({ago(since, now)}){reason}"]
    if pending is not None:
        lines += wrapped(pending.message, "  ", width=width)
        lines += [line for way in pending.unblock for line in wrapped(way, "  - ", width=width)]
    note = (
        "This is what the operator last said; more takes the right to list nodes, pods and TrainingJobs of the cluster."
    )
    return page([lines, time_lines(job, now, width), wrapped(note, width=width)])


def other_page(job: Job, now: float, width: int = WIDTH) -> str:
    """The page of a job that neither waits nor has nodes."""
    status = job.status
    lines = [f"{job.key}: {status.phase or 'not seen by an operator yet'}"]
    lines += [line for error in job.errors for line in wrapped(str(error), "  ", width=width)]
    said = [condition for condition in status.conditions if condition.type in _TELLING and condition.status == "True"]
    lines += [line for one in said for line in wrapped(f"{one.reason}: {one.message}", "  ", "    ", width)]
    return page([lines, time_lines(job, now, width)])


_TELLING = ("Suspended", "Failed", "Completed")


def explanation_parts(answer: Answer, width: int = WIDTH) -> list[Iterator[str]]:
    """The numbers and the ways of a job that waits."""
    found = answer.explanation
    if found is None:
        return []
    numbers = [_never(found.verdict, width), _best(found.verdict), _left_out(found, width)]
    return [*numbers, _ways(found, width), _passed(answer.passed, width)]


def plan_lines(plan: PlanSummary) -> Iterator[str]:
    """A plan in numbers."""
    rows = [("Nodes", f"{plan.nodes}, all within one {plan.span}" if plan.span != "cluster" else str(plan.nodes))]
    if plan.quality is not None:
        cut_short = ", cut short by its budget" if plan.quality.spent else ""
        found = (
            f"of the nodes that were free: {plan.quality.summary} ({plan.quality.worked} states looked at{cut_short})"
        )
        rows.append(("Choice", found))
    if plan.spans:
        rows.append(("Domains", ", ".join(f"{level} {n}" for level, n in plan.spans.items())))
    if plan.ring_edges:
        rows.append(("Ring edges", ", ".join(f"{n} leave a {level}" for level, n in plan.ring_edges.items())))
    if plan.mesh:
        rows.append(("Mesh", " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())))
    if plan.predicted_bus_bandwidth:
        by = f", held up by {_held_up(plan.bottleneck)}" if plan.bottleneck else ""
        rows.append(("Predicted", f"all-reduce at {plan.predicted_bus_bandwidth / GB:.3g} GB/s of bus bandwidth{by}"))
    if plan.communication_share is not None:
        rows.append(("", f"{plan.communication_share:.0%} of a step waits for communication"))
    if plan.spares:
        rows.append(("Spares", ", ".join(plan.spares)))
    yield from table(rows)


def _held_up(bottleneck: str) -> str:
    match bottleneck:
        case predict.NODE:
            return "the interfaces of a node"
        case predict.INSIDE:
            return "the links inside a node"
        case level:
            return f"the uplinks of a {level}"


def ahead_lines(ahead: Sequence[Ahead], priority: int, width: int = WIDTH) -> Iterator[str]:
    """Who comes first in the queue."""
    if not ahead:
        yield "Nobody is ahead of it in the queue."
        return
    named = [
        f"{one.key} ({count(one.members, 'node')}"
        + (f", priority {one.priority})" if one.priority != priority else ")")
        for one in ahead[:MOST_AHEAD]
    ]
    rest = f" and {len(ahead) - MOST_AHEAD} more" if len(ahead) > MOST_AHEAD else ""
    yield from wrapped(f"{', '.join(named)}{rest}", "Ahead of it in the queue: ", "  ", width)


def _head(answer: Answer, now: float, width: int) -> Iterator[str]:
    job, pending = answer.job, answer.status.pending
    since = answer.status.waiting_since if answer.status.waiting_since is not None else job.created
    reason = f": {pending.reason}" if pending is not None and answer.starts is None else ""
    phase = "waits" if job.status.phase in (None, Phase.PENDING) else f"is {job.status.phase}"
    yield f"{job.key} {phase} since {rfc3339(round(since))} ({ago(since, now)}){reason}"
    if pending is not None and pending.message:
        yield from wrapped(pending.message, "  ", width=width)


def _never(found: Verdict, width: int) -> Iterator[str]:
    if not found.ever:
        text = f"No {found.within or 'part of the cluster'} could hold it even if all {found.eligible} eligible nodes were empty."
        yield from wrapped(text, width=width)


def _best(found: Verdict) -> Iterator[str]:
    rows = [("LEVEL", "BEST DOMAIN", "FREE", "OF")]
    rows += [(best.level, best.domain, str(best.free), str(best.total)) for best in found.best]
    yield from table(rows, right=(2, 3))


def _left_out(found: Explanation, width: int) -> Iterator[str]:
    out = ", ".join(f"{n} {reason}" for reason, n in found.verdict.excluded.items())
    if out:
        yield from wrapped(out, "Nodes left out: ", "  ", width)
    kept = ", ".join(f"{n} for {key}" for key, n in found.kept.items())
    if kept:
        yield from wrapped(kept, "Free, but kept: ", "  ", width)
    lacking = ", ".join(f"{n} have too little {resource}" for resource, n in found.lacking.items())
    if lacking:
        yield from wrapped(lacking, "Of the others that are not free: ", "  ", width)


def _passed(ways: Sequence[Way], width: int) -> Iterator[str]:
    if ways:
        yield "These would too, but those ahead of it in the queue would have the nodes first:"
    for way in ways:
        yield from wrapped(way.text, "  - ", width=width)


def _ways(found: Explanation, width: int) -> Iterator[str]:
    if not found.ways:
        yield "No single change was found that would start it."
    else:
        yield "Each of these would start it, cheapest first:"
    margin = len(str(len(found.ways)))
    for number, way in enumerate(found.ways, start=1):
        yield from wrapped(way.text, f"  {number:>{margin}}. ", width=width)
    if not found.complete:
        yield "There may be more: no more plans are tried for one answer."
