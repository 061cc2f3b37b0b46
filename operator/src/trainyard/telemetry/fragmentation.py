"""Series of what is free: which gangs would fit now, level by level, and what of it no gang can use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily

from trainyard.planner.fragmentation import Kind, kinds
from trainyard.world.inventory import Inventory
from trainyard.world.records import World


class Stock:
    """What is free in the last world that it was asked about; it recounts what is another since."""

    def __init__(self) -> None:
        self._inventory = Inventory()

    def of(self, world: World) -> tuple[Kind, ...]:
        """The kinds of nodes of this world, with their gangs."""
        self._inventory.refresh(world)
        return kinds(self._inventory)


def fragmentation_families(found: Iterable[Kind]) -> Iterator[GaugeMetricFamily]:
    """The series, in a fixed order. kind: of the nodes, whose gangs do not mix; size: of a gang, in nodes."""
    kind = ["kind"]
    accelerators = GaugeMetricFamily(
        "trainyard_fragmentation_free_accelerators",
        "Free accelerators of nodes that are ready and not cordoned, those of nodes taken in part included.",
        labels=kind,
    )
    gangs = GaugeMetricFamily(
        "trainyard_fragmentation_free_gangs",
        "Gangs of so many whole nodes that would fit at once, each within one domain of the level.",
        labels=[*kind, "level", "size"],
    )
    largest = GaugeMetricFamily(
        "trainyard_fragmentation_largest_gang_nodes",
        "Nodes of the largest gang that would fit within one domain of the level.",
        labels=[*kind, "level"],
    )
    unusable = GaugeMetricFamily(
        "trainyard_fragmentation_unusable_ratio",
        "Share of the free accelerators that gangs of so many nodes cannot use, in the narrowest level that could hold one.",
        labels=[*kind, "size"],
    )
    expected = GaugeMetricFamily(
        "trainyard_fragmentation_expected_ratio",
        "The same over gangs of 2 to 64 nodes, each size weighted by 1/size.",
        labels=kind,
    )
    for one in found:
        names = [one.name]
        accelerators.add_metric(names, one.free)
        for at in one.gangs.levels:
            largest.add_metric([*names, at.level], at.largest)
            for size, slots in at.slots.items():
                gangs.add_metric([*names, at.level, str(size)], slots)
        for size, share in one.gangs.unusable.items():
            unusable.add_metric([*names, str(size)], share)
        expected.add_metric(names, one.gangs.expected)
    yield from (accelerators, gangs, largest, unusable, expected)
