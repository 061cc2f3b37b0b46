"""How much of what is free is of use: gangs that would fit, by size and level, and what no gang can use.

A gang of a size wants to be within one domain of the narrowest level that could hold it if all were empty. What is free there
beyond whole gangs is of no use to it; the mean of that over the sizes that people ask for is the measure of FGD (Weng et al.,
ATC 2023), with the multi-level cells of HiveD (Zhao et al., OSDI 2020) in the place of single accelerators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.api.template import is_accelerator
from trainyard.planner.place import CLUSTER
from trainyard.planner.search.fragments import SIZES
from trainyard.world.inventory import Inventory
from trainyard.world.kinds import kind
from trainyard.world.supply import Supply, supply


@dataclass(frozen=True, slots=True)
class AtLevel:
    """Free gangs within single domains of one level.

    slots: by size, how many gangs would fit at once, each within one domain. largest: the members of the largest gang that
    fits; domain: where, "" where none does. whole: of the largest that would fit if all were empty.
    """

    level: str
    slots: Mapping[int, int]
    largest: int
    domain: str
    whole: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """free, whole: members that fit now, and that would if all were empty. levels: the whole cluster first, then broadest first.

    unusable: for each size the share of what is free that gangs of it cannot use; sizes that the empty cluster could not hold
    are left out. expected: the mean of these by weight; 0.0 where nothing is free.
    """

    free: int
    whole: int
    levels: tuple[AtLevel, ...]
    unusable: Mapping[int, float]
    expected: float


def fragmentation(supply: Supply, sizes: Mapping[int, float] = SIZES, loose: float = 0.0) -> Fragmentation:
    """The fragmentation of a supply. sizes: gang sizes in members with their weights, any positive numbers.

    loose: what is free on nodes that have no room for a whole member, in members; no gang can use it.
    """
    levels = tuple(_at_level(supply, depth, sizes) for depth in range(len(supply.index.at_depth)))
    free = supply.free_in[0]
    unusable: dict[int, float] = {}
    for size in sorted(sizes):
        home = next((at for at in reversed(levels) if at.whole >= size), None)
        if home is not None:
            used = home.slots[size] * size
            unusable[size] = (free + loose - used) / (free + loose) if free + loose else 0.0
    weight = sum(sizes[size] for size in unusable)
    expected = sum(sizes[size] * share for size, share in unusable.items()) / weight if weight else 0.0
    return Fragmentation(free, supply.whole_in[0], levels, unusable, expected)


def _at_level(supply: Supply, depth: int, sizes: Mapping[int, float]) -> AtLevel:
    numbers = supply.index.at_depth[depth]
    roomiest = max(numbers, key=lambda number: supply.free_in[number], default=0)
    largest = supply.free_in[roomiest]
    return AtLevel(
        level=supply.tree.levels[depth - 1].name if depth else CLUSTER,
        slots={size: sum(supply.free_in[number] // size for number in numbers) for size in sorted(sizes)},
        largest=largest,
        domain=("/".join(supply.index.domains[roomiest].path) or CLUSTER) if largest else "",
        whole=max((supply.whole_in[number] for number in numbers), default=0),
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes of one kind, which a gang does not mix with others, as gangs of whole nodes see them.

    name: as `8 nvidia.com/gpu, NVIDIA-H100-80GB-HBM3`. free, total: accelerators of nodes that are ready and not cordoned, those
    on nodes that are taken in part included.
    """

    name: str
    free: int
    total: int
    gangs: Fragmentation


def kinds(inventory: Inventory, sizes: Mapping[int, float] = SIZES) -> tuple[Kind, ...]:
    """The kinds of nodes of a cluster that have accelerators, in order of their names.

    A node counts as free when it is ready, not cordoned, and all of its accelerators are free; what jobs ask for besides, and
    which taints they tolerate, is theirs and does not count.
    """
    found: dict[str, list[int]] = {}
    for position, name in enumerate(inventory.tree.index.names):
        of = kind(inventory.nodes[name])
        if of:
            found.setdefault(of, []).append(position)
    return tuple(_kind(inventory, name, found[name], sizes) for name in sorted(found))


def _kind(inventory: Inventory, name: str, positions: list[int], sizes: Mapping[int, float]) -> Kind:
    tree = inventory.tree
    slots, whole = [0] * len(tree.index.names), [0] * len(tree.index.names)
    reasons: list[str | None] = ["of another kind"] * len(slots)
    free = total = each = 0
    for position in positions:
        node = inventory.nodes[tree.index.names[position]]
        if not node.is_open:
            reasons[position] = "not ready, cordoned or marked"
            continue
        room = inventory.free(node.name)
        own = {one: amount for one, amount in node.allocatable.items() if amount > 0 and is_accelerator(one)}
        left = sum(min(amount, max(0, room.get(one, 0))) for one, amount in own.items())
        each = sum(own.values())
        free, total = free + left, total + each
        reasons[position], whole[position], slots[position] = None, 1, left // each
    counted = supply(tree, slots, whole, reasons)
    loose = free / each - counted.free_in[0] if each else 0.0
    return Kind(name, free, total, fragmentation(counted, sizes, loose))
