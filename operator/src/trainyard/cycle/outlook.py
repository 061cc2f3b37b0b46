"""What decides between places that have room alike: the links of the network, and who uses them already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trainyard.lifecycle.gang import Gang
from trainyard.planner.links import Links, accelerator_most, links_of
from trainyard.planner.mesh import Site
from trainyard.planner.outlook import Outlook
from trainyard.topology.fabrics import choose, selects
from trainyard.topology.tree import Tree
from trainyard.world.observed import speeds
from trainyard.world.records import Fabric, Job, World


@dataclass(frozen=True)
class View:
    """The network as one cycle sees it; worked out when it is first asked for. jobs: with the statuses that count."""

    world: World
    tree: Tree
    jobs: tuple[Job, ...]
    gangs: Mapping[str, Gang]

    @cached_property
    def _outlook(self) -> Outlook:
        fabric = choose(self.world.nodes.values(), self.world.fabrics.values())
        labels = [node.labels for node in self.world.nodes.values()]
        links = _links(fabric, self.tree, labels)
        return Outlook(links=links, uplinks=uplinks(self.tree, self.jobs, self.gangs))

    def outlook(self, doubtful: frozenset[str] = frozenset()) -> Outlook:
        """For a job under which these nodes failed lately."""
        return replace(self._outlook, doubtful=doubtful) if doubtful else self._outlook

    def later(self) -> Outlook:
        """For a place that is free only once others have left: nobody knows who uses the uplinks then."""
        return replace(self._outlook, uplinks={})


def uplinks(tree: Tree, jobs: Iterable[Job], gangs: Mapping[str, Gang]) -> Mapping[int, int]:
    """By number of a domain, how many gangs send over its uplink: those that extend over several domains of its level."""
    index = tree.index
    used: Counter[int] = Counter()
    for job in jobs:
        plan = job.status.plan
        if job.status.started_at is None or plan is None or all(spans == 1 for spans in plan.spans.values()):
            continue
        positions = {index.position[node] for node in gangs[job.uid].nodes if node in index.position}
        domains = {index.innermost[position] for position in positions}
        while domains and domains != {0}:
            if len(domains) > 1:
                used.update(domains)
            domains = {index.domains[number].parent for number in domains}
    return dict(sorted(used.items()))


def site_of(world: World, tree: Tree, job: Job, nodes: Iterable[str], *, as_said: bool = False) -> Site:
    """What the members of a gang have to talk over, by what its own nodes say. nodes: in rank order.

    as_said: by the specification alone, whatever was measured.
    """
    assert job.spec is not None
    ranked = tuple(nodes)
    there = [world.nodes[name] for name in dict.fromkeys(ranked) if name in world.nodes]
    fabric = choose(there, world.fabrics.values())
    labels = [node.labels for node in there]
    links = _links(fabric, tree, labels, as_said)
    return Site(links, tree, ranked, job.spec.processes, accelerator_most(labels))


def links_on(world: World, tree: Tree, fabric: Fabric) -> Links:
    """Those of the nodes that a Fabric is for."""
    return _links(fabric, tree, [node.labels for node in world.nodes.values() if selects(fabric.spec, node.labels)])


def _links(fabric: Fabric | None, tree: Tree, labels: Sequence[Mapping[str, str]], as_said: bool = False) -> Links:
    if fabric is None:
        return links_of(None, tree.levels, labels)
    return links_of(fabric.spec, tree.levels, labels, None if as_said else speeds(fabric.observed))
