"""How much a choice of bins spoils for the gangs to come.

Of the room that a domain has, gangs of a size can use whole multiples of it: over the sizes that people ask for, what is expected
to be of use. A choice loses as much as it makes less, beyond what it takes itself, summed over the domains that it touches (FGD,
Weng et al., ATC 2023, with the levels of HiveD, Zhao et al., OSDI 2020, in the place of single accelerators).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SIZES: Final[Mapping[int, float]] = MappingProxyType({size: 1 / size for size in (2, 4, 8, 16, 32, 64)})
"""Gang sizes in members with their weights: all sizes ask for equally many members together. An assumption, not a measurement."""

MOST_MIXES: Final = 150
"""After how many steps no more mixes of bins are compared."""


class Loss:
    """The expected loss over some gang sizes. sizes: in members, with any positive numbers for how many such gangs come."""

    def __init__(self, sizes: Mapping[int, float] = SIZES) -> None:
        whole = sum(size * weight for size, weight in sizes.items()) or 1.0
        self._shares = tuple(sorted((size, size * weight / whole) for size, weight in sizes.items()))
        self._useful: dict[int, float] = {}

    def useful(self, room: int) -> float:
        """Of so much room in one domain, how many members' worth is expected to be of use."""
        found = self._useful.get(room)
        if found is None:
            found = self._useful[room] = sum(
                share * (room // size * size) for size, share in self._shares if size <= room
            )
        return found

    def of(self, room: int, taken: int) -> float:
        """What is lost where so much of the room is taken, in members; below 0 where what was of no use is used."""
        return self.useful(room) - self.useful(room - taken) - taken


def mix(counts: Mapping[int, int], bins: int, members: int, loss: Loss) -> list[tuple[int, int]]:
    """Which sizes of bins to take, and how much of each, so that so many bins hold the members and least is lost.

    counts: how many bins there are of each size, the largest first; so many of the largest suffice. All but one are taken
    whole. Exact where there are few mixes; otherwise the best of those that were compared, the largest bins among them.
    """
    search = _Mixes(list(counts.items()), loss)
    search.look(0, bins, members, [], 0.0)
    return search.best


class _Mixes:
    def __init__(self, sizes: list[tuple[int, int]], loss: Loss) -> None:
        self.sizes, self.loss = sizes, loss
        self.best: list[tuple[int, int]] = []
        self.least = (float("inf"), 0)
        self.looked = 0

    def look(self, at: int, bins: int, left: int, taken: list[tuple[int, int]], lost: float) -> None:
        """Every way to take so many bins of the sizes from `at` on that hold what is left. taken: (size, how many) so far."""
        if bins == 0:
            if left <= 0:
                self._end(taken, -left, lost)
            return
        self.looked += 1
        if at == len(self.sizes) or self.sizes[at][0] * bins < left or (self.best and self.looked > MOST_MIXES):
            return
        size, count = self.sizes[at]
        whole = self.loss.of(size, size)
        for number in range(min(count, bins), -1, -1):
            if number:
                taken.append((size, number))
            self.look(at + 1, bins - number, left - number * size, taken, lost + number * whole)
            if number:
                taken.pop()

    def _end(self, taken: list[tuple[int, int]], spare: int, lost: float) -> None:
        """One mix: the bin that is not taken whole is the one with which least is lost."""
        part, least = 0, 0.0
        if spare:
            at_most = [
                (self.loss.of(size, size - spare) - self.loss.of(size, size), -size)
                for size, _ in taken
                if size > spare
            ]
            if not at_most:
                return
            least, smaller = min(at_most)
            part = -smaller
        key = round(lost + least, 9), spare
        if key < self.least:
            self.least = key
            self.best = [(size, size) for size, number in taken for _ in range(number)]
            if part:
                self.best[self.best.index((part, part))] = (part, part - spare)
