"""Which bins a gang gets: the cheapest, and of the equally cheap those that spoil least.

Every domain that has room for the whole gang is a place for it, the narrowest first: inside one that holds the gang, its own
uplink and those of all around it cost nothing. Where the bins of a place are its children, the fewest are the largest; in broader
ones `search` decides which groups of bins are touched. Of equal costs, in this order: least is lost for the gangs to come; the
uplinks that are used are those that fewer others use; the domains are fullest; the order of the tree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.search.bound import problem
from trainyard.planner.search.branch import MOST_STATES, cover
from trainyard.planner.search.fragments import Loss, mix
from trainyard.planner.search.ground import Ground, Group

MOST_ALIKE: Final = 6
"""Of how many equally cheap places it is compared what they spoil; the fullest of them."""

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Terms:
    """What is to be paid, in units of an edge between nodes of one narrowest domain.

    pace: by depth, for each member, where a domain of that depth holds the gang and none narrower does. weights: by depth, for a
    domain that is touched beside others.
    """

    pace: Sequence[float]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Taste:
    """What decides between equal costs. uplinks: by number of the domain, how many others use it; whole_in: as in a supply."""

    loss: Loss
    uplinks: Mapping[int, int]
    whole_in: Sequence[int]

    def key(self, ground: Ground, number: int) -> tuple[int, int, int]:
        """The more wanted of two bins with as much room is the lower."""
        taken = ground.held(number) - self.whole_in[number] if number < len(self.whole_in) else 0
        return self.uplinks.get(number, 0), taken, number


@dataclass(frozen=True, slots=True)
class Choice:
    """bins: each with what it gives. depth: of the domain that holds all. uplinks: what the uplinks cost, value: with the
    pace; bound: no choice has a lower value. lost: see `fragments`. worked, spent: see `search`."""

    bins: tuple[tuple[int, int], ...]
    depth: int
    uplinks: float
    value: float
    bound: float
    lost: float
    worked: int = 0
    spent: bool = False


def choose(ground: Ground, members: int, terms: Terms, taste: Taste, within: int = 0, floor: int = 0) -> Choice | None:
    """The bins that hold so many members, all of them; None where they have not enough room.

    within: the domain that they are in. floor: the depth of a domain that holds all of them, at least.
    """
    return _Chooser(ground, members, within, max(floor, ground.index.domains[within].depth), terms, taste).best()


@dataclass(slots=True)
class _Chooser:
    ground: Ground
    members: int
    within: int
    floor: int
    terms: Terms
    taste: Taste
    worked: int = 0

    def best(self) -> Choice | None:
        """The best of all depths."""
        found: Choice | None = None
        bounds: list[float] = []
        spent = False
        for depth in range(self.ground.depth, self.floor - 1, -1):
            base = self.members * self.terms.pace[depth]
            least = base + 2 * sum(self.terms.weights[depth + 1 : self.ground.depth + 1])
            if found is not None and least > found.value - _SLACK:
                break
            for choice in self._at(depth, base, found):
                bounds.append(choice.bound)
                spent = spent or choice.spent
                if found is None or choice.value < found.value - _SLACK:
                    found = choice
        if found is None:
            return None
        bound = min(found.value, *bounds)
        gap = bound < found.value - _SLACK
        return Choice(
            found.bins, found.depth, found.uplinks, found.value, bound, found.lost, self.worked, spent and gap
        )

    def _at(self, depth: int, base: float, found: Choice | None) -> Iterator[Choice]:
        """The choices in the domains of a depth; only such as may be cheaper than what was found."""
        places = self.ground.roomy(depth, self.members, self.within)
        if not places:
            return
        if depth == self.ground.depth:
            yield self._in_one(places, base)
        elif depth == self.ground.depth - 1:
            yield self._in_groups(places, base)
        else:
            places.sort(key=lambda number: (self.ground.held(number), number))
            value = found.value if found is not None else float("inf")
            for place in places:
                choice = self._in_broader(place, depth, base, value)
                value = min(value, choice.value)
                yield choice

    def _in_one(self, places: Sequence[int], base: float) -> Choice:
        """One bin holds all."""
        around: dict[int, float] = {}
        held, parent = self.ground.held, self.ground.parent

        def key(number: int) -> tuple[float, int, int]:
            outer = parent(number)
            if outer not in around:
                around[outer] = self._lost_around((outer,), {outer: self.members})
            return (
                round(self.taste.loss.of(held(number), self.members) + around[outer], 9),
                self.taste.key(self.ground, number)[1],
                number,
            )

        best = min(places, key=key)
        self.worked += 1
        return Choice(((best, self.members),), self.ground.depth, 0.0, base, base, key(best)[0])

    def _in_groups(self, places: Sequence[int], base: float) -> Choice:
        """The bins are children of the domain that holds all: the fewest are the largest."""
        weight = self.terms.weights[self.ground.depth]
        groups = [self.ground.group(number) for number in places]
        needed = [bisect_left(group.within, self.members) for group in groups]
        fewest = min(needed)
        alike = [group for group, bins in zip(groups, needed, strict=True) if bins == fewest]
        alike.sort(key=lambda group: (group.room, self.taste.key(self.ground, group.number)))
        self.worked += len(groups)
        value = weight * fewest if fewest > 1 else 0.0
        choices = [self._choice([group], fewest, self.ground.depth - 1, value, base) for group in alike[:MOST_ALIKE]]
        return min(choices, key=lambda choice: round(choice.lost, 9))

    def _in_broader(self, place: int, depth: int, base: float, value: float) -> Choice:
        """The bins are further inside. Without bins where none cost less than the best so far."""
        task = problem(self.ground, place, self.members, self.terms.weights)
        found = cover(task, value - base, max(0, MOST_STATES - self.worked))
        self.worked += found.worked
        bound, spent = base + found.bound, found.spent
        if not found.chosen:
            return Choice((), depth, found.value, float("inf"), bound, 0.0, spent=spent)
        groups = [task.groups[n] for n in found.chosen]
        choice = self._choice(groups, found.bins, depth, found.value, base)
        return Choice(choice.bins, depth, found.value, choice.value, bound, choice.lost, spent=spent)

    def _choice(self, groups: Sequence[Group], bins: int, depth: int, uplinks: float, base: float) -> Choice:
        """So many bins of these groups, those that are least lost."""
        counts: dict[int, int] = {}
        of_size: dict[int, list[int]] = {}
        for group in groups:
            for size, number in zip(group.sizes, group.bins, strict=True):
                of_size.setdefault(size, []).append(number)
        for size in sorted(of_size, reverse=True):
            counts[size] = len(of_size[size])
            of_size[size].sort(key=lambda number: self.taste.key(self.ground, number), reverse=True)
        mixed = mix(counts, bins, self.members, self.taste.loss)
        taken = tuple((of_size[size].pop(), part) for size, part in mixed)
        inside = sum(self.taste.loss.of(size, part) for size, part in mixed)
        held: dict[int, int] = {}
        for number, part in taken:
            around = self.ground.parent(number)
            held[around] = held.get(around, 0) + part
        lost = inside + self._lost_around(tuple(held), held)
        return Choice(taken, depth, uplinks, base + uplinks, base + uplinks, lost)

    def _lost_around(self, numbers: Sequence[int], held: Mapping[int, int]) -> float:
        """What is lost in these domains and those around them. held: what they give."""
        lost = 0.0
        while numbers:
            outer: dict[int, int] = {}
            for number in numbers:
                if number < 0:
                    continue
                lost += self.taste.loss.of(self.ground.room[number], held[number])
                parent = self.ground.index.domains[number].parent
                outer[parent] = outer.get(parent, 0) + held[number]
            numbers, held = tuple(number for number in outer if number >= 0), outer
        return lost
