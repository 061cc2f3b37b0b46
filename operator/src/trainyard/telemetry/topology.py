"""Series of the network's labels: which dialect counts, how complete it is, what contradicts itself.

Placement is as good as these labels, and they are written by others; a node pool that came up without them is seen here first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from trainyard.topology.coverage import Coverage, coverage
from trainyard.topology.detection import Detected, detect
from trainyard.topology.tree import Tree, build
from trainyard.world.records import Fabric, Node, World


class Layout:
    """The tree of the last world that it was asked about. Made anew only for other nodes or Fabrics: scrapes come often."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.coverage = Coverage(Detected(), 0, 0, ())
        self._nodes: Mapping[str, Node] = {}
        self._fabrics: Mapping[str, Fabric] = {}

    def of(self, world: World) -> Layout:
        """Itself, of this world."""
        if world.nodes is not self._nodes or world.fabrics is not self._fabrics:
            nodes = world.nodes.values()
            detected = detect(nodes, world.fabrics.values())
            self.tree = build(nodes, detected.levels)
            self.coverage = coverage(self.tree, nodes, detected)
            self._nodes, self._fabrics = world.nodes, world.fabrics
        return self


def topology_families(covered: Coverage) -> Iterator[GaugeMetricFamily]:
    """The series, in a fixed order."""
    detected = covered.detected
    info = GaugeMetricFamily(
        "trainyard_topology_info",
        "Always 1; what tells the network: source is the dialect or the Fabric, nvlink the dialect that completes it.",
        labels=["source", "described_by", "nvlink"],
    )
    by = "fabric" if detected.described else "labels" if detected.levels else "nothing"
    if covered.nodes:  # a standby has seen none, and has nothing to say beside the leader
        info.add_metric([detected.source, by, detected.nvlink], 1)
    nodes = GaugeMetricFamily(
        "trainyard_topology_nodes",
        "Nodes with accelerators by whether they carry a level's label; an unlabelled one shares nothing with any other.",
        labels=["level", "state"],
    )
    domains = GaugeMetricFamily("trainyard_topology_domains", "Domains of a level.", labels=["level"])
    conflicts = GaugeMetricFamily(
        "trainyard_topology_conflicts",
        "Names of a level that are those of several domains, below different parents.",
        labels=["level"],
    )
    for level in covered.levels:
        nodes.add_metric([level.level.name, "labelled"], level.labelled)
        nodes.add_metric([level.level.name, "unlabelled"], len(level.lacking))
        domains.add_metric([level.level.name], level.domains)
        conflicts.add_metric([level.level.name], len(level.conflicts))
    others = GaugeMetricFamily(
        "trainyard_topology_other_dialect_nodes",
        "Nodes with accelerators that carry labels of a dialect that does not count.",
        labels=["dialect"],
    )
    for other in detected.others:
        others.add_metric([other.dialect], other.nodes)
    yield from (info, nodes, domains, conflicts, others)
