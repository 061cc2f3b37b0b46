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
from trainyard.planner.machines import GB
from trainyard.planner.memory import memory
from trainyard.planner.mesh import Site, choose, compute_seconds, too_large, usable_bytes
from trainyard.planner.model import Model, model_of
from trainyard.planner.predict import Prediction, Predictor, Summary
from trainyard.planner.traffic import PIPELINE, REPLICATE, SHARD, TENSOR, Mesh, Traffic, traffic


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
    model = model_of_job(spec)
    if model is not None and not wanted.settled:
        best = choose(model, site, fixed=wanted.sizes)
        if best and not best[0].out:
            return best[0].mesh
    return _settled(wanted.sizes, site.world)


def misfit(spec: TrainingJobSpec, site: Site) -> str:
    """Why the model does not fit into the accelerators of a site, shared as the job says, and which mesh needs least; "" where it
    fits or where model or accelerator are not known."""
    model, limit = model_of_job(spec), usable_bytes(site.accelerator)
    if model is None or limit is None:
        return ""
    mesh = mesh_of(spec, site)
    needed = memory(model, mesh)
    if needed.total <= limit:
        return ""
    least = min(choose(model, site), key=lambda choice: choice.memory.total)
    return (
        f"spec.parallelism: with {mesh} a process {too_large(needed, limit)}: {needed}; {least.mesh} needs "
        f"{least.memory.total / GB:.1f} GB"
        + ("" if least.memory.total <= limit else ", use more nodes or a smaller microBatch")
    )


def traffic_of(spec: TrainingJobSpec, members: int) -> tuple[Traffic, ...]:
    """What a job of so many members will say in a step, before it is known where: () where its model is not known, or its mesh
    waits for its nodes."""
    model = model_of_job(spec)
    if model is None or (spec.parallelism is not None and not spec.parallelism.settled):
        return ()
    world = members * spec.processes
    sizes = {} if spec.parallelism is None else spec.parallelism.sizes
    return traffic(model, _settled(sizes, world))


def estimate(
    spec: TrainingJobSpec, site: Site, others: Mapping[int, int] | None = None, mesh: Mesh | None = None
) -> Estimate:
    """What an attempt comes to on its nodes. others: as in `predict.Predictor`. mesh: where it was settled before.

    Of a script of one's own nothing is known: then one all-reduce of 1 GiB over all processes is predicted.
    """
    mesh, model = mesh or mesh_of(spec, site), model_of_job(spec)
    wanted = traffic(model, mesh, nested=site.nested(model, mesh)) if model is not None else ()
    shared = Predictor(site.links, site.tree, site.nodes, site.processes_per_node, others) if others else site.predictor
    found = shared.step(wanted)
    return Estimate(mesh, found, compute_seconds(model, mesh, site.accelerator) if model is not None else None)


def _settled(sizes: Mapping[str, int], world: int) -> Mesh:
    """What follows from the axes that have a number: tensor and pipeline take their share of the processes first; without a word
    on the others, all that are left share one copy."""
    tensor = math.gcd(sizes.get(TENSOR, 1), world)
    pipeline = math.gcd(sizes.get(PIPELINE, 1), world // tensor)
    left = world // (tensor * pipeline)
    if REPLICATE in sizes:
        replicate = math.gcd(sizes[REPLICATE], left)
        return Mesh(pipeline, replicate, left // replicate, tensor)
    shard = math.gcd(sizes.get(SHARD, left), left)
    return Mesh(pipeline, left // shard, shard, tensor)
