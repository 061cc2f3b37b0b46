"""All choices of groups that may be better than a known one, built up domain by domain.

A choice inside some domains is a label: its room, its cost, and its loss against the bound, which is what its parts cost at the
bound's price beyond what they cost at best. Of two labels the one with no more room for no less cost is dropped (as in the
knapsack's dynamic program; Kellerer, Pferschy, Pisinger, "Knapsack Problems", 2004, chapter 3), and so is every one whose loss is
more than the known choice is above the bound. What is left is few where the bound is tight. Where it is not, only the labels with
the least loss are followed, and the least loss of those that were dropped is a bound again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trainyard.planner.search.bound import Bound, Problem, round_up

MOST_LABELS: Final = 256
"""How many labels of one domain are followed at most."""

FEW: Final = 4
"""How many when the work is used up."""

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Followed:
    """chosen: the groups of the best choice, by number; () where none is better. bound: no choice costs less. worked: pairs of
    labels that were looked at."""

    chosen: tuple[int, ...]
    bound: float
    worked: int


class _Label(NamedTuple):
    """trail: the groups that it touches, as nested pairs."""

    room: int
    cost: float
    loss: float
    trail: object


_NOTHING: Final = _Label(0, 0.0, 0.0, None)


def follow(task: Problem, relaxed: Bound, known: float, most: int, steps: int) -> Followed:
    """The best choice that costs less than a known one. most: labels of a domain; steps: after which they are few."""
    following = _Following(task, relaxed, most, steps)
    # Where all costs are multiples of a unit, a better choice is better by a unit at least.
    allowed = known - relaxed.value - task.unit * (1 - 1e-6)
    labels, _ = following.inside(range(len(task.groups)), len(task.upper_weights), allowed)
    whole = [label for label in labels if label.room >= task.members]
    chosen = tuple(sorted(_groups(min(whole, key=lambda label: label.cost).trail))) if whole else ()
    unseen = relaxed.value + following.dropped
    return Followed(chosen, round_up(unseen, task.unit) if unseen < known else known, following.worked)


class _Following:
    """worked: so far; dropped: the least loss of a label that was dropped unseen."""

    def __init__(self, task: Problem, relaxed: Bound, most: int, steps: int) -> None:
        self.task, self.relaxed, self.most, self.steps = task, relaxed, most, steps
        self.worked, self.dropped = 0, float("inf")

    def inside(self, groups: Sequence[int], level: int, allowed: float) -> tuple[list[_Label], float]:
        """The labels of some groups and of the domains around them up to a level, and what they cost at best at the price.

        level: how many of the levels above the groups are inside.
        """
        parts: list[tuple[list[_Label], float, int]] = []
        if level == 0:
            for n in groups:
                parts.append((*self._group(n, allowed), self.task.groups[n].room))
        else:
            around: dict[int, list[int]] = {}
            for n in groups:
                around.setdefault(self.task.chains[n][level - 1], []).append(n)
            for some in around.values():
                parts.append((*self._domain(some, level - 1, allowed), sum(self.task.groups[n].room for n in some)))
        best = sum(least for _, least, _ in parts)
        parts.sort(key=lambda part: len(part[0]))
        left = sum(room for _, _, room in parts)
        top = level == len(self.task.upper_weights)
        labels = [_NOTHING]
        for offers, _, room in parts:
            left -= room
            labels = self._joined(labels, sorted(offers, key=_loss), allowed, self.task.members - left if top else 0)
        return labels, best

    def _group(self, n: int, allowed: float) -> tuple[list[_Label], float]:
        task, group, price = self.task, self.task.groups[n], self.relaxed.price
        best = min(0.0, self.relaxed.reduced[n])
        labels = [_Label(0, 0.0, -best, None)]
        for bins in range(1, len(group.within)):
            room = min(group.within[bins], task.members)
            cost = task.group_weight + bins * task.bin_weight
            labels.append(_Label(room, cost, cost - price * room - best, n))
            if room == task.members:
                break
        self.worked += len(labels)
        return [label for label in labels if label.loss < allowed - _SLACK], best

    def _domain(self, groups: Sequence[int], level: int, allowed: float) -> tuple[list[_Label], float]:
        """The same for one domain around groups, or around domains around groups, with what touching it costs."""
        weight, price = self.task.upper_weights[level], self.relaxed.price
        inner, least = self._inside_of(groups, level, allowed, weight)
        best = min(0.0, weight + least)
        labels = [_Label(0, 0.0, -best, None)]
        for label in inner:
            if label.room:
                cost = label.cost + weight
                labels.append(_Label(label.room, cost, cost - price * label.room - best, label.trail))
        return [label for label in labels if label.loss < allowed - _SLACK], best

    def _inside_of(
        self, groups: Sequence[int], level: int, allowed: float, weight: float
    ) -> tuple[list[_Label], float]:
        """What one domain holds. Where touching it is not worth its price, that loss is allowed for already."""
        least = self._least(groups, level)
        labels, _ = self.inside(groups, level, allowed - max(0.0, weight + least))
        return labels, least

    def _least(self, groups: Sequence[int], level: int) -> float:
        """What the parts of a domain cost at best at the price."""
        if level == 0:
            return sum(min(0.0, self.relaxed.reduced[n]) for n in groups)
        around: dict[int, list[int]] = {}
        for n in groups:
            around.setdefault(self.task.chains[n][level - 1], []).append(n)
        weight = self.task.upper_weights[level - 1]
        return sum(min(0.0, weight + self._least(some, level - 1)) for some in around.values())

    def _joined(self, some: list[_Label], others: list[_Label], allowed: float, needed: int) -> list[_Label]:
        """All pairs that may be part of a better choice, without those that another is as good as. others: by rising loss;
        needed: less room is of no use, since the parts that are still to come have not enough."""
        members, price = self.task.members, self.relaxed.price
        by_room: dict[int, _Label] = {}
        for room, cost, loss, trail in some:
            for more, price_of, lost, groups in others:
                self.worked += 1
                total = loss + lost
                if total >= allowed - _SLACK:
                    break
                whole = room + more
                if whole < needed:
                    continue
                if whole > members:
                    total += price * (whole - members)
                    whole = members
                    if total >= allowed - _SLACK:
                        continue
                known = by_room.get(whole)
                if known is None or cost + price_of < known.cost - _SLACK:
                    by_room[whole] = _Label(whole, cost + price_of, total, trail if groups is None else (trail, groups))
        best = float("inf")
        labels: list[_Label] = []
        for room in sorted(by_room, reverse=True):
            label = by_room[room]
            if label.cost < best - _SLACK:
                best = label.cost
                labels.append(label)
        most = self.most if self.worked < self.steps else FEW
        if len(labels) > most:
            labels.sort(key=lambda label: (label.loss, -label.room))
            self.dropped = min(self.dropped, labels[most].loss)
            labels = labels[:most]
        return labels


def _loss(label: _Label) -> float:
    return label.loss


def _groups(trail: object) -> list[int]:
    """The groups of a trail."""
    found: list[int] = []
    open_ = [trail]
    while open_:
        part = open_.pop()
        if isinstance(part, int):
            found.append(part)
        elif isinstance(part, tuple):
            open_ += part
    return found
