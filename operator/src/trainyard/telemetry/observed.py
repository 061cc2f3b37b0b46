"""Series of what was measured on fabrics: a level that carries less than it should is seen here, before anybody's job is slow."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily

from trainyard.cycle.outlook import links_on
from trainyard.topology.tree import Tree
from trainyard.world.records import World


def observed_families(world: World, tree: Tree) -> Iterator[GaugeMetricFamily]:
    """The series, in a fixed order. What is too old for plans is told all the same, with its time beside it."""
    ratio = GaugeMetricFamily(
        "trainyard_fabric_observed_ratio",
        "What one node was seen to send over a level, over what is declared or assumed.",
        labels=["fabric", "level"],
    )
    when = GaugeMetricFamily(
        "trainyard_fabric_observed_timestamp_seconds",
        "When a level was last measured; after a day it counts no more.",
        labels=["fabric", "level"],
    )
    for name, fabric in sorted(world.fabrics.items()):
        if fabric.observed is None or not fabric.observed.links:
            continue
        for level, share in links_on(world, tree, fabric).observed:
            ratio.add_metric([name, level], share)
            when.add_metric([name, level], max(row.time for row in fabric.observed.links if row.level == level))
    yield from (ratio, when)
