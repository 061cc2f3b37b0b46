"""The least that covering a gang can cost inside a domain, proven: what makes a plan "optimal" or "at most 6 % off".

Each domain and bin that is touched costs its uplink, and together the bins that are touched must have room for the gang. Priced
at mu a member, a bin is worth touching if it brings more than it costs, and so is a domain, by what is worth touching in it; what
is left of mu times the gang is less than any placement costs (Lagrangian relaxation; Fisher, Management Science 27, 1981). The
highest such bound over mu is that of the linear relaxation, and how much one group changes it when it is forced in or out is what
lets a search leave most choices aside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from math import ceil
from typing import Final

from trainyard.planner.search.ground import Ground, Group

STEPS: Final = 40
"""The most prices that are tried. Every one gives a valid bound; the best is nearly always found within ten."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Members to be covered by the bins of groups inside one domain.

    weights: by depth what touching a domain costs, the bins' last; chains: by group the numbers of the domains around it, the
    narrowest first, without the one that all are in.
    """

    members: int
    groups: Sequence[Group]
    chains: Sequence[tuple[int, ...]]
    bin_weight: float
    group_weight: float
    upper_weights: Sequence[float]

    @property
    def unit(self) -> float:
        """What all costs are whole multiples of; 0 where nothing is known."""
        weights = [weight for weight in (self.bin_weight, self.group_weight, *self.upper_weights) if weight > 0]
        least = min(weights, default=0.0)
        return least if all(abs(weight / least - round(weight / least)) < 1e-9 for weight in weights) else 0.0


@dataclass(frozen=True, slots=True)
class Bound:
    """value: no choice costs less. price: mu. reduced: by group, what touching it costs beyond what it brings; below 0 it is
    worth it."""

    value: float
    price: float
    reduced: Sequence[float]


def problem(ground: Ground, scope: int, members: int, weights: Sequence[float]) -> Problem:
    """To cover so many members inside a domain that is at least two levels broader than the bins, or one. weights: by depth."""
    groups = ground.groups(scope, members)
    domains = ground.index.domains
    chains = []
    for group in groups:
        chain, around = [], domains[group.number].parent
        while scope not in (group.number, around):
            chain.append(around)
            around = domains[around].parent
        chains.append(tuple(chain))
    alone = len(groups) == 1 and groups[0].number == scope
    return Problem(
        members=members,
        groups=groups,
        chains=chains,
        bin_weight=weights[ground.depth],
        group_weight=0.0 if alone else weights[ground.depth - 1],
        upper_weights=[weights[ground.depth - 2 - n] for n in range(len(chains[0]) if chains else 0)],
    )


def round_up(value: float, unit: float) -> float:
    """The least multiple of the unit that is not less, give or take what floating point loses; the value where there is none."""
    if unit <= 0:
        return value
    return -(-(value - 1e-6 * unit) // unit) * unit


def fewest(groups: Sequence[Group], members: int) -> int:
    """The fewest bins that cover so many, the largest first; one too many where all together do not."""
    taken = 0
    for size in sorted((size for group in groups for size in group.sizes), reverse=True):
        if members <= 0:
            return taken
        taken, members = taken + 1, members - size
    return taken if members <= 0 else taken + 1


def bound(task: Problem) -> Bound:
    """The best bound over all prices."""
    top = task.bin_weight + task.group_weight + sum(task.upper_weights)
    found: dict[float, Bound] = {}

    def at(price: float) -> tuple[float, float]:
        found[price], slope = _at(task, price)
        return found[price].value, slope

    return found[_top(at, task.members, top)[0]]


def by_number(task: Problem, below: float) -> float:
    """A bound that counts whole bins for each number of groups apart, as far as it is below a cost that is known; at most that.

    With m groups and a price of mu for a member, in bins, k bins at least are needed: mu times the gang, less what the m groups
    that bring most bring beyond their bins. Rounded up, and then with the price of the groups, the least over m.
    """
    rooms = sorted((group.room for group in task.groups), reverse=True)
    uppers = 0.0
    for depth, weight in enumerate(task.upper_weights):
        room: dict[int, int] = {}
        for group, chain in zip(task.groups, task.chains, strict=True):
            room[chain[depth]] = room.get(chain[depth], 0) + group.room
        uppers += weight * _needed(sorted(room.values(), reverse=True), task.members)
    least, bins = below, fewest(task.groups, task.members)
    for number in range(_needed(rooms, task.members), len(rooms) + 1):
        fixed = uppers + task.group_weight * number
        if fixed + task.bin_weight * bins >= least:
            break
        needed = ceil(_bins(task, number) - 1e-6)
        least = min(least, fixed + task.bin_weight * max(bins, needed))
    return least


def _needed(rooms: Sequence[int], members: int) -> int:
    """How many of these, the largest first, hold so many."""
    return next((n for n, held in enumerate(accumulate(rooms), start=1) if held >= members), len(rooms) + 1)


def _bins(task: Problem, number: int) -> float:
    """How many bins so many groups need at least."""

    def at(price: float) -> tuple[float, float]:
        least = 1 / price
        brought = []
        for group in task.groups:
            opened = bisect_left(group.rising, -least)
            room = group.within[opened]
            brought.append((price * room - opened, room))
        best = nlargest(number, brought)
        return price * task.members - sum(gain for gain, _ in best), task.members - sum(room for _, room in best)

    return _top(at, task.members, 2.0)[1]


def _top(at: Callable[[float], tuple[float, float]], slope: float, price: float) -> tuple[float, float]:
    """Where a concave function that is 0 at 0, and rises there with a slope, is highest up to a price, and how high.

    Two tangents on either side of the top cross at the next price to try; every price that is tried gives a valid bound.
    """
    low, high = (0.0, 0.0, slope), (price, *at(price))
    best = high
    for _ in range(STEPS):
        if high[2] >= 0:
            break
        price = (high[1] - low[1] + low[2] * low[0] - high[2] * high[0]) / (low[2] - high[2])
        expected = low[1] + low[2] * (price - low[0])
        tried = (price, *at(price))
        if tried[1] > best[1]:
            best = tried
        if tried[1] >= expected - 1e-9 * max(1.0, abs(expected)):
            return tried[:2]
        if tried[2] > 0:
            low = tried
        else:
            high = tried
    return best[:2]


def _at(task: Problem, price: float) -> tuple[Bound, float]:
    """The bound at a price, and its slope: the members that what is worth touching there does not cover."""
    reduced: list[float] = []
    covered: list[int] = []
    least = task.bin_weight / price
    for group in task.groups:
        opened = bisect_left(group.rising, -least)  # the bins that are larger than `least`
        room = group.within[opened]
        reduced.append(task.group_weight + task.bin_weight * opened - price * room)
        covered.append(room)
    value, held = _summed(task, reduced, covered)
    return Bound(price * task.members + value, price, reduced), task.members - held


def _summed(task: Problem, reduced: Sequence[float], covered: Sequence[int]) -> tuple[float, int]:
    """What all that is worth touching costs beyond what it brings, and how many members it covers."""
    if not task.upper_weights:
        worth = [n for n, cost in enumerate(reduced) if cost < 0]
        return sum(reduced[n] for n in worth), sum(covered[n] for n in worth)
    costs: dict[int, float] = {}
    rooms: dict[int, int] = {}
    parents: Mapping[int, int] = {}
    level = {n: (chain[0], reduced[n], covered[n]) for n, chain in enumerate(task.chains)}
    for depth, weight in enumerate(task.upper_weights):
        costs, rooms = {}, {}
        for around, cost, room in level.values():
            costs.setdefault(around, weight)
            rooms.setdefault(around, 0)
            if cost < 0:
                costs[around] += cost
                rooms[around] += room
        parents = {chain[depth]: (chain[depth + 1] if depth + 1 < len(chain) else -1) for chain in task.chains}
        level = {number: (parents[number], costs[number], rooms[number]) for number in costs}
    worth = [number for number, cost in costs.items() if cost < 0]
    return sum(costs[number] for number in worth), sum(rooms[number] for number in worth)
