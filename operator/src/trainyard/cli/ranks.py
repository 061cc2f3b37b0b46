"""Which ranks lie where: a gang's nodes in rank order, a line for each run of ranks within one domain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from trainyard.cli.layout import table
from trainyard.topology.tree import Tree

MOST_LINES: Final = 24
"""Up to so many lines; a gang over more domains is shown by a broader level, and the rest is counted."""

_NUMBERED: Final = re.compile(r"(.*?)([0-9]+)")


def ranks_table(tree: Tree, nodes: Sequence[str]) -> Iterator[str]:
    """nodes: in rank order. Ranks, nodes, and the domain that they lie in, by the narrowest level that needs few lines."""
    if not nodes:
        return
    depth = next((d for d in range(len(tree.levels), 0, -1) if len(_runs(tree, nodes, d)) <= MOST_LINES), 0)
    runs = _runs(tree, nodes, depth)
    rows = [("RANKS", tree.levels[depth - 1].name.upper() if depth else "CLUSTER", "NODES")]
    for first, names in runs[:MOST_LINES]:
        last = first + len(names) - 1
        domain = "/".join(tree.paths.get(names[0], ())[:depth]) or "-"
        rows.append((f"{first}-{last}" if last > first else str(first), domain, _few(names)))
    yield from table(rows)
    if len(runs) > MOST_LINES:
        yield f"and {len(runs) - MOST_LINES} more runs of ranks"


def folded(names: Sequence[str]) -> str:
    """Names as lists of hosts are written: node-[1-3,7] stands for node-1, node-2, node-3 and node-7, in this order."""
    parts: list[str] = []
    for prefix, some in groupby(names, key=_prefix):
        alike = list(some)
        numbers = [name[len(prefix) :] for name in alike]
        parts.append(
            alike[0] if len(alike) == 1 else f"{prefix}[{','.join(_ranges(numbers))}]" if prefix else ",".join(alike)
        )
    return ",".join(parts)


def _runs(tree: Tree, nodes: Sequence[str], depth: int) -> list[tuple[int, list[str]]]:
    """The first rank of each run within one domain of a depth, with its nodes."""
    found: list[tuple[int, list[str]]] = []
    for _, some in groupby(enumerate(nodes), key=lambda ranked: tree.paths.get(ranked[1], ())[:depth]):
        run = list(some)
        found.append((run[0][0], [name for _, name in run]))
    return found


def _few(names: Sequence[str]) -> str:
    """All names folded, or the first and the last where that is too long."""
    text = folded(names)
    return text if len(text) <= 56 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _prefix(name: str) -> str:
    """A name without the number at its end; the name itself where it ends in none."""
    found = _NUMBERED.fullmatch(name)
    return found.group(1) if found else name


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    """Numbers that follow each other as a range; those with leading zeros only where all have as many digits."""
    start = before = numbers[0]
    for number in (*numbers[1:], ""):
        if number and number == str(int(before) + 1).zfill(len(before) if before[0] == "0" else 0):
            before = number
            continue
        yield start if start == before else f"{start}-{before}"
        start = before = number
