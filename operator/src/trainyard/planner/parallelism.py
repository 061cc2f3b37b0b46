"""A job's spec.parallelism to the mesh of its processes, to what they will say to each other, and to what that costs.

Without a word every process has a part of one copy of the model, as FSDP does it over the whole gang. Axes that are given are
taken; where both are left to the planner, the mesh is the best for the job's model on the nodes of the attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.api.training_job import TrainingJobSpec
from trainyard.planner import predict
from trainyard.planner.mesh import Site, choose, compute_seconds
from trainyard.planner.model import Model, model_of
from trainyard.planner.predict import Prediction, Summary
from trainyard.planner.traffic import REPLICATE, SHARD, Mesh, Traffic, traffic


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an attempt on certain nodes comes to. compute_seconds: of a step; None where model or accelerator are not known."""

    mesh: Mesh
    prediction: Prediction
    compute_seconds: float | None

    @property
    def summary(self) -> Summary:
        """The numbers for the status."""
        return predict.summary(self.prediction, self.compute_seconds)


def model_of_job(spec: TrainingJobSpec) -> Model | None:
    """The model that the built-in trainer will train; None for a script of one's own, of which nothing is known."""
    config = spec.training
    return model_of(config) if config is not None else None


def mesh_of(spec: TrainingJobSpec, site: Site) -> Mesh:
    """The mesh of an attempt.

    A gang that runs with fewer nodes than spec.nodes may have a number of processes that an axis does not divide: the axis then
    has the largest size that divides both.
    """
    wanted = spec.parallelism
    if wanted is None:
        return Mesh(shard=site.world)
    sizes = wanted.sizes
    if not sizes:
        model = model_of_job(spec)
        best = choose(model, site, others=False) if model is not None else ()
        return next((choice.mesh for choice in best if not choice.out), Mesh(shard=site.world))
    return _settled(sizes, site.world)


def traffic_of(spec: TrainingJobSpec, members: int) -> tuple[Traffic, ...]:
    """What a job of so many members will say in a step, before it is known where: () where its model is not known, or its mesh
    waits for its nodes."""
    model = model_of_job(spec)
    if model is None or (spec.parallelism is not None and not spec.parallelism.sizes):
        return ()
    world = members * spec.processes
    sizes = {} if spec.parallelism is None else spec.parallelism.sizes
    return traffic(model, _settled(sizes, world))


def estimate(
    spec: TrainingJobSpec, site: Site, others: Mapping[int, int] | None = None, mesh: Mesh | None = None
) -> Estimate:
    """What an attempt comes to on its nodes. others: as in `predict.step`. mesh: where it was settled before.

    Of a script of one's own nothing is known: then one all-reduce of 1 GiB over all processes is predicted.
    """
    mesh, model = mesh or mesh_of(spec, site), model_of_job(spec)
    wanted = traffic(model, mesh) if model is not None else ()
    found = predict.step(site.links, site.tree, site.nodes, site.processes_per_node, wanted, others)
    return Estimate(mesh, found, compute_seconds(model, mesh, site.accelerator) if model is not None else None)


def _settled(sizes: Mapping[str, int], world: int) -> Mesh:
    """Of axes of which at least one is given, or none: then all share one copy."""
    if REPLICATE not in sizes:
        shard = math.gcd(sizes.get(SHARD, world), world)
        return Mesh(replicate=world // shard, shard=shard)
    replicate = math.gcd(sizes[REPLICATE], world)
    return Mesh(replicate=replicate, shard=world // replicate)
