"""Nodes that are marked for all jobs: where that is switched on, and several jobs found the network of a node unfit.

One job's script could otherwise take nodes from everybody. So it takes the verdicts of jobs of two namespaces, or that of a job
of an administrator. A verdict is what a preflight or a comparison said of a node, or an adapter's error by which a gang failed
there first. A marked node keeps the members that it has, and no new gang gets it until a later preflight with it passed, or the
mark has stood as long as a verdict does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from trainyard.api.conditions import Reason
from trainyard.cycle import actions as act
from trainyard.lifecycle import deadlines
from trainyard.world.records import Degraded, Job, Marks, Node, World

MESSAGE_CHARACTERS: Final = 1024
PASSED: Final = "PreflightPassed"
EXPIRED: Final = "NotSeenAgain"


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a job found of a node."""

    time: float
    job: str
    namespace: str
    reason: str
    message: str


def mark(world: World, now: float) -> tuple[list[act.Turn], float | None]:
    """The nodes whose condition is to change, a turn for each, and when the first mark ends by itself."""
    if world.marks is None:
        return [], None
    verdicts = _verdicts(world.jobs.values(), now)
    concerned = verdicts.keys() | {name for name, node in world.nodes.items() if node.degraded is not None}
    passed = _passed(world.jobs.values(), concerned) if concerned else {}
    turns, ends = list[act.Turn](), list[float]()
    for name in sorted(concerned & world.nodes.keys()):
        node, last = world.nodes[name], passed.get(name, 0.0)
        since = [verdict for verdict in verdicts.get(name, ()) if verdict.time > last]
        change = _change(node, _told(since) if _enough(since, world.marks) else None, last, now)
        if change is not None:
            turns.append(act.Turn(node.uid, (change,)))
        elif node.degraded is not None:
            ends.append(node.degraded.since + deadlines.AVOID)
    return turns, min(ends, default=None)


def _change(node: Node, wanted: Degraded | None, passed: float, now: float) -> act.MarkNode | None:
    has = node.degraded
    if wanted is not None and (has is None or has.since < wanted.since):
        return act.MarkNode(node.name, node.uid, True, wanted.reason, wanted.message, wanted.since)
    if has is None or wanted is not None:
        return None
    if passed > has.since:
        return act.MarkNode(node.name, node.uid, False, PASSED, "a later preflight with this node passed", now)
    if now >= has.since + deadlines.AVOID:
        return act.MarkNode(node.name, node.uid, False, EXPIRED, f"was marked, and not again since: {has.message}", now)
    return None


def _enough(verdicts: Iterable[_Verdict], marks: Marks) -> bool:
    namespaces = {verdict.namespace for verdict in verdicts}
    return len(namespaces) > 1 or not namespaces.isdisjoint(marks.administrators)


def _verdicts(jobs: Iterable[Job], now: float) -> dict[str, list[_Verdict]]:
    """By node, what is said of it and has not expired."""
    found: dict[str, list[_Verdict]] = {}
    for job in jobs:
        for node, verdict in _of(job, now):
            found.setdefault(node, []).append(verdict)
    return found


def _of(job: Job, now: float) -> Iterator[tuple[str, _Verdict]]:
    for one in job.status.avoid:
        if now < one.until:
            yield one.node, _Verdict(one.time, job.key, job.namespace, one.reason, one.message)
    failure = job.status.last_failure
    if failure is None or failure.reason != Reason.FABRIC_ERROR or not failure.node or failure.time is None:
        return
    if now < failure.time + deadlines.AVOID:
        yield failure.node, _Verdict(failure.time, job.key, job.namespace, failure.reason, failure.message)


def _told(verdicts: list[_Verdict]) -> Degraded:
    """Of each job the newest, the newest first."""
    newest: dict[str, _Verdict] = {}
    for verdict in sorted(verdicts, key=lambda v: (-v.time, v.job)):
        newest.setdefault(verdict.job, verdict)
    first = next(iter(newest.values()))
    message = "; ".join(f"{verdict.job}: {verdict.message}" for verdict in newest.values())
    count = f"{len(newest)} jobs: " if len(newest) > 1 else ""
    return Degraded(float(round(first.time)), str(first.reason), f"{count}{message}"[:MESSAGE_CHARACTERS])


def _passed(jobs: Iterable[Job], nodes: Collection[str]) -> dict[str, float]:
    """By node, when a preflight with it last passed."""
    found: dict[str, float] = {}
    for job in jobs:
        for one in job.status.proven:
            for node in frozenset(one.nodes).intersection(nodes):
                found[node] = max(found.get(node, 0.0), one.time)
    return found
