"""The least that a gang's ring can cost on what is free, proven by HiGHS: what a planner's choice is measured against.

The cost of a choice is the sum, over the levels, of the ring edges that leave a domain of the level times what one such edge
costs. With the ranks in depth-first order those edges are as few as the nodes allow: one for each domain that is used, and
none where one domain holds all. So only which domains are used decides, and leaves with as many free nodes below the same
parent are the same: the program counts how many of each kind are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import highspy
from trainyard.world.supply import Supply

MOST_NODES: Final = 20_000
"""Branch-and-bound nodes after which HiGHS stops; what is not proven by then is counted against HiGHS's bound."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """cost: of the best choice found; bound: no choice costs less; proven: they are the same."""

    cost: float
    bound: float
    proven: bool


def ring_cost(supply: Supply, ranks: Sequence[int], weights: Sequence[float]) -> float:
    """What a ring over these positions in this order costs. weights: what an edge costs that leaves a domain of the level, by
    level, broadest first; one that leaves a broad domain leaves the narrow ones in it as well and pays for each."""
    return sum(weight * edges for weight, edges in zip(weights, ring_edges(supply, ranks), strict=True))


def ring_edges(supply: Supply, ranks: Sequence[int]) -> list[int]:
    """By level, broadest first, how many edges of the closed ring leave a domain of it."""
    domains, depths = supply.index.domains, len(supply.index.at_depth) - 1
    edges = [0] * depths
    for here, there in zip(ranks, [*ranks[1:], *ranks[:1]], strict=True):
        a, b = supply.index.innermost[here], supply.index.innermost[there]
        depth = depths
        while a != b:
            edges[depth - 1] += 1
            depth -= 1
            a, b = domains[a].parent, domains[b].parent
    return edges


def fewest_edges(supply: Supply, nodes: Sequence[int]) -> list[int]:
    """By level the fewest edges that a closed ring over these nodes can have: that of any depth-first order."""
    return ring_edges(supply, sorted(nodes))


def optimum(supply: Supply, members: int, weights: Sequence[float], most_nodes: int = MOST_NODES) -> Optimum | None:
    """The least that a ring over so many free places can cost; None where there are not so many."""
    if supply.free_in[0] < members:
        return None
    program = _Program(supply, members, weights)
    return program.solve(most_nodes)


class _Program:
    """min sum_d w_d (k_d - s_d), where k_d is the number of domains of depth d that are used and s_d is 1 if it is 1, else
    0."""

    def __init__(self, supply: Supply, members: int, weights: Sequence[float]) -> None:
        self._highs = highspy._Highs()  # type: ignore[attr-defined]  # highspy.Highs prints a banner before it can be told not to
        self._highs.setOptionValue("output_flag", False)
        self._supply, self._members = supply, members
        self._used = {0: self._variable(1, 1)}
        for depth, weight in enumerate(weights, start=1):
            self._level(depth, weight, narrowest=depth == len(weights))

    def solve(self, most_nodes: int) -> Optimum:
        self._highs.setOptionValue("mip_max_nodes", most_nodes)
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("mip_rel_gap", 0.0)
        self._highs.run()
        info = self._highs.getInfo()
        proven = self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return Optimum(info.objective_function_value, info.mip_dual_bound, proven)

    def _level(self, depth: int, weight: float, narrowest: bool) -> None:
        """The domains of a depth: as many as are used cost, and together they hold the gang."""
        supply = self._supply
        usable = [number for number in supply.index.at_depth[depth] if supply.free_in[number]]
        kinds: Counter[tuple[int, int]] = Counter()
        for number in usable:
            parent = supply.index.domains[number].parent
            kinds[(parent, supply.free_in[number] if narrowest else -number)] += 1
        taken, room = [], []
        for (parent, kind), count in kinds.items():
            free = kind if narrowest else supply.free_in[-kind]
            variable = self._variable(0, count, weight)
            self._constrain([variable, self._used[parent]], [1, -count], -highspy.kHighsInf, 0)
            taken.append(variable)
            room.append(free)
            if not narrowest:
                self._used[-kind] = variable
        self._constrain(taken, room, self._members, highspy.kHighsInf)
        alone = self._variable(0, 1, -weight)
        others = len(usable) - 1
        self._constrain([*taken, alone], [*[1] * len(taken), others], 1, 1 + others)

    def _variable(self, lower: float, upper: float, cost: float = 0.0) -> int:
        """A whole number. Returns its column."""
        column = self._highs.getNumCol()
        self._highs.addCol(cost, lower, upper, 0, [], [])
        self._highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        return int(column)

    def _constrain(self, columns: Sequence[int], factors: Sequence[float], lower: float, upper: float) -> None:
        self._highs.addRow(lower, upper, len(columns), list(columns), list(factors))
