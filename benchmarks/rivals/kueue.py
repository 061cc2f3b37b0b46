"""Kueue's topology-aware scheduling: its two profiles, and ranks in the order of the label values as text (KEP-2724, v0.19).

The levels are those of the network and the host below them. Asked with `preferred`, a level is tried, then each above it, for
one domain with room for the gang; at the top the gang is spread over as many domains as it needs. Then Kueue goes down level
by level: the children of all domains chosen so far are sorted together and taken in that order until the gang has its count,
without regard to how much was meant for each parent. `BestFit` takes most free first, and as the last one the tightest that
still fits; `LeastFreeCapacity` takes least free first. Ties go by label value. A gang that says nothing of the topology is
`unconstrained`: the level is the host, and least free goes first.

The pod with index r gets the r-th place in the order of the label values compared as text, where rack-10 is before rack-2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.world.supply import Supply


@dataclass(frozen=True, slots=True)
class Unit:
    """A domain or, at the lowest level, a host. values: its label values from the top; free: members that fit.

    number: of the domain, or the position of the host.
    """

    values: tuple[str, ...]
    free: int
    number: int


class Kueue:
    """One of Kueue's profiles. least_free: LeastFreeCapacity instead of BestFit; unconstrained: no level is asked for, else the
    narrowest level of the network is preferred."""

    def __init__(self, name: str, least_free: bool, unconstrained: bool = False) -> None:
        self.name = name
        self._least_free = least_free
        self._unconstrained = unconstrained

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """None only where the whole cluster has too little room."""
        if supply.free_in[0] < members:
            return None
        lowest = len(supply.index.at_depth)  # the depth of hosts: one more than that of the narrowest domains
        depth = lowest if self._unconstrained else lowest - 1
        chosen = self._at_level(supply, max(depth, 1), members)
        while chosen[0].values and len(chosen[0].values) < lowest:
            chosen = self._taken(self._sorted(_below(supply, chosen)), members)
        ranked = sorted(chosen, key=lambda unit: unit.values)
        return [unit.number for unit in ranked for _ in range(unit.free)]

    def _at_level(self, supply: Supply, depth: int, members: int) -> list[Unit]:
        """One domain of this level or the narrowest above it that holds the gang, else as many of the top level as it takes."""
        while True:
            units = self._sorted(_at(supply, depth))
            fitting = [unit for unit in units if unit.free >= members]
            if fitting:
                # with both profiles the tightest: LeastFreeCapacity's first, and BestFit's last domain is also its only one
                tightest = min(fitting, key=lambda unit: unit.free)
                return [Unit(tightest.values, members, tightest.number)]
            if depth == 1 or self._unconstrained:
                return self._taken(units, members)
            depth -= 1

    def _sorted(self, units: Sequence[Unit]) -> list[Unit]:
        sign = 1 if self._least_free else -1
        return sorted(units, key=lambda unit: (sign * unit.free, unit.values))

    def _taken(self, units: Sequence[Unit], members: int) -> list[Unit]:
        """As many of these as hold the gang, each with how many members it gets."""
        taken: list[Unit] = []
        left = members
        for number, unit in enumerate(units):
            last = unit
            if not self._least_free and unit.free >= left:
                tightest = min(other.free for other in units[number:] if other.free >= left)
                last = next(other for other in units[number:] if other.free == tightest)
            if last.free >= left:
                return [*taken, Unit(last.values, left, last.number)]
            if unit.free:
                taken.append(unit)
                left -= unit.free
        raise AssertionError("the units were to hold the gang")


def _at(supply: Supply, depth: int) -> list[Unit]:
    """All domains of a depth; the hosts where it is below the narrowest."""
    index = supply.index
    if depth == len(index.at_depth):
        return [unit for domain in index.at_depth[-1] for unit in _hosts(supply, domain)]
    return [Unit(index.domains[number].path, supply.free_in[number], number) for number in index.at_depth[depth]]


def _below(supply: Supply, units: Sequence[Unit]) -> list[Unit]:
    """The children of all of these together."""
    index = supply.index
    below: list[Unit] = []
    for unit in units:
        domain = index.domains[unit.number]
        if domain.depth + 1 == len(index.at_depth):
            below += _hosts(supply, unit.number)
        else:
            below += [Unit(index.domains[n].path, supply.free_in[n], n) for n in domain.children]
    return below


def _hosts(supply: Supply, number: int) -> list[Unit]:
    domain = supply.index.domains[number]
    names, slots = supply.index.names, supply.slots
    return [Unit((*domain.path, names[n]), slots[n], n) for n in range(domain.first, domain.end) if slots[n] > 0]


BEST_FIT = "kueue-best-fit"
LEAST_FREE = "kueue-least-free"
UNCONSTRAINED = "kueue-unconstrained"


def best_fit() -> Kueue:
    """What a gang gets that prefers the narrowest level, by default."""
    return Kueue(BEST_FIT, least_free=False)


def least_free() -> Kueue:
    """The same with the profile LeastFreeCapacity."""
    return Kueue(LEAST_FREE, least_free=True)


def unconstrained() -> Kueue:
    """What a gang gets that asks for no level, by default."""
    return Kueue(UNCONSTRAINED, least_free=True, unconstrained=True)
