"""What the planner counts of a process's memory is what the process keeps."""

import os
from collections.abc import Mapping

import pytest
import torch
from support.processes import run
from trainyard.api.trainer import TrainerConfig
from trainyard.api.trainer_parallel import KEEP_RESTS
from trainyard.contract.plan import Axis
from trainyard.planner.memory import memory
from trainyard.planner.model import model_of
from trainyard.planner.traffic import Mesh
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import axes_of, build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.train import cut

RANKS, STEPS = 4, 4
MESHES = {
    "ddp": (Axis("replicate", 4), Axis("shard", 1)),
    "hsdp": (Axis("replicate", 2), Axis("shard", 2)),
    "with tensor": (Axis("replicate", 2), Axis("shard", 1), Axis("tensor", 2)),
}
METHODS = ("none", "bf16", *KEEP_RESTS)


def config_of(method):
    return TrainerConfig.model_validate(
        {
            "model": {"preset": "tiny"},
            "data": {"files": [__file__], "sequenceLength": 16, "globalBatch": 8},
            "parallel": {"compression": {"method": method}},
        }
    )


def kept_between_steps(rank, axes, method):
    """Bytes of all tensors of this rank's reduction after a few steps."""
    config, mesh = config_of(method), build(axes, RANKS, "cpu")
    with torch.device("meta"):
        model = Transformer.of(config.model)
    spread = Spread(model, mesh, torch.device("cpu"), config.parallel)
    weights.draw(model, config.model.shape.layers, seed=5)
    batches = cut(config, corpus_of(config), axes_of(mesh), rank)
    for step in range(1, STEPS + 1):
        spread.learn(list(batches.step(step)), batches.global_tokens)
        model.zero_grad()
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors(spread._reduction)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def tensors(thing):
    """Those in an object of ours or torch's, or in what it holds."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from tensors(list(thing.values()))
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from tensors(one)
    else:
        names = (*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ()))
        yield from tensors(
            [getattr(thing, name) for name in names if not name.startswith("__") and hasattr(thing, name)]
        )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    cases = [(mesh, method) for mesh in MESHES for method in METHODS]

    def work(rank):
        meet(Place.of(os.environ, rank, RANKS), torch.device("cpu"), 60.0, lambda: False)
        return [kept_between_steps(rank, MESHES[mesh], method) for mesh, method in cases]

    ended = run(work, RANKS, tmp_path_factory.mktemp("gang") / "ranks")
    assert [end.code for end in ended] == [0] * RANKS, "\n".join(end.output for end in ended)
    return dict(zip(cases, zip(*(end.result for end in ended), strict=True), strict=True))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("method", METHODS)
def test_what_compression_keeps_for_the_next_step_is_counted(kept, mesh, method):
    sizes = Mesh(**{axis.name: axis.size for axis in MESHES[mesh]})
    counted = memory(model_of(config_of(method)), sizes).compression
    assert (counted > 0) == (method in KEEP_RESTS)
    assert kept[mesh, method] == (counted,) * RANKS
