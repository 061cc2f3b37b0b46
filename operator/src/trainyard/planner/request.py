"""What a job asks of the cluster, apart from everything else about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.api.template import pod_spec
from trainyard.api.training_job import TrainingJobSpec
from trainyard.world.demand import Demand, demand
from trainyard.world.records import Resources
from trainyard.world.resources import pod_requests


@dataclass(frozen=True, slots=True)
class Request:
    """A gang that needs nodes, one member on each.

    requests: of one member. pod_spec: what decides which nodes would take one. avoid: nodes that it never gets.
    level: the tier that it should not leave, None for the narrowest that fits; required: whether it waits for such a domain.
    """

    job: str
    nodes: int
    requests: Resources
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    avoid: frozenset[str] = frozenset()
    level: str | None = None
    required: bool = False

    @property
    def demand(self) -> Demand:
        """What each member asks of its node."""
        return demand(self.pod_spec, self.requests)


def request(job: str, spec: TrainingJobSpec, avoid: Collection[str] = ()) -> Request:
    """The request of a TrainingJob. job: as messages name it; avoid: nodes besides those of spec.placement.avoidNodes."""
    pod = pod_spec(spec.template)
    within = spec.placement.within
    return Request(
        job=job,
        nodes=spec.nodes,
        requests=pod_requests(pod),
        pod_spec=pod,
        avoid=frozenset((*spec.placement.avoid_nodes, *avoid)),
        level=within.level if within else None,
        required=within is not None and within.required,
    )
