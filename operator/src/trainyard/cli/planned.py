"""What `kubectl trainyard plan` prints: what would become of a job if it were applied now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from trainyard.api.prose import count
from trainyard.cli.layout import WIDTH, page, wrapped
from trainyard.cli.meshes import meshes_lines
from trainyard.cli.question import Answer, ask
from trainyard.cli.ranks import ranks_table
from trainyard.cli.turns import waits
from trainyard.cli.why import ahead_lines, explanation_parts, plan_lines
from trainyard.cycle.outlook import site_of
from trainyard.planner.advice.concede import where_it_wants_to_be
from trainyard.planner.parallelism import mesh_of, misfit, model_of_job
from trainyard.world.observed import fresh
from trainyard.world.records import Job, World

WOULD_WAIT: Final = 3
"""Exit code where the job would not start now."""

WOULD_FAIL: Final = 1
"""Exit code where it would start, and its trainer refuse."""


def planned_pages(world: World, jobs: Sequence[Job], now: float, width: int = WIDTH) -> tuple[str, int]:
    """The pages of several jobs, each as if it were alone, and the exit code: that of a job that would wait, if any would."""
    world = fresh(world, now)
    pages = [_page_of(world, job, now, width) for job in jobs]
    return "\n".join(text for text, _ in pages), max(code for _, code in pages)


def _page_of(world: World, job: Job, now: float, width: int) -> tuple[str, int]:
    answer, same = asked(world, job, now)
    if answer is None:
        return f"{job.key} would not start: spec.suspend is true.\n", code_of(None, "")
    text, code = planned_page(world, answer, width)
    if same is None:
        return text, code
    return f"There is a {job.key} already, which is {same.status.phase}; this is about another like it.\n\n{text}", code


def asked(world: World, job: Job, now: float) -> tuple[Answer | None, Job | None]:
    """What would become of a job, None where it is suspended; and the one of the same name that is under way or has ended.

    One that waits under the same name would be changed, and does not stand before itself in the queue.
    """
    if job.spec is not None and job.spec.suspend:
        return None, None
    same = next((other for other in world.jobs.values() if other.key == job.key), None)
    if same is None or not waits(same):
        return ask(world, job, now), same
    others = {uid: other for uid, other in world.jobs.items() if other is not same}
    return ask(replace(world, jobs=others), replace(job, created=same.created), now), None


def code_of(answer: Answer | None, refused: str) -> int:
    """The exit code. refused: as `refusal` says."""
    if answer is None or answer.starts is None:
        return WOULD_WAIT
    return WOULD_FAIL if refused else 0


def planned_page(world: World, answer: Answer, width: int = WIDTH) -> tuple[str, int]:
    """The page of a job that does not exist yet, and the exit code. world: what was asked about."""
    chosen = answer.starts
    if chosen is not None:
        head = f"{answer.job.key} would start now on {count(len(chosen.nodes), 'node')}."
        plan = plan_lines(answer.status.plan) if answer.status.plan is not None else iter(())
        meshes = _meshes(world, answer, chosen.nodes, width)
        problem = refusal(world, answer)
        refused = ["Its trainer would refuse to begin:", *wrapped(problem, "  ", width=width)] if problem else []
        links = _observed(world, answer, chosen.nodes, width)
        return page([[head], refused, plan, links, ranks_table(answer.tree, chosen.nodes), meshes]), code_of(
            answer, problem
        )
    parts = [_waits(answer, width)]
    reserved = answer.status.reservation
    if reserved is not None:
        parts += [ranks_table(answer.tree, reserved.nodes), _meshes(world, answer, reserved.nodes, width)]
    elif answer.explanation is not None:
        parts += [*explanation_parts(answer, width), _wanted(world, answer, width)]
    parts.append(ahead_lines(answer.ahead, answer.priority, width))
    return page(parts), code_of(answer, "")


def _wanted(world: World, answer: Answer, width: int) -> Iterator[str]:
    """The meshes on the nodes that it would have if nobody else was there."""
    wanted = where_it_wants_to_be(answer.case) if answer.case is not None else None
    lines = list(_meshes(world, answer, wanted.nodes, width)) if wanted is not None else []
    if lines:
        yield "On the nodes that it would have if they were free:"
        yield from lines


def _meshes(world: World, answer: Answer, nodes: Sequence[str], width: int) -> Iterator[str]:
    """What is known of a job that the built-in trainer trains."""
    spec = answer.job.spec
    model = model_of_job(spec) if spec is not None else None
    if spec is not None and model is not None:
        site = site_of(world, answer.tree, answer.job, nodes)
        yield from meshes_lines(model, site, str(mesh_of(spec, site)), width)


def _observed(world: World, answer: Answer, nodes: Sequence[str], width: int) -> Iterator[str]:
    """By which figures that are not the specification's the prediction was made."""
    seen = site_of(world, answer.tree, answer.job, nodes).links.seen
    if seen:
        yield from wrapped(
            f"Predicted with what one node was lately seen to send, as a share of what the links should carry: {seen}.",
            then="  ",
            width=width,
        )


def refusal(world: World, answer: Answer) -> str:
    """Why the trainer of a job that starts would refuse: its model does not fit there. "" where it does, or nobody knows."""
    spec, chosen = answer.job.spec, answer.starts
    if spec is None or chosen is None:
        return ""
    return misfit(spec, site_of(world, answer.tree, answer.job, chosen.nodes))


def _waits(answer: Answer, width: int) -> Iterator[str]:
    pending = answer.status.pending
    yield f"{answer.job.key} would wait{f': {pending.reason}' if pending is not None else ''}"
    if pending is not None:
        yield from wrapped(pending.message, "  ", width=width)
