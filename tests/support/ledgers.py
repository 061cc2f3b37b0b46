"""What ranks count of a step that they do, and what the planner's formulas say of it, for every kind of mesh."""

import os

import torch
from support.processes import run
from trainyard.api.trainer import TrainerConfig
from trainyard.contract.plan import Axis
from trainyard.planner.traffic import Bytes
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.ledger import COUNTED_STEP, Ledger, predicted
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import axes_of, build
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.scaling import PRECISIONS
from trainyard_trainer.train import cut
from trainyard_trainer.waiting import Waits

MODEL = {"preset": "tiny"}
BATCH = {"files": [__file__], "sequenceLength": 8, "globalBatch": 6, "microBatch": 2}

PLACES = Places(tuple((f"leaf-{rank // 4}", f"node-{rank // 2}") for rank in range(8)), ("leaf",))

CASES = {
    "zero 2": (2, "shard=2", {}),
    "zero 3": (2, "shard=2", {"parallel": {"reshard": "always"}}),
    "shards of uneven rows": (3, "shard=3", {"model": {**MODEL, "tieEmbeddings": False}}),
    "ddp": (2, "replicate=2,shard=1", {}),
    "tensor": (2, "shard=1,tensor=2", {}),
    "tensor in bfloat16, one micro-batch": (
        2,
        "shard=1,tensor=2",
        {"precision": "bfloat16", "data": {**BATCH, "microBatch": 6}},
    ),
    "tensor in bfloat16": (2, "shard=1,tensor=2", {"precision": "bfloat16"}),
    "tensor, computed again": (2, "shard=1,tensor=2", {"activationCheckpointing": "block"}),
    "pipeline, tied": (2, "pipeline=2,shard=1", {}),
    "pipeline, not tied": (2, "pipeline=2,shard=1", {"model": {**MODEL, "tieEmbeddings": False}}),
    "pipeline, all forward first": (2, "pipeline=2,shard=1", {"parallel": {"schedule": "gpipe"}}),
    "interleaved pipeline": (
        2,
        "pipeline=2,shard=1",
        {"model": {**MODEL, "layers": 4}, "parallel": {"schedule": "interleaved", "stagesPerRank": 2}},
    ),
    "interleaved pipeline of shards, gathered again": (
        4,
        "pipeline=2,shard=2",
        {
            "model": {**MODEL, "layers": 4},
            "parallel": {"reshard": "always", "schedule": "interleaved", "stagesPerRank": 2},
        },
    ),
    "zero-bubble pipeline of tensors": (
        4,
        "pipeline=2,shard=1,tensor=2",
        {"model": {**MODEL, "layers": 4}, "parallel": {"schedule": "zero-bubble", "stagesPerRank": 2}},
    ),
    "hsdp": (4, "replicate=2,shard=2", {"precision": "bfloat16"}),
    "hsdp and tensor": (4, "replicate=2,shard=1,tensor=2", {}),
    "fsdp and tensor": (4, "shard=2,tensor=2", {"parallel": {"reshard": "always"}}),
    "fsdp and pipeline, gathered again": (4, "pipeline=2,shard=2", {"parallel": {"reshard": "always"}}),
    "tensor and pipeline": (4, "pipeline=2,shard=1,tensor=2", {"precision": "bfloat16"}),
    "fsdp and tensor, computed again in float16": (
        4,
        "shard=2,tensor=2",
        {"activationCheckpointing": "block", "precision": "float16", "parallel": {"reshard": "always"}},
    ),
    "ddp by levels": (4, "replicate=4,shard=1", {"parallel": {"allReduce": "hierarchical"}}),
    "ddp by levels, in bf16": (
        4,
        "replicate=4,shard=1",
        {"parallel": {"allReduce": "hierarchical", "compression": {"method": "bf16"}}},
    ),
    "hsdp by levels": (8, "replicate=4,shard=2", {"parallel": {"allReduce": "hierarchical"}}),
    "replicas of a pipeline with a middle, powersgd": (
        6,
        "pipeline=3,replicate=2,shard=1",
        {"model": {**MODEL, "layers": 3}, "parallel": {"compression": {"method": "powersgd", "rank": 3}}},
    ),
    **{
        f"{name}, {method}": (
            4,
            form,
            {"parallel": {"bucketMebibytes": 0.05, "compression": {"method": method, **given}}},
        )
        for name, form in (("ddp", "replicate=4,shard=1"), ("hsdp", "replicate=2,shard=2"))
        for method, given in (
            ("fp16", {}),
            ("bf16", {}),
            ("powersgd", {"rank": 3}),
            ("int8", {}),
            ("topk", {"share": 0.07}),
        )
    },
}
"""On nodes of two processes, two nodes on a leaf."""


def counted(rank, ranks, form, given):
    """What this rank's ledger says of one step, and what the formulas say."""
    config = TrainerConfig.model_validate({"model": MODEL, "data": BATCH, **given})
    axes = tuple(Axis(name, int(size)) for name, size in (axis.split("=") for axis in form.split(",")))
    mesh = build(axes, ranks, "cpu")
    with torch.device("meta"):
        model = Transformer.of(config.model)
    model.recompute(config.activation_checkpointing == "block")
    precision = PRECISIONS[config.precision]
    spread = Spread(model, mesh, torch.device("cpu"), config.parallel, precision, PLACES.nested(mesh))
    weights.draw(model, config.model.shape.layers, seed=5)
    batches = cut(config, corpus_of(config), axes_of(mesh), rank)
    ledger, waits = Ledger(mesh, PLACES), Waits(torch.device("cpu"))
    waits.begin()
    waits.follow(model)
    for step in range(1, COUNTED_STEP + 1):
        with ledger.counting(step == COUNTED_STEP):
            spread.learn(list(batches.step(step)), batches.global_tokens)
        waited = waits.take()
        for parameter in model.parameters():
            parameter.grad = None
    said = {tuple(line): sent[:2] for line, sent in ledger.lines.items()}
    formulas = {tuple(line): sent[:2] for line, sent in predicted(config, mesh, PLACES).items()}
    waits.end()
    times = set(ledger.seconds), ledger.communication_seconds, ledger.exposed_seconds(waited)
    return said, {line: sent for line, sent in formulas.items() if line[1] != Bytes.CONTROL}, times


def of_gangs(folder):
    """By case, what every rank counted and predicted. Gangs of one size are one gang."""
    found = {}
    for ranks in sorted({case[0] for case in CASES.values()}):
        names = [name for name, case in CASES.items() if case[0] == ranks]

        def work(rank, ranks=ranks, names=names):
            meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 60.0, lambda: False)
            return [counted(rank, *CASES[name]) for name in names]

        ended = run(work, ranks, folder / str(ranks))
        assert [end.code for end in ended] == [0] * ranks, "\n".join(end.output for end in ended)
        found |= dict(zip(names, zip(*(end.result for end in ended), strict=True), strict=True))
    return found
