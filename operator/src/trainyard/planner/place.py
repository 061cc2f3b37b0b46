"""Which nodes a gang gets, all of them or none, and why not.

In this order: a required level is never left; the communication of the gang costs least (`cost`); it does without nodes that
failed or ran slow lately where that costs nothing; least is lost for the gangs to come (`fragments`), fewer others use the same
uplinks, and the fullest domains are filled up (`choice`). The first two are proven: the placement says how far it is from the
best possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from trainyard.planner import rank
from trainyard.planner.cost import NOTHING, Cost, Edges
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.request import Request
from trainyard.planner.search.seat import Seating, Wants, grounds, seat
from trainyard.planner.shortfall import CLUSTER, Shortfall, shortfall
from trainyard.topology.tree import Tree
from trainyard.world.supply import Supply

AVOIDED: Final = "in placement.avoidNodes"
"""Why a node that the job never gets is not eligible."""

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes of a gang.

    nodes: names in rank order; one that several members share stands there several times. spans: for each level, broadest first,
    over how many domains they extend. crossings: for each level how many edges of the closed ring of ranks leave a domain of it.
    cost: of its communication; bound: no placement that keeps to what is asked costs less, in the unit of cost.total.
    spares: nodes held ready besides, nearest first. worked: how many states the search looked at; spent: more would have been
    needed to prove or better it.
    """

    nodes: tuple[str, ...]
    spans: Mapping[str, int]
    crossings: Mapping[str, int]
    cost: Cost = NOTHING
    bound: float = 0.0
    spares: tuple[str, ...] = ()
    worked: int = 0
    spent: bool = False

    @property
    def span(self) -> str:
        """The narrowest level one domain of which holds the whole gang."""
        return next((level for level, domains in reversed([*self.spans.items()]) if domains == 1), CLUSTER)

    @property
    def gap(self) -> float:
        """By what share of the best possible the cost may be too high: 0.0 is optimal, 0.06 at most 6 % off; infinite where
        nothing is proven."""
        excess = self.cost.total - self.bound
        if excess <= _SLACK * self.cost.total:
            return 0.0
        return excess / self.bound if self.bound > 0 else inf

    @property
    def quality(self) -> str:
        """The gap in words."""
        if self.gap == inf:
            return "not proven"
        return "optimal" if self.gap == 0.0 else f"at most {ceil(self.gap * 100)} % off"


def place(supply: Supply, request: Request, outlook: Outlook = PLAIN) -> Placement | Shortfall:
    """The nodes of a gang in rank order, or why there are none.

    supply: of the request's demand. A level that is required is never left; one that is only wished for is tried, and where no
    domain of it has room the gang is spread over the fewest that do.
    """
    supply = supply.without(request.avoid, AVOIDED) if request.avoid else supply
    floor = required_depth(supply.tree, request)
    kinds = [supply] if request.mixed else supply.by_kind()
    if floor is not None:
        edges = outlook.edges(len(supply.tree.levels))
        found = [seating for kind in kinds if (seating := _seat(kind, request, floor, edges, outlook)) is not None]
        if found:
            best = min(found, key=lambda seating: (round(seating.value, 9), round(seating.lost, 9)))
            bound = min(seating.cost.total - seating.excess for seating in found)
            return _placement(supply.tree, best, max(0.0, bound))
    return _shortfall(supply, kinds, request, floor)


def required_depth(tree: Tree, request: Request) -> int | None:
    """The depth above which the gang may not spread: 0, the whole cluster, without a required level; None where the tree does
    not have that level."""
    if request.level is None or not request.required:
        return 0
    return tree.depth(request.level)


def _seat(supply: Supply, request: Request, floor: int, edges: Edges, outlook: Outlook) -> Seating | None:
    """Places on nodes of one kind; none on doubtful nodes where as good ones are found without."""
    if supply.free_in[0] < request.nodes:
        return None
    wants = Wants(request, floor, edges, outlook)
    found = seat(supply, wants)
    doubtful = [node for node in outlook.doubtful if _free(supply, node)]
    if found is None or not any(supply.index.names[position] in outlook.doubtful for position in found.ranked):
        return found
    calm = seat(supply.without(doubtful), wants)
    return calm if calm is not None and calm.value <= found.value + _SLACK else found


def _free(supply: Supply, node: str) -> bool:
    position = supply.index.position.get(node)
    return position is not None and supply.slots[position] > 0


def _placement(tree: Tree, seating: Seating, bound: float) -> Placement:
    names = tree.index.names
    ranked = tuple(names[position] for position in seating.ranked)
    return Placement(
        nodes=ranked,
        spans=rank.spans(tree, ranked),
        crossings=rank.crossings(tree, ranked),
        cost=seating.cost,
        bound=bound,
        spares=tuple(names[position] for position in seating.spares),
        worked=seating.worked,
        spent=seating.spent,
    )


def _shortfall(supply: Supply, kinds: Sequence[Supply], request: Request, floor: int | None) -> Shortfall:
    depth = floor or 0

    def nearest(kind: Supply) -> Iterator[tuple[bool, int, int]]:
        now, empty = grounds(kind, request)
        for number in supply.index.at_depth[depth]:
            total = empty.room[number]
            yield total >= request.nodes, now.room[number], total

    best = max(kinds, key=lambda kind: max(nearest(kind), default=(False, 0, 0))) if len(kinds) > 1 else kinds[0]
    now, empty = grounds(best, request)
    return shortfall(supply, best, now, empty, request, floor)


__all__ = [
    "AVOIDED",
    "CLUSTER",
    "Placement",
    "Shortfall",
    "place",
    "required_depth",
]
