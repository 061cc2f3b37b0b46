"""The table of what was measured on a fabric: how it is kept, for how long it counts, and what it says of each level.

A fabric's specification is what its links should carry, and this table what they were seen to carry. It is small whatever
happens: of each level the newest of a few jobs, each with one row, and the newest measurement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Final

from trainyard.api.fabric import Observed, ObservedBy, ObservedLink
from trainyard.world.records import World

NODE: Final = "node"
"""The level of pairs of nodes that share the narrowest domain: what holds them up is their own interfaces."""
FRESH_SECONDS: Final = 86400.0
"""For so long an observation counts. Cables are repaired and jobs leave: what is older says how it was, and the specification
counts again."""
MOST_JOBS: Final = 5
"""Of each level so many jobs that proved their network are remembered; the median of them counts, so that one job that found its
links busy does not speak for the level."""
SAME_SHARE: Final = 0.05
"""A job that finds within this what it found before has nothing to add,"""
SETTLED_SECONDS: Final = 3600.0
"""unless what it found before is older than this."""
MOST_LEVELS: Final = 9
"""A Fabric has up to eight, and there is `NODE`."""


def with_links(observed: Observed, found: Iterable[ObservedLink]) -> Observed:
    """The table with more observations. Each job has one row a level, the last that it found; taking in the same again changes
    nothing."""
    rows = {_key(row): row for row in observed.links}
    for row in found:
        known = rows.get(_key(row))
        if known is None or _news(known, row):
            rows[_key(row)] = row
    kept: dict[tuple[str, ObservedBy], list[ObservedLink]] = defaultdict(list)
    for row in sorted(rows.values(), key=lambda row: (-row.time, row.job)):
        of = kept[row.level, row.by]
        if len(of) < (MOST_JOBS if row.by is ObservedBy.PREFLIGHT else 1):
            of.append(row)
    newest = sorted({level for level, _ in kept}, key=lambda level: (-_newest(kept, level), level))[:MOST_LEVELS]
    links = tuple(row for level in sorted(newest) for by in ObservedBy for row in kept.get((level, by), ()))
    return observed.but(links=links)


def _key(row: ObservedLink) -> tuple[str, ObservedBy, str]:
    return row.level, row.by, row.job


def _news(known: ObservedLink, row: ObservedLink) -> bool:
    if row.time <= known.time:
        return False
    return (
        abs(row.bandwidth - known.bandwidth) > SAME_SHARE * known.bandwidth or row.time - known.time >= SETTLED_SECONDS
    )


def _newest(kept: Mapping[tuple[str, ObservedBy], list[ObservedLink]], level: str) -> float:
    return max(of[0].time for (of_level, _), of in kept.items() if of_level == level)


def speeds(observed: Observed | None) -> dict[str, float]:
    """By level, what one node was seen to send, in bytes a second: as measured, else the median of the jobs that proved their
    network. All rows count; `fresh` leaves out those that are too old. A row that says nothing, or less, is passed over."""
    said: dict[str, dict[ObservedBy, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in observed.links if observed is not None else ():
        if row.bandwidth > 0.0:
            said[row.level][row.by].append(row.bandwidth)
    return {level: median(by.get(ObservedBy.MEASURE) or by[ObservedBy.PREFLIGHT]) for level, by in said.items()}


def fresh(world: World, now: float) -> World:
    """The world with those observations alone that count now; the same one where all do."""
    changed = {}
    for name, fabric in world.fabrics.items():
        if fabric.observed is not None:
            links = tuple(row for row in fabric.observed.links if now - row.time <= FRESH_SECONDS)
            if len(links) < len(fabric.observed.links):
                changed[name] = replace(fabric, observed=fabric.observed.but(links=links))
    return replace(world, fabrics={**world.fabrics, **changed}) if changed else world
