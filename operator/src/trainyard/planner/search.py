"""Which groups of bins cover a gang at the least cost: branch and bound over domains, never over nodes.

Given which groups are touched, the fewest bins are found by taking the largest first, so the groups are all that is to be
decided. The bound of `bound` says how much it costs at least to force one in or out: those for which that is more than the best
choice known costs are settled at once, and with the others the search begins where the bound is most certain. It counts the
states that it looks at and gives up after a fixed number of them: the best found so far is then the answer, with the bound
beside it. Counted work, not time: the answer does not depend on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.bound import Bound, Problem, bound, by_number, fewest, round_up

MOST_STATES: Final = 600
"""How many states one search looks at, some 5 ms."""

MOST_OPEN: Final = 64
"""How many groups are decided on at most; of more, those of which the bound is least certain."""

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Cover:
    """The groups of a problem that cover it, by number, over how many bins, at what cost. bound: no choice costs less.

    worked: states that were looked at; spent: they were not enough to prove or improve it.
    """

    chosen: tuple[int, ...]
    bins: int
    value: float
    bound: float
    worked: int = 0
    spent: bool = False


def cover(task: Problem, below: float = float("inf"), states: int = MOST_STATES) -> Cover | None:
    """The cheapest cover; None where there is none that costs less than `below`, or none at all."""
    if sum(group.room for group in task.groups) < task.members:
        return None
    if len(task.groups) == 1:
        bins = fewest(task.groups, task.members)
        value = task.group_weight + bins * task.bin_weight + sum(task.upper_weights)
        return Cover((0,), bins, value, value) if value < below else None
    relaxed = bound(task)
    least = round_up(relaxed.value, task.unit)
    if least >= below - _SLACK:
        return None
    search = _Search(task, relaxed, below, states)
    search.begin()
    if search.value > least + _SLACK:
        least = max(least, by_number(task, search.value))
    if search.value > least + _SLACK:
        search.least = least
        search.branch_and_bound()
    if not search.chosen:
        return None
    proven = not search.spent or search.value <= least + _SLACK
    return Cover(search.chosen, search.bins, search.value, search.value if proven else least, search.worked, not proven)


class _Search:
    """One search: what is decided so far, and the best of what was seen.

    price: of the bound. brought: by domain around groups, what what it holds brings at that price; held: how many groups in it
    are in. total: the bound of what is decided; least: of all.
    """

    def __init__(self, task: Problem, relaxed: Bound, below: float, states: int) -> None:
        self.task, self.reduced, self.states = task, relaxed.reduced, states
        self.chosen: tuple[int, ...] = ()
        self.bins, self.value, self.least = 0, below, 0.0
        self.worked, self.spent = 0, False
        self.unit = task.unit
        self.sizes = sorted({size for group in task.groups for size in group.counts}, reverse=True)
        self.brought: dict[int, float] = {}
        self.held: dict[int, int] = {}
        self.total = relaxed.price * task.members
        self.rooms = [group.room for group in task.groups]
        for chain in task.chains:
            for around in chain:
                self.brought[around], self.held[around] = 0.0, 0
        for depth, weight in enumerate(task.upper_weights):
            for chain in task.chains:
                self.brought[chain[depth]] = weight
        for depth in range(len(task.upper_weights)):
            if depth == 0:
                for n, chain in enumerate(task.chains):
                    self.brought[chain[0]] += min(0.0, self.reduced[n])
            else:
                for below_it, around in {(chain[depth - 1], chain[depth]) for chain in task.chains}:
                    self.brought[around] += min(0.0, self.brought[below_it])
        if task.upper_weights:
            self.total += sum(min(0.0, self.brought[top]) for top in {chain[-1] for chain in task.chains})
        else:
            self.total += sum(min(0.0, reduced) for reduced in self.reduced)

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
            for size, count in self.task.groups[n].counts.items():
                counts[size] = counts.get(size, 0) + count
        return counts

    def _around(self, chosen: Collection[int]) -> float:
        """What the groups and the domains around them cost."""
        chains = self.task.chains
        uppers = sum(
            weight * len({chains[n][depth] for n in chosen}) for depth, weight in enumerate(self.task.upper_weights)
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

    def offer(self, chosen: Sequence[int]) -> bool:
        """Keep a choice if it is better than the best so far."""
        self.worked += 1
        value, bins = self.cost(chosen)
        if value < self.value - _SLACK:
            self.chosen, self.bins, self.value = tuple(sorted(chosen)), bins, value
            return True
        return False

    # A first choice -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Good choices to begin with: the fewest groups, and what the bound finds worth touching."""
        by_room = sorted(range(len(self.rooms)), key=lambda n: -self.rooms[n])
        self._improve(self._enough([], by_room))
        worth = [n for n, reduced in enumerate(self.reduced) if reduced < 0]
        by_worth = sorted(range(len(self.rooms)), key=lambda n: self.reduced[n])
        self._improve(self._enough(worth, by_worth))

    def _enough(self, some: list[int], order: Sequence[int]) -> list[int]:
        """Some groups, with others in an order until there is room for all; the last is the one with least room that does."""
        chosen, left = list(some), self.task.members - sum(self.rooms[n] for n in some)
        within = set(chosen)
        for n in order:
            if left <= 0:
                break
            if n in within:
                continue
            chosen.append(n)
            within.add(n)
            left -= self.rooms[n]
        return chosen

    def _improve(self, some: list[int]) -> None:
        """Leave out what is not needed, the least worthy first."""
        self.offer(some)
        value, _ = self.cost(some)
        chosen = dict.fromkeys(some)
        counts = self._counted(some)
        left = sum(self.rooms[n] for n in some) - self.task.members
        for n in sorted(some, key=lambda n: -self.reduced[n]):
            if self.rooms[n] > left:
                continue
            for size, count in self.task.groups[n].counts.items():
                counts[size] -= count
            del chosen[n]
            self.worked += 1
            found = self._bins(counts) * self.task.bin_weight + self._around(chosen)
            if found <= value + _SLACK:
                value, left = found, left - self.rooms[n]
                continue
            chosen[n] = None
            for size, count in self.task.groups[n].counts.items():
                counts[size] += count
        self.offer(list(chosen))

    # The search ---------------------------------------------------------------------------------------------------------

    def branch_and_bound(self) -> None:
        """Improve the best choice until none can be better, or the states are used up."""
        settled_in, undecided = self._settle()
        undecided.sort(key=lambda n: (-abs(self.reduced[n]), self.task.groups[n].sizes, self.task.chains[n], n))
        if len(undecided) > MOST_OPEN:
            self.spent = True
            for n in undecided[:-MOST_OPEN]:
                self._decide(n, self.reduced[n] < 0)
                if self.reduced[n] < 0:
                    settled_in.append(n)
            undecided = undecided[-MOST_OPEN:]
        rooms = [0] * (len(undecided) + 1)
        for k in range(len(undecided) - 1, -1, -1):
            rooms[k] = rooms[k + 1] + self.rooms[undecided[k]]
        self._branch(0, undecided, rooms, settled_in, sum(self.rooms[n] for n in settled_in), False, True)

    def _settle(self) -> tuple[list[int], list[int]]:
        """The groups that every better choice has, which then are decided, and those that some have; the others are out."""
        settled_in: list[int] = []
        undecided: list[int] = []
        for n in range(len(self.rooms)):
            if self._hopeless(n, True):
                self._decide(n, False)
            elif self._hopeless(n, False):
                self._decide(n, True)
                settled_in.append(n)
            else:
                undecided.append(n)
        return settled_in, undecided

    def _hopeless(self, n: int, inside: bool) -> bool:
        undo = self._decide(n, inside)
        hopeless = not self._may_be_better()
        self._undo(n, undo, inside)
        return hopeless

    def _may_be_better(self) -> bool:
        return round_up(self.total, self.unit) < self.value - _SLACK

    def _branch(
        self,
        k: int,
        undecided: Sequence[int],
        rooms: Sequence[int],
        inside: list[int],
        room: int,
        last_out: bool,
        grown: bool,
    ) -> None:
        if self.value <= self.least + _SLACK:
            return
        if self.worked >= self.states:
            self.spent = True
            return
        if grown and room >= self.task.members:
            self.offer(inside)
        else:
            self.worked += 1
        if k == len(undecided) or room + rooms[k] < self.task.members or not self._may_be_better():
            return
        n = undecided[k]
        # Of groups that are alike the first ones are taken.
        only_out = last_out and self._alike(n, undecided[k - 1])
        for choice in (True, False) if self.reduced[n] < 0 else (False, True):
            if choice and only_out:
                continue
            undo = self._decide(n, choice)
            if self._may_be_better():
                if choice:
                    inside.append(n)
                self._branch(k + 1, undecided, rooms, inside, room + self.rooms[n] * choice, not choice, choice)
                if choice:
                    inside.pop()
            self._undo(n, undo, choice)

    def _alike(self, a: int, b: int) -> bool:
        task = self.task
        return task.groups[a].sizes == task.groups[b].sizes and task.chains[a] == task.chains[b]

    def _decide(self, n: int, inside: bool) -> list[tuple[int, float]]:
        """Count a group as in or out. Returns what was before."""
        reduced = self.reduced[n]
        change = reduced - min(0.0, reduced) if inside else -min(0.0, reduced)
        before: list[tuple[int, float]] = [(-1, self.total)]
        for depth, around in enumerate(self.task.chains[n]):
            brought, held = self.brought[around], self.held[around]
            before.append((around, brought))
            was = brought if held else min(0.0, brought)
            self.brought[around] = brought + change
            self.held[around] = held + inside
            now = brought + change if held + inside else min(0.0, brought + change)
            change = now - was
            assert depth < len(self.task.upper_weights)
        self.total += change
        return before

    def _undo(self, n: int, before: list[tuple[int, float]], inside: bool) -> None:
        self.total = before[0][1]
        for around, brought in before[1:]:
            self.brought[around] = brought
            self.held[around] -= inside
