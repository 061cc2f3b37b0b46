"""The meshes that a job could have on certain nodes, best first, with what each would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trainyard.cli.layout import WIDTH, table, wrapped
from trainyard.planner.machines import GB
from trainyard.planner.mesh import Choice, Site, choose
from trainyard.planner.model import Model

MOST_POSSIBLE: Final = 6
"""How many of the meshes that can be had are listed."""

MOST_OUT: Final = 2
"""How many of those that the trainer does not run; besides, the one that lacks least memory."""


def meshes_lines(model: Model, site: Site, settled: str, width: int = WIDTH) -> Iterator[str]:
    """The table. settled: the mesh that the job gets, marked in it."""
    choices = choose(model, site)
    possible = [choice for choice in choices if not choice.out]
    out = [choice for choice in choices if choice.out]
    shown = possible[:MOST_POSSIBLE]
    shown += [choice for choice in possible[MOST_POSSIBLE:] if str(choice.mesh) == settled]
    computes = site.accelerator is not None
    rows = [("", "MESH", "MEMORY", "STEP" if computes else "COMMUNICATION", *(("WAITING",) if computes else ()), "")]
    rows += [_row(choice, settled, computes) for choice in (*shown, *_some(out))]
    yield from table(rows, right=(2, 3, 4) if computes else (2, 3))
    left = len(choices) - len(rows) + 1
    if left:
        yield f"and {left} more"
    if computes:
        about = "WAITING: share of a step in which nothing is computed because of communication."
    else:
        about = "The accelerator is not known: what a step computes for is left out, and so is the limit of memory."
    text = f"*: the mesh that the job gets. {about} Predicted on these nodes; links: {site.links.said}."
    yield from wrapped(text, width=width)


def _some(out: Sequence[Choice]) -> list[Choice]:
    """Of the meshes that cannot be had the fastest for each reason, and that which almost fits."""
    reasons: dict[str, Choice] = {}
    for choice in out:
        if choice.step is not None:
            reasons.setdefault(choice.out, choice)
    too_large = [choice for choice in out if choice.step is None][:1]
    return [*list(reasons.values())[:MOST_OUT], *too_large]


def _row(choice: Choice, settled: str, computes: bool) -> tuple[str, ...]:
    memory = _size(choice.memory.total)
    if choice.limit_bytes is not None:
        memory += f" of {_size(choice.limit_bytes)}"
    mark = "*" if str(choice.mesh) == settled else ""
    if choice.step is None:
        return (mark, str(choice.mesh), memory, "-", *(("-",) if computes else ()), choice.out)
    times = (_seconds(choice.step.seconds), *((f"{choice.step.share:.0%}",) if computes else ()))
    return (mark, str(choice.mesh), memory, *times, choice.out)


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


def _size(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= 0.1 * GB else f"{size / GB * 1000:.1f} MB"
