"""How the processes of a job share the work: data parallel, sharded, tensor, pipeline, and products of them.

Every mesh that divides the processes is a candidate; for each, the memory of a process and the time of a step on the very nodes
that the job would get. The fastest that fits is chosen, and of those hardly slower the simplest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from trainyard.planner.links import Links
from trainyard.planner.machines import GB, Accelerator
from trainyard.planner.memory import USABLE, Memory, memory
from trainyard.planner.model import FLOAT32_SHARE, Model
from trainyard.planner.nested import Path, nested
from trainyard.planner.predict import Prediction, Predictor, StepTime
from trainyard.planner.traffic import REPLICATE, SHARD, TENSOR, Mesh, traffic
from trainyard.topology.tree import Tree

FLOPS_SHARE: Final = 0.40
"""Of an accelerator's published rate while it computes (assumed; Llama 3 reports 38 to 43 %, torchtitan 33 to 39 %)."""
WORTH_IT: Final = 0.05
"""How much faster a mesh with more axes has to be than a simpler one: the prediction is not more exact than that."""
MAX_PIPELINE: Final = 64
"""Most stages that are looked at."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A mesh with what it would take.

    limit_bytes: of memory that may be used, None where nothing is known of the accelerator. prediction, step: None for a mesh
    that does not fit. out: why it cannot be had; empty where it can.
    """

    mesh: Mesh
    memory: Memory
    limit_bytes: float | None
    prediction: Prediction | None
    step: StepTime | None
    out: str = ""


@dataclass(frozen=True)
class Site:
    """What a mesh is laid over. nodes: of the members in rank order. accelerator: None where it is not known: then everything
    fits, and the communication alone decides."""

    links: Links
    tree: Tree
    nodes: Sequence[str]
    processes_per_node: int
    accelerator: Accelerator | None = None

    @property
    def world(self) -> int:
        """Number of processes."""
        return len(self.nodes) * self.processes_per_node

    @cached_property
    def predictor(self) -> Predictor:
        """With nobody else on the links; the same for all meshes."""
        return Predictor(self.links, self.tree, self.nodes, self.processes_per_node)

    def nested(self, model: Model, mesh: Mesh) -> tuple[int, ...]:
        """The groups in which the replicas of a mesh sum, where they do so by levels of the network; () where not."""
        if not model.hierarchical or mesh.replicate < 2:
            return ()
        return nested(self.paths, mesh.replicate, mesh.stride(REPLICATE))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """By rank, the domains of its node as far as they are known, and the node. Found once for all meshes."""
        of = {node: (*self.tree.known(node), node) for node in dict.fromkeys(self.nodes)}
        return tuple(of[node] for node in self.nodes for _ in range(self.processes_per_node))


def choose(model: Model, site: Site, fixed: Mapping[str, int] | None = None) -> tuple[Choice, ...]:
    """All meshes, best first; at the end those that cannot be had, each with the reason.

    fixed: sizes that the user has settled.
    """
    found = [_judged(mesh, model, site) for mesh in meshes(model, site.world, site.processes_per_node, fixed)]
    possible = sorted((choice for choice in found if not choice.out), key=_order)
    out = sorted((choice for choice in found if choice.out), key=_order)
    if possible:
        bound = _seconds(possible[0]) * (1 + WORTH_IT)
        near = (choice for choice in possible if _seconds(choice) <= bound)
        simplest = min(near, key=lambda choice: (len(choice.mesh.axes), -choice.mesh.shard))
        possible = [simplest, *(choice for choice in possible if choice is not simplest)]
    return (*possible, *out)


def meshes(model: Model, world: int, processes_per_node: int, fixed: Mapping[str, int] | None = None) -> Iterator[Mesh]:
    """Every mesh worth looking at. Tensor groups stay inside a node and divide the heads and the sequence; stages hold equally
    many layers and have a micro-batch each. Beside either, a model is sharded over all that is left, or not at all.

    fixed: sizes that the user has settled: a mesh that has one is worth looking at.
    """
    settled = fixed or {}
    for tensor in divisors(world) if TENSOR in settled else divisors(processes_per_node):
        if any(count % tensor for count in (model.heads, model.kv_heads, model.hidden, model.sequence)):
            continue
        for pipeline in divisors(world // tensor):
            left = world // (tensor * pipeline)
            stages = pipeline * model.stages_per_rank if pipeline > 1 else 1
            if pipeline > MAX_PIPELINE or model.layers % stages or -(-model.global_batch // left) < pipeline:
                continue
            every = (tensor == 1 and pipeline == 1) or SHARD in settled or REPLICATE in settled
            for shard in divisors(left) if every else dict.fromkeys((1, left)):
                mesh = Mesh(pipeline, left // shard, shard, tensor)
                if all(getattr(mesh, axis) == size for axis, size in settled.items()):
                    yield mesh


def divisors(number: int) -> tuple[int, ...]:
    """What divides a number, smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return (*small, *(number // n for n in reversed(small) if n * n != number))


def compute_seconds(model: Model, mesh: Mesh, accelerator: Accelerator | None) -> float | None:
    """What a step computes for, None on an unknown accelerator.

    Samples of the rank that has most, at an assumed share of the accelerator's rate; a pipeline idles besides (`Model.idle`).
    """
    if accelerator is None:
        return None
    micro_batches, rows = model.micro_batches(mesh.data_parallel, mesh.pipeline)
    rate = accelerator.flops * FLOPS_SHARE * (FLOAT32_SHARE if model.value_bytes == 4 else 1.0)
    work = micro_batches * rows * model.sequence * model.computed_flops_per_token / (mesh.tensor * mesh.pipeline)
    return work / rate * (1 + model.idle(mesh.data_parallel, mesh.pipeline))


def predicted(model: Model, mesh: Mesh, site: Site) -> tuple[Prediction, StepTime]:
    """What a mesh's step takes on its site. On an unknown accelerator nothing is computed, and all communication is exposed."""
    sent = traffic(model, mesh, nested=site.nested(model, mesh))
    prediction = site.predictor.step(sent)
    return prediction, prediction.step(compute_seconds(model, mesh, site.accelerator) or 0.0)


def usable_bytes(accelerator: Accelerator | None) -> float | None:
    """Of an accelerator's memory; None where nothing is known of it."""
    return accelerator.memory_bytes * USABLE if accelerator is not None else None


def too_large(needed: Memory, limit: float) -> str:
    """Why a process does not fit into so many bytes of its accelerator."""
    return f"needs {needed.total / GB:.1f} GB of an accelerator's {limit / GB:.1f} usable GB"


def _judged(mesh: Mesh, model: Model, site: Site) -> Choice:
    needed = memory(model, mesh)
    limit = usable_bytes(site.accelerator)
    if limit is not None and needed.total > limit:
        out = too_large(needed, limit)
        return Choice(mesh, needed, limit, None, None, out)
    prediction, step = predicted(model, mesh, site)
    return Choice(mesh, needed, limit, prediction, step)


def _seconds(choice: Choice) -> float:
    return choice.step.seconds if choice.step is not None else float("inf")


def _order(choice: Choice) -> tuple[float, float, Mesh]:
    return _seconds(choice), choice.memory.total, choice.mesh
