"""Which gangs would fit now, level by level: the foot of `kubectl trainyard topology`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.cli.layout import table
from trainyard.planner.fragmentation import Kind


def gangs_lines(found: Sequence[Kind]) -> Iterator[str]:
    """For each kind of nodes how many gangs of each size would fit at once, each within one domain of a level."""
    for kind in found:
        gangs = kind.gangs
        if not gangs.whole:
            continue
        yield (
            f"Nodes of {kind.name}: {gangs.free} of {gangs.whole} free for gangs, "
            f"{kind.free} of {kind.total} accelerators free"
        )
        sizes = list(gangs.levels[0].slots)
        rows = [("  GANGS WITHIN ONE", *map(str, sizes), "LARGEST", "WHERE")]
        for at in gangs.levels:
            slots = (str(n) if at.whole >= size else "-" for size, n in at.slots.items())
            rows.append((f"  {at.level}", *slots, str(at.largest), at.domain))
        if gangs.unusable:
            shares = (f"{gangs.unusable[size]:.0%}" if size in gangs.unusable else "-" for size in sizes)
            rows.append(("  of no use", *shares, "", f"{gangs.expected:.0%} of what is free, sizes weighted by 1/size"))
        yield from table(rows, right=range(1, len(sizes) + 2))
