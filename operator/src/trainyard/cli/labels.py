"""What tells the network, and how far it can be trusted: the head of `kubectl trainyard topology`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trainyard.api.prose import count
from trainyard.topology.coverage import Coverage, LevelCoverage
from trainyard.topology.dialects import NVLINK

NAMED: Final = 5
"""How many names stand for many."""


def labels_heading(covered: Coverage, nodes: int) -> Iterator[str]:
    """Lines without a table in them. nodes: how many there are, with accelerators or not."""
    levels = " > ".join(level.level.name for level in covered.levels) or "none is known"
    yield f"{count(nodes, 'node')}; levels: {levels}"
    yield f"Told by {_teller(covered)}"


def labels_table(covered: Coverage) -> Iterator[tuple[str, ...]]:
    """A row for each level; none where there are no levels."""
    if covered.levels:
        yield "LEVEL", "LABEL", "NODES WITH IT", "DOMAINS", "NODES IN ONE"
    for level in covered.levels:
        part = f" before its last {level.level.before}" if level.level.before else ""
        yield (
            level.level.name,
            level.level.label + part,
            f"{level.labelled} of {covered.nodes}",
            str(level.domains),
            _sizes(level),
        )


def labels_notes(covered: Coverage) -> Iterator[str]:
    """What is wrong or doubtful, a sentence each."""
    kind = _kind(covered)
    for level in covered.levels:
        name = level.level.name
        if level.lacking:
            empty = f" ({level.empty} with an empty value)" if level.empty else ""
            some_lack = f"{count(len(level.lacking), kind)} without its label{empty}"
            lacking = some_lack if level.labelled else f"no {kind} has its label {level.level.label}{empty}"
            yield f"{name}: {lacking}; such a node shares no {name} with any other: {some(level.lacking)}"
        if level.conflicts:
            names = count(len(level.conflicts), "name")
            broken = "; NVLink is broken up so, unless a Fabric puts it above" if name == NVLINK else ""
            yield f"{name}: {names} below more than one parent, there a domain each{broken}: {some(level.conflicts)}"
    detected = covered.detected
    for unused in detected.unused:
        yield f"{unused.level.name}: {unused.level.label} is on {unused.nodes} of {covered.nodes} nodes, too few to count"
    for other in detected.others:
        why = "the Fabric wins" if detected.described else "its labels tell less"
        yield f"{other.dialect}: on {count(other.nodes, kind)} as well, not used: {why}"


def some(names: Sequence[str], most: int = NAMED) -> str:
    """The first few of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _teller(covered: Coverage) -> str:
    detected = covered.detected
    if not detected.levels:
        return "nothing: no label of the nodes is one that is known; a Fabric can name the labels"
    nodes = count(covered.nodes, _kind(covered))
    gaps = f"incomplete on {covered.incomplete} of {nodes}" if covered.incomplete else f"complete on {nodes}"
    if detected.described:
        return f"the Fabric {detected.source}, which most nodes are on; {gaps}"
    nvlink = f"NVLink by those of {detected.nvlink}" if detected.nvlink else ""
    source = f"the labels of {detected.source}" if detected.source else ""
    return "; ".join(filter(None, (source, nvlink, gaps)))


def _kind(covered: Coverage) -> str:
    return "accelerator node" if covered.detected.equipped else "node"


def _sizes(level: LevelCoverage) -> str:
    if level.fewest == level.most:
        return str(level.most) if level.domains else "-"
    return f"{level.fewest} to {level.most}, median {level.median}"
