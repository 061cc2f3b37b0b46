"""Jobs and plans of which objects are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.clusters import a_cluster, a_tree
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.contract.plan import Plan
from trainyard.planner import rank
from trainyard.planner.place import Placement
from trainyard.render.plan import plan_for
from trainyard.topology.tree import Tree
from trainyard.world.records import Job

UID = "0b5f9a6e-7c1d-4e6b-9d57-2f3f6f0c1a11"

CLUSTER = a_cluster()
TREE = a_tree(CLUSTER)


def a_job(
    *,
    container: Mapping[str, Any] | None = None,
    pod: Mapping[str, Any] | None = None,
    status: TrainingJobStatus | None = None,
    **spec: Any,
) -> Job:
    """A job of our image. container, pod: what its template says besides; spec: its other fields, camelCase as in YAML."""
    template = {
        "spec": {
            "containers": [{"name": "trainer", "image": "trainyard/trainer:0.1.0", **(container or {})}],
            **(pod or {}),
        }
    }
    return Job(
        namespace="research",
        name="small-lm",
        uid=UID,
        generation=1,
        resource_version="7",
        created=0.0,
        spec=TrainingJobSpec.model_validate({"nodes": 4, "template": template, **spec}),
        status=status or TrainingJobStatus(),
    )


def a_plan(
    job: Job, nodes: Sequence[str] = ("a1-0", "a1-1", "a2-0", "a2-1"), tree: Tree = TREE, attempt: int = 2
) -> Plan:
    """The plan of an attempt whose first member is the job's fifth."""
    known = [node for node in nodes if node in tree.paths]
    placement = Placement(tuple(nodes), rank.spans(tree, known), rank.crossings(tree, known))
    return plan_for(job, attempt, placement, tree, members=range(4, 4 + len(placement.nodes)))
