"""The ranks of a gang compared with each other: who computes slower than the others, and who is missing where all stand still.

Each launcher says where its own workers are; only the operator sees all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.contract.status import At
from trainyard.lifecycle.gang import Gang, Seat

SLOWER: Final = 1.25
"""A rank whose own time is this many times the median of its peers' is a straggler: the others wait a fifth of each step."""
AGAIN: Final = 1.15
"""Below this it is one no more."""
LASTS: Final = 60.0
"""Seconds before it is told of: on a node that others share, one rank or another is slow for a moment all the time."""

_LEAST_SECONDS: Final = 1e-6
"""No step takes less; what claims to is compared with nothing, so that a quotient stays a figure."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others wait for. times: its own time by the median of its peers'; own_seconds: of a step."""

    rank: int
    node: str
    times: float
    own_seconds: float
    peers_seconds: float


def straggler(gang: Gang, attempt: int, mesh: Mapping[str, int], known: int | None = None) -> Straggler | None:
    """The rank of a gang that is slowest by what it does itself; None where none stands out, or too little is known.

    A rank is compared with those that do the same work: of one pipeline stage, where there are several of it. What is compared is
    the median of 20 steps, without the time in which it waited for others, so whoever waits is never blamed. mesh: sizes by axis,
    of which a pipeline is the first. known: the rank that was one, which has to be clearly faster to be none any more.
    """
    places = [(at, seat) for seat in gang.seats for at in _said(seat, attempt)]
    ranks = len(places) and max(at.rank for at, _ in places) + 1
    stage = max(1, ranks // max(1, mesh.get("pipeline", 1)))
    alike: dict[int, list[float]] = defaultdict(list)  # by pipeline stage; where each is one rank, all are compared
    for at, _ in places:
        if at.own_seconds is not None and at.own_seconds > _LEAST_SECONDS:
            alike[at.rank // stage if stage > 1 else 0].append(at.own_seconds)
    for times in alike.values():
        times.sort()
    slow: list[Straggler] = []
    for at, seat in places:
        times = alike[at.rank // stage if stage > 1 else 0]
        if at.own_seconds is None or at.own_seconds <= _LEAST_SECONDS or len(times) < 2:
            continue
        usual = median_without(times, at.own_seconds)
        found = Straggler(at.rank, _node(seat), at.own_seconds / usual, at.own_seconds, usual)
        if found.times >= (AGAIN if at.rank == known else SLOWER):
            slow.append(found)
    return max(slow, key=lambda one: (one.rank == known, one.times), default=None)


def median_without(values: Sequence[float], one: float) -> float:
    """The median of sorted values without one of them; there are at least two. Told by position: a gang has thousands."""
    at, left = bisect_left(values, one), len(values) - 1

    def kept(n: int) -> float:
        return values[n if n < at else n + 1]

    return kept(left // 2) if left % 2 else (kept(left // 2 - 1) + kept(left // 2)) / 2


@dataclass(frozen=True, slots=True)
class Missing:
    """The rank that a gang at a standstill waits for. waiting: ranks that wait in `waits_in`."""

    at: At
    seat: Seat
    waiting: tuple[int, ...]
    waits_in: str

    @property
    def node(self) -> str:
        """Where it is."""
        return _node(self.seat)

    @property
    def sentence(self) -> str:
        """What is known of it."""
        if not self.waiting:
            return f"rank {self.at.rank} on {self.node} is behind all others"
        ranks = ", ".join(map(str, self.waiting[:8])) + (", ..." if len(self.waiting) > 8 else "")
        who = f"rank {ranks} waits" if len(self.waiting) == 1 else f"ranks {ranks} wait"
        return f"rank {self.at.rank} on {self.node} has not entered {self.waits_in}, in which {who}"


def missing(gang: Gang, attempt: int, mesh: Mapping[str, int]) -> Missing | None:
    """Whom a gang that hangs waits for, by what all of its launchers said last; None where nobody stands out.

    The fewest steps count first, then the one that waits in no collective while others do, then the fewest collectives entered,
    which are the same for all ranks unless a pipeline's stages (mesh: sizes by axis) take part in different ones.
    """
    staged = mesh.get("pipeline", 1) > 1
    places = [(at, seat) for seat in gang.seats for at in _places(seat, attempt)]
    if len(places) < 2:
        return None
    places.sort(key=lambda place: _behind(place[0], staged))
    (first, seat), (second, _) = places[0], places[1]
    if _behind(first, staged) == _behind(second, staged):
        return None
    waiting = [at for at, _ in places if at.waits_in and at is not first]
    return Missing(first, seat, tuple(sorted(at.rank for at in waiting)), waiting[0].waits_in if waiting else "")


def _behind(at: At, staged: bool) -> tuple[int, bool, int]:
    return at.step, bool(at.waits_in), 0 if staged else at.entered


def _said(seat: Seat, attempt: int) -> Sequence[At]:
    """Where a member's workers are in this attempt, by its last answer."""
    return seat.status.ranks if seat.status is not None and seat.status.attempt == attempt else ()


def _places(seat: Seat, attempt: int) -> Sequence[At]:
    """The same, and the one to blame there by its last words, which came later."""
    said = {at.rank: at for at in _said(seat, attempt)}
    if seat.words is not None and seat.words.behind is not None:
        said[seat.words.behind.rank] = seat.words.behind
    return list(said.values())


def _node(seat: Seat) -> str:
    return seat.pod.node if seat.pod is not None else ""
