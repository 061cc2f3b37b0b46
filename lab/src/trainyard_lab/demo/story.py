"""The demonstration told while it happens: what changed between two looks, in lines that read well in any terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from trainyard_lab.demo.observe import Job, Snapshot
from trainyard_lab.fabric import Node

STEPS_BETWEEN_LINES = 20
WIDTH = 7


def tell(before: Snapshot, after: Snapshot, nodes: Sequence[Node]) -> Iterator[str]:
    """A line for each change worth telling, and a picture of the nodes when somebody moved."""
    for name, job in after.jobs.items():
        yield from _changes(before.jobs.get(name), job)
    for name in before.jobs.keys() - after.jobs.keys():
        yield _line(name, "gone")
    if picture(before, nodes) != (now := picture(after, nodes)):
        yield f"{'':{WIDTH}} {now}"


def _changes(before: Job | None, job: Job) -> Iterator[str]:
    if before is None:
        yield _line(job.name, "applied")
    was = before.phase if before is not None else ""
    if (job.phase != was and job.phase) or (
        job.phase == "Pending" and before is not None and job.waits != before.waits
    ):
        yield _line(job.name, _phase(job))
    last = before.step if before is not None else 0
    if job.step and job.step // STEPS_BETWEEN_LINES != last // STEPS_BETWEEN_LINES:
        yield _line(job.name, f"step {job.step}{_loss(job)}")


def _phase(job: Job) -> str:
    match job.phase:
        case "Pending" if job.waits:
            return f"waits: {job.waits}"
        case "Starting":
            plan = job.status.get("plan", {})
            return (
                f"starts attempt {job.attempt} on {plan.get('nodes')} nodes within one {plan.get('span')}{_resume(job)}"
            )
        case "Running":
            return f"trains, attempt {job.attempt}"
        case "Yielding":
            why = job.status.get("stop") or job.status.get("ending") or {}
            return f"is asked to leave ({why.get('reason', '')}): saving"
        case "Succeeded":
            return f"succeeded after step {job.step}{_loss(job)}" if job.step else "succeeded"
        case "Failed":
            failure = job.status.get("lastFailure", {})
            return f"FAILED: {failure.get('message', '')}"
        case other:
            return other.lower()


def _resume(job: Job) -> str:
    resume = job.status.get("resume")
    return f", resuming after step {resume['step']}" if resume else ""


def _loss(job: Job) -> str:
    return f", loss {job.loss:.3f}" if job.loss is not None else ""


def _line(name: str, text: str) -> str:
    return f"{name:<{WIDTH}.{max(WIDTH, len(name))}} {text}"


def picture(snapshot: Snapshot, nodes: Sequence[Node]) -> str:
    """Who is where: `spine-a [v0 v1|v2 v3]  spine-b [f0 f1|. .]`; a number is a node rank."""
    at: Mapping[str, str] = {
        pod.node: f"{pod.job[:1] if len(pod.job) > 2 else pod.job}{pod.rank}"
        for pod in snapshot.pods
        if pod.node and pod.phase in ("Pending", "Running")
    }
    spines = []
    for spine, below in groupby(nodes, key=lambda node: node.spine):
        leaves = [
            " ".join(f"{at.get(node.name, '.'):>2}" for node in leaf)
            for _, leaf in groupby(below, key=lambda n: n.leaf)
        ]
        spines.append(f"{spine} [{' |'.join(leaves)} ]")
    return "  ".join(spines)
