"""The least that a gang's ring can cost on what is free, proven by HiGHS: what a planner's choice is measured against.

The cost is the planner's (`trainyard.planner.cost`), written down again here as a mixed-integer program: for every member the
seconds per byte of the slowest edge of the ring, and for every domain that the ring leaves the seconds per byte of its
uplink. In depth-first order a ring leaves each domain that it uses once, and none of a level where one domain holds all of
it. So only which domains are used decides, and leaves with as many free nodes below the same parent are the same: the program
counts how many of each kind are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import highspy
from trainyard.planner.cost import Edges
from trainyard.world.supply import Supply

MOST_NODES: Final = 20_000
"""Branch-and-bound nodes after which HiGHS stops; what is not proven by then is counted against HiGHS's bound."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """cost: of the best choice found; bound: no choice costs less; proven: they are the same."""

    cost: float
    bound: float
    proven: bool


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds per byte. uplinks: of a domain of each level, broadest first. paces: of the slowest edge of a ring, by the
    depth of the narrowest domain that holds all of it: 0, the whole cluster, up to the number of levels."""

    uplinks: tuple[float, ...]
    paces: tuple[float, ...]


def price_of(edges: Edges, levels: int) -> Price:
    """The planner's price of edges."""
    return Price(tuple(edges.uplink(d) for d in range(1, levels + 1)), tuple(edges.pace(d) for d in range(levels + 1)))


def ring_cost(supply: Supply, ranks: Sequence[int], price: Price) -> float:
    """What a ring over these positions in this order costs, in member-seconds per byte. An edge that leaves a broad domain
    leaves the narrow ones in it as well and pays for each."""
    edges = ring_edges(supply, ranks)
    span = next((depth for depth in range(len(edges), 0, -1) if not edges[depth - 1]), 0)
    return len(ranks) * price.paces[span] + sum(a * b for a, b in zip(price.uplinks, edges, strict=True))


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


def optimum(supply: Supply, members: int, price: Price, most_nodes: int = MOST_NODES) -> Optimum | None:
    """The least that a ring over so many free places can cost; None where there are not so many. members: 2 or more."""
    if supply.free_in[0] < members:
        return None
    return _Program(supply, members, price).solve(most_nodes)


class _Program:
    """With u_d the price of an uplink of depth d and p_d the pace of a ring in one domain of depth d, for n members:

        min  n p_0 + sum_d u_d (k_d - s_d) - n (p_(d-1) - p_d) s_d

    where k_d is the number of domains of depth d that are used and s_d is 1 if it is 1, else 0.
    """

    def __init__(self, supply: Supply, members: int, price: Price) -> None:
        self._highs = highspy._Highs()  # type: ignore[attr-defined]  # highspy.Highs prints a banner before it can be told not to
        self._highs.setOptionValue("output_flag", False)
        self._supply, self._members = supply, members
        self._unit = price.paces[-1]  # in which costs are counted, since HiGHS's tolerances are absolute
        self._used = {0: self._variable(1, 1, members * price.paces[0])}
        for depth, uplink in enumerate(price.uplinks, start=1):
            faster = members * (price.paces[depth - 1] - price.paces[depth])
            self._level(depth, uplink, faster, narrowest=depth == len(price.uplinks))

    def solve(self, most_nodes: int) -> Optimum:
        self._highs.setOptionValue("mip_max_nodes", most_nodes)
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("mip_rel_gap", 0.0)
        self._highs.run()
        info = self._highs.getInfo()
        proven = self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return Optimum(info.objective_function_value * self._unit, info.mip_dual_bound * self._unit, proven)

    def _level(self, depth: int, uplink: float, faster: float, narrowest: bool) -> None:
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
            variable = self._variable(0, count, uplink)
            self._constrain([variable, self._used[parent]], [1, -count], -highspy.kHighsInf, 0)
            taken.append(variable)
            room.append(free)
            if not narrowest:
                self._used[-kind] = variable
        self._constrain(taken, room, self._members, highspy.kHighsInf)
        alone = self._variable(0, 1, -uplink - faster)
        others = len(usable) - 1
        self._constrain([*taken, alone], [*[1] * len(taken), others], 1, 1 + others)

    def _variable(self, lower: float, upper: float, cost: float = 0.0) -> int:
        """A whole number. Returns its column."""
        column = self._highs.getNumCol()
        self._highs.addCol(cost / self._unit, lower, upper, 0, [], [])
        self._highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        return int(column)

    def _constrain(self, columns: Sequence[int], factors: Sequence[float], lower: float, upper: float) -> None:
        self._highs.addRow(lower, upper, len(columns), list(columns), list(factors))
