"""Gradients of gangs on every kind of mesh, and of one process that has the whole model."""

import os
from math import prod

import torch
from support.processes import run
from torch.distributed.tensor import DTensor
from trainyard.api.trainer import BYTE_VOCABULARY, ParallelConfig, Shape, TrainerConfig
from trainyard.contract.plan import Axis
from trainyard_trainer.data.batches import Batches, order_of
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import weights
from trainyard_trainer.model.loss import cross_entropy
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import axes_of, build, data_place, size
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread

SHAPE = Shape(layers=2, width=32, heads=4, kv_heads=2, hidden=64, tie_embeddings=False)
TIED, DEEP = SHAPE._replace(tie_embeddings=True), SHAPE._replace(layers=4)
DEEP_TIED = TIED._replace(layers=4)
THREES = SHAPE._replace(width=36, heads=6, kv_heads=3, hidden=66)  # 3 ranks share it, and not the 260 tokens
BATCH, LENGTH, MICRO = 7, 12, 2

FSDP = ("shard=1", "shard=3", "replicate=2,shard=2")
DDP = ("replicate=2,shard=1", "replicate=3,shard=1")
TENSOR = ("shard=1,tensor=2", "shard=2,tensor=2")
PIPELINE = ("pipeline=4,shard=1", "pipeline=2,shard=2")
INTERLEAVED = {"schedule": "interleaved", "stagesPerRank": 2}
ZERO_BUBBLE = {"schedule": "zero-bubble", "stagesPerRank": 2}
OF_SEVERAL = (
    ("pipeline=2,shard=1", DEEP, INTERLEAVED),
    ("pipeline=2,shard=1", DEEP, {**ZERO_BUBBLE, "stagesPerRank": 1}),
    ("pipeline=2,shard=2", DEEP_TIED, {**INTERLEAVED, "reshard": "always"}),
    ("pipeline=2,shard=2", DEEP_TIED, ZERO_BUBBLE),
    ("pipeline=2,shard=1,tensor=2", DEEP_TIED, ZERO_BUBBLE),
)
EVERYTHING = (
    "replicate=2,shard=1,tensor=2",
    "pipeline=2,replicate=2,shard=1",
    "pipeline=2,shard=1,tensor=2",
    "replicate=2,shard=2,tensor=2",
    "pipeline=2,replicate=2,shard=2,tensor=2",
)
LEVELS = ("replicate=4,shard=1", "replicate=4,shard=2")
BOUNDS = {torch.float64: 1e-12, torch.float32: 5e-6}
CLIPPED = 1e-3  # the norm to clip to: far below the gradient's

FORMS = [
    *((form, SHAPE, {"reshard": reshard}) for form in FSDP for reshard in ("never", "always")),
    *((form, TIED, {"bucketMebibytes": 0.01}) for form in DDP),
    *((form, SHAPE, {}) for form in TENSOR),
    ("shard=1,tensor=3", THREES, {}),
    *((form, DEEP, {"schedule": schedule}) for form in PIPELINE for schedule in ("1f1b", "gpipe")),
    *OF_SEVERAL,
    *((form, TIED, {}) for form in EVERYTHING),
    *((form, TIED, {"allReduce": "hierarchical", "bucketMebibytes": 0.01}) for form in LEVELS),
]
"""Meshes, the model that is trained on each, and how its axes go about it."""


def places(ranks):
    """Two processes on a node, two nodes on a leaf."""
    return Places(tuple((f"leaf-{rank // 4}", f"node-{rank // 2}") for rank in range(ranks)), ("leaf",))


def mesh_of(form):
    """shard=2,tensor=2 to axes in the trainer's order."""
    return tuple(Axis(name, int(members)) for name, members in (axis.split("=") for axis in form.split(",")))


def network(shape, dtype, on_meta=False):
    with torch.device("meta" if on_meta else "cpu"):
        return Transformer(shape, BYTE_VOCABULARY, 10000.0).to(dtype)


def batches(part, parts, micro=MICRO):
    text = corpus_of(TrainerConfig.model_validate({"data": {"files": [__file__]}}))
    return Batches(text, order_of(text, LENGTH, BATCH, 3), LENGTH, micro, part, parts)


def of_one_process(shape, dtype):
    """Without anything of what is under test: one model, one batch after the other."""
    alone = network(shape, dtype)
    weights.draw(alone, shape.layers, seed=5)
    mine, total = batches(0, 1), 0.0
    for inputs, targets, _ in mine.step(1):
        loss = cross_entropy(alone(inputs), targets, BYTE_VOCABULARY) / mine.global_tokens
        loss.backward()
        total += float(loss.detach())
    return {name: parameter.grad for name, parameter in alone.named_parameters()}, total


def of_a_gang(rank, ranks, form, shape, dtype, settings):
    """The gradients that this rank has a part of, whole; sums over all ranks of squared norm and loss; the norm once clipped."""
    mesh = build(mesh_of(form), ranks, "cpu")
    model = network(shape, dtype, on_meta=True)
    spread = Spread(
        model, mesh, torch.device("cpu"), ParallelConfig.model_validate(settings), nested=places(ranks).nested(mesh)
    )
    weights.draw(model, shape.layers, seed=5)
    mine = batches(*data_place(axes_of(mesh), rank), micro=1 if size(mesh, "pipeline") > 1 else MICRO)
    loss = spread.learn(list(mine.step(1)), mine.global_tokens)
    sums = torch.tensor([spread.norm_squared(), loss], dtype=torch.float64)
    torch.distributed.all_reduce(sums)
    gradients = {name: whole(parameter.grad).copy() for name, parameter in model.named_parameters()}
    spread.clip(float(sums[0]) ** 0.5, CLIPPED)
    clipped = torch.tensor(spread.norm_squared(), dtype=torch.float64)
    torch.distributed.all_reduce(clipped)
    return gradients, sums.tolist(), float(clipped) ** 0.5


def whole(gradient):
    return (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).numpy()


def difference(gradient, expected):
    """Norm of the difference over the norm."""
    return float(torch.linalg.norm(torch.from_numpy(gradient) - expected) / torch.linalg.norm(expected))


def world(form):
    """How many ranks a mesh has."""
    return prod(axis.size for axis in mesh_of(form))


def of_gangs(ranks, folder, dtypes=tuple(BOUNDS)):
    """What every rank of a gang of this size computes of every form of that size: by form, settings and type."""
    cases = [
        (form, shape, dtype, settings) for form, shape, settings in FORMS for dtype in dtypes if world(form) == ranks
    ]

    def work(rank):
        meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 60.0, lambda: False)
        return [of_a_gang(rank, ranks, *case) for case in cases]

    ended = run(work, ranks, folder)
    assert [end.code for end in ended] == [0] * ranks, "\n".join(end.output for end in ended)
    keys = [(form, shape, dtype, str(settings)) for form, shape, dtype, settings in cases]
    return dict(zip(keys, zip(*(end.result for end in ended), strict=True), strict=True))
