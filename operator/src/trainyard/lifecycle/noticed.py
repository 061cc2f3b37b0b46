"""What fails no job: what pods find of their network, and what libraries say of it while they run. Told once, kept in status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from trainyard.api.conditions import Reason
from trainyard.api.training_job import TrainingJobStatus
from trainyard.contract.network import Bearing, Sign
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Need, Tell
from trainyard.network.settings import MOST_WARNINGS

MOST: Final = 12
"""Lines of a status, of the MOST_WARNINGS that it takes: the others are of the settings and of members that differ."""
CHARACTERS: Final = 320
"""The longest of them; `kubectl trainyard env` has them whole."""
NAMED: Final = 3
"""As many nodes are named."""

_SIGNS: Final = frozenset(Sign)
_PLACE: Final = " (on "


@dataclass(slots=True)
class _Line:
    """text: of the first rank that said it. nodes: of all that did, in rank order."""

    reason: Reason
    text: str
    nodes: dict[str, None] = field(default_factory=dict)


def notice(status: TrainingJobStatus, gang: Gang) -> tuple[TrainingJobStatus, Sequence[Need]]:
    """The status with what there is, and an Event for each kind of line that is new. Lines that differ in figures alone, such as
    the number of an adapter, are of one kind, and it is said on how many nodes there are some."""
    network = status.network
    if network is None or status.ending is not None:
        return status, ()
    lines = {**_observed(gang), **(_found(gang) if network.compared else {})}
    ours = dict(list(lines.items())[:MOST])
    known = {_kind(line.rpartition(_PLACE)[0]): line for line in network.warnings if _PLACE in line}
    said = {kind: f"{line.text}{_where(list(line.nodes), len({*gang.nodes}))}" for kind, line in ours.items()}
    others = [line for line in network.warnings if line not in {known.get(kind) for kind in ours}]
    warnings = (*said.values(), *others)[:MOST_WARNINGS]
    if warnings != network.warnings:
        status = status.but(network=network.but(warnings=warnings))
    return status, [Tell("Warning", line.reason, said[kind]) for kind, line in ours.items() if kind not in known]


def observations(warnings: Iterable[str]) -> tuple[str, ...]:
    """Of a status's lines those that say what libraries go on by."""
    return tuple(line for line in warnings if line.partition(":")[0] in _SIGNS)


def _observed(gang: Gang) -> Mapping[str, _Line]:
    """What libraries run by that is slower than it should be."""
    return _together(
        (Reason(trouble.sign), f"{trouble.sign}: {trouble.hint or trouble.message}", node)
        for seat, node in zip(gang.seats, gang.nodes, strict=True)
        for trouble in (seat.status.trouble if seat.status is not None else ())
        if trouble.bearing == Bearing.OBSERVATION and trouble.sign in _SIGNS
    )


def _found(gang: Gang) -> Mapping[str, _Line]:
    """What launchers found before the workers started."""
    return _together(
        (Reason.NETWORK_DOUBTFUL, warning, node)
        for seat, node in zip(gang.seats, gang.nodes, strict=True)
        for warning in (seat.status.network.warnings if seat.status is not None and seat.status.network else ())
    )


def _together(said: Iterable[tuple[Reason, str, str]]) -> dict[str, _Line]:
    """By kind of line, as each was first said."""
    found: dict[str, _Line] = {}
    for reason, text, node in said:
        kind, one_line = _read(text)
        found.setdefault(kind, _Line(reason, one_line)).nodes[node] = None
    return found


@lru_cache(maxsize=1024)  # thousands of launchers say the same, again and again
def _read(text: str) -> tuple[str, str]:
    one_line = " ".join(text.split())[:CHARACTERS].replace(_PLACE, " (at ")
    return _kind(one_line), one_line


def _kind(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def _where(nodes: Sequence[str], of: int) -> str:
    if len(nodes) == of > 1:
        return f"{_PLACE}all {of} nodes)"
    return (
        f"{_PLACE}{', '.join(nodes) if len(nodes) <= NAMED else f'{len(nodes)} of {of} nodes, {nodes[0]} among them'})"
    )
