"""What a job asks of the cluster, apart from everything else about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.api.template import pod_spec
from trainyard.api.training_job import TrainingJobSpec
from trainyard.planner.parallelism import traffic_of
from trainyard.planner.traffic import Traffic
from trainyard.world.demand import Demand, demand
from trainyard.world.records import Resources
from trainyard.world.resources import pod_requests


@dataclass(frozen=True, slots=True)
class Request:
    """A gang that needs nodes.

    nodes: its members. requests: of one. pod_spec: what decides which nodes would take one. avoid: nodes that it never gets.
    level: the tier that it should not leave, None for the narrowest that fits; required: whether it waits for such a domain.
    minimum: the fewest members that it may run with, 0 where it needs all. per_node: the most members that share a node.
    segment: so many consecutive ranks lie in one domain of `segment_level` each, 1 for no such wish; segment_required: whether
    it waits for that. spares: nodes held ready besides. processes: of each member. traffic: what they say to each other in a
    step; () for one ring over all. mixed: whether its members may have accelerators of several kinds. among: names of the nodes
    of the network that it is planned on; None: all. unfit: nodes on which its preflight failed lately.
    """

    job: str
    nodes: int
    requests: Resources
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    avoid: frozenset[str] = frozenset()
    level: str | None = None
    required: bool = False
    minimum: int = 0
    per_node: int = 1
    segment: int = 1
    segment_level: str | None = None
    segment_required: bool = True
    spares: int = 0
    processes: int = 1
    traffic: tuple[Traffic, ...] = ()
    mixed: bool = False
    among: frozenset[str] | None = None
    unfit: frozenset[str] = frozenset()

    @property
    def at_least(self) -> int:
        """The fewest members that it may run with; all of them unless it is elastic."""
        return min(self.nodes, self.minimum) or self.nodes

    @property
    def demand(self) -> Demand:
        """What each member asks of its node."""
        return demand(self.pod_spec, self.requests, self.per_node, self.among, self.unfit)


def request(job: str, spec: TrainingJobSpec, avoid: Collection[str] = (), requests: Resources | None = None) -> Request:
    """The request of a TrainingJob. job: as messages name it; avoid: nodes besides those of spec.placement.avoidNodes.
    requests: of a member with all that its network adds; what the template asks for where nothing is known of that."""
    pod = pod_spec(spec.template)
    within, segments = spec.placement.within, spec.placement.segments
    return Request(
        job=job,
        nodes=spec.nodes,
        requests=pod_requests(pod) if requests is None else requests,
        pod_spec=pod,
        avoid=frozenset((*spec.placement.avoid_nodes, *avoid)),
        level=within.level if within else None,
        required=within is not None and within.required,
        minimum=spec.fewest_nodes,
        per_node=spec.placement.pods_per_node,
        segment=segments.nodes if segments is not None else 1,
        segment_level=segments.level if segments is not None else None,
        segment_required=segments.required if segments is not None else True,
        spares=spec.placement.spares,
        mixed=spec.placement.mixed,
        processes=spec.processes,
        traffic=traffic_of(spec, spec.nodes),
    )
