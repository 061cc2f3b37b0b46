"""Which groups of bins cover a gang at the least cost: a search over domains, never over nodes.

Given which groups are touched, the fewest bins are found by taking the largest first, so the groups are all that is to be
decided. A first choice comes from the bound: what is worth touching at its price, without what turns out not to be needed. Where
that is not proven to be best, all choices that may be better are built up (`labels`), as far as a number of steps allows; the
best found is the answer, with a bound beside it. Counted work, not time: the answer does not depend on how busy the machine is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.search.bound import Bound, Problem, bound, by_number, fewest, round_up
from trainyard.planner.search.labels import FEW, MOST_LABELS, follow

MOST_STATES: Final = 10_000
"""How many pairs of labels are looked at before only the most promising ones are followed, some 10 ms."""

MOST_SWAPS: Final = 64
"""How many groups are tried in the place of others that have more room and cost as much."""

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Cover:
    """The groups of a problem that cover it, by number, over how many bins, at what cost; () where nothing was found that costs
    less than asked for. bound: no choice costs less. worked: pairs of labels that were looked at; spent: more would have been
    needed."""

    chosen: tuple[int, ...]
    bins: int
    value: float
    bound: float
    worked: int = 0
    spent: bool = False


def cover(task: Problem, below: float = float("inf"), states: int = MOST_STATES) -> Cover:
    """The cheapest cover that costs less than `below`."""
    if sum(group.room for group in task.groups) < task.members:
        return Cover((), 0, below, float("inf"))
    if len(task.groups) == 1:
        bins = fewest(task.groups, task.members)
        value = task.group_weight + bins * task.bin_weight + sum(task.upper_weights)
        return Cover((0,) if value < below - _SLACK else (), bins, min(value, below), value)
    relaxed = bound(task)
    least = round_up(relaxed.value, task.unit)
    if least >= below - _SLACK:
        return Cover((), 0, below, least)
    search = _Search(task, relaxed, below, states)
    search.begin()
    if search.value > least + _SLACK:
        least = max(least, by_number(task, search.value))
    for most in (FEW, MOST_LABELS):  # the first pass is short, and what it finds leaves less to the second
        if search.value > least + _SLACK:
            least = max(least, search.improve(most))
    search.tighten()
    proven = search.value <= least + _SLACK
    return Cover(search.chosen, search.bins, search.value, min(least, search.value), search.worked, not proven)


class _Search:
    """One search: the best choice so far, and what it cost to find it."""

    def __init__(self, task: Problem, relaxed: Bound, below: float, states: int) -> None:
        self.task, self.relaxed, self.states = task, relaxed, states
        self.chosen: tuple[int, ...] = ()
        self.bins, self.value = 0, below
        self.worked = 0
        self.rooms = [group.room for group in task.groups]
        self.counts = [group.counts() for group in task.groups]
        self.sizes = sorted({size for counts in self.counts for size in counts}, reverse=True)

    # What a choice costs ------------------------------------------------------------------------------------------------

    def cost(self, chosen: Collection[int]) -> tuple[float, int]:
        """Of covering the gang with these groups, and with how many bins; infinite where they have not enough room."""
        bins = self._bins(self._counted(chosen))
        if bins < 0:
            return float("inf"), 0
        return self.task.bin_weight * bins + self._around(chosen), bins

    def _counted(self, chosen: Iterable[int]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for n in chosen:
            for size, count in self.counts[n].items():
                counts[size] = counts.get(size, 0) + count
        return counts

    def _around(self, chosen: Collection[int]) -> float:
        """What the groups and the domains around them cost."""
        uppers = sum(
            weight * len({self.task.chains[n][depth] for n in chosen})
            for depth, weight in enumerate(self.task.upper_weights)
        )
        return self.task.group_weight * len(chosen) + uppers

    def _bins(self, counts: dict[int, int]) -> int:
        left, bins = self.task.members, 0
        for size in self.sizes:
            count = counts.get(size, 0)
            if count:
                if count * size >= left:
                    return bins + -(-left // size)
                left -= count * size
                bins += count
        return -1

    def _offer(self, chosen: Sequence[int]) -> None:
        """Keep a choice if it is better than the best so far."""
        self.worked += 1
        value, bins = self.cost(chosen)
        if value < self.value - _SLACK:
            self.chosen, self.bins, self.value = tuple(sorted(chosen)), bins, value

    # A first choice -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Good choices to begin with: the fewest groups, and what the bound finds worth touching."""
        reduced = self.relaxed.reduced
        by_room = sorted(range(len(self.rooms)), key=lambda n: -self.rooms[n])
        self._without_surplus(self._enough([], by_room))
        by_worth = sorted(range(len(self.rooms)), key=lambda n: reduced[n])
        self._without_surplus(self._enough([n for n in by_worth if reduced[n] < 0], by_worth))

    def _enough(self, some: list[int], order: Sequence[int]) -> list[int]:
        """Some groups, with others in an order until there is room for all."""
        chosen, left = list(some), self.task.members - sum(self.rooms[n] for n in some)
        within = set(chosen)
        for n in order:
            if left <= 0:
                break
            if n not in within:
                chosen.append(n)
                left -= self.rooms[n]
        return chosen

    def _without_surplus(self, some: list[int]) -> None:
        """Leave out what is not needed, the least worthy first."""
        self._offer(some)
        task = self.task
        value, _ = self.cost(some)
        around = self._around(some)
        chosen = dict.fromkeys(some)
        counts = self._counted(some)
        held = Counter(domain for n in some for domain in task.chains[n])
        left = sum(self.rooms[n] for n in some) - task.members
        for n in sorted(some, key=lambda n: -self.relaxed.reduced[n]):
            if self.rooms[n] > left:
                continue
            self._count(counts, n, -1)
            self.worked += 1
            freed = task.group_weight
            freed += sum(
                weight for weight, domain in zip(task.upper_weights, task.chains[n], strict=True) if held[domain] == 1
            )
            found = self._bins(counts) * task.bin_weight + around - freed
            if found > value + _SLACK:
                self._count(counts, n, 1)
                continue
            value, around, left = found, around - freed, left - self.rooms[n]
            del chosen[n]
            held.subtract(task.chains[n])
        self._offer(list(chosen))

    def _count(self, counts: dict[int, int], n: int, sign: int) -> None:
        for size, count in self.counts[n].items():
            counts[size] += sign * count

    def tighten(self) -> None:
        """Of choices that cost the same, one whose groups have less room: the large holes stay whole."""
        chosen, rooms = list(self.chosen), self.rooms
        surplus = sum(rooms[n] for n in chosen) - self.task.members
        others = sorted(set(range(len(rooms))) - set(chosen), key=lambda n: (rooms[n], n)) if surplus > 0 else []
        swaps = 0
        for place, n in sorted(enumerate(chosen), key=lambda item: (-rooms[item[1]], item[0])):
            least = bisect_left(others, rooms[n] - surplus, key=lambda other: rooms[other])
            for at in range(least, bisect_left(others, rooms[n], key=lambda other: rooms[other])):
                swaps += 1
                if swaps > MOST_SWAPS:
                    return
                tried = [*chosen[:place], others[at], *chosen[place + 1 :]]
                value, bins = self.cost(tried)
                if value <= self.value + _SLACK:
                    surplus -= rooms[n] - rooms[others[at]]
                    chosen = tried
                    self.chosen, self.bins, self.value = tuple(sorted(tried)), bins, min(value, self.value)
                    del others[at]
                    break

    def improve(self, most: int) -> float:
        """Build up all choices that may be better, and keep the best. Returns a bound: no choice that was not looked at costs
        less. most: how many labels of a domain are followed."""
        found = follow(self.task, self.relaxed, self.value, most, self.states - self.worked)
        self.worked += found.worked
        if found.chosen:
            self._offer(found.chosen)
        return min(self.value, found.bound)
