"""Gradients that replicas compress: what is left out is not lost, and training comes as far as with whole ones."""

import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from support.processes import run
from torch.utils._python_dispatch import TorchDispatchMode
from trainyard.api.trainer import CompressionConfig, TrainerConfig
from trainyard.api.trainer_parallel import KEEP_RESTS
from trainyard.contract.plan import Axis
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.optimizer import adamw
from trainyard_trainer.parallel.buckets import Bucket
from trainyard_trainer.parallel.compress import HALVES, Half, TopK, compressed
from trainyard_trainer.parallel.hierarchical import Levels
from trainyard_trainer.parallel.mesh import axes_of, build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.train import cut

RANKS = 4
STEPS = 40
METHODS = {
    "fp16": ({"method": "fp16"}, 1.01),
    "bf16": ({"method": "bf16"}, 1.02),
    "int8": ({"method": "int8"}, 1.02),
    "powersgd": ({"method": "powersgd", "rank": 4}, 1.05),
    "topk": ({"method": "topk", "share": 0.1}, 1.10),
}
"""Each method, and the most that its loss may be of the uncompressed run's."""
MESHES = {"ddp": (Axis("replicate", 4), Axis("shard", 1)), "hsdp": (Axis("replicate", 2), Axis("shard", 2))}
CONFIG = {
    "model": {"preset": "tiny"},
    "data": {"files": [__file__], "sequenceLength": 32, "globalBatch": 8},
    "optimizer": {"learningRate": 0.01, "warmupSteps": 2},
}


def learn(rank, axes, compression):
    """The loss of each step, over all ranks."""
    config = TrainerConfig.model_validate({**CONFIG, "parallel": {"compression": compression}})
    mesh = build(axes, RANKS, "cpu")
    with torch.device("meta"):
        model = Transformer.of(config.model)
    spread = Spread(model, mesh, torch.device("cpu"), config.parallel)
    weights.draw(model, config.model.shape.layers, seed=5)
    optimizer = adamw(model, config.optimizer)
    batches = cut(config, corpus_of(config), axes_of(mesh), rank)
    losses = []
    for step in range(1, STEPS + 1):
        loss = torch.tensor(spread.learn(list(batches.step(step)), batches.global_tokens), dtype=torch.float64)
        dist.all_reduce(loss)
        losses.append(float(loss))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def delivered(rank, reduction):
    """Ten steps of random gradients, then sixty without any: what was handed out in all, and what should have been."""
    generator = torch.Generator().manual_seed(rank)
    handed_out, wanted = torch.zeros(340), torch.zeros(340)
    for step in range(70):
        flat = torch.randn(340, generator=generator) if step < 10 else torch.zeros(340)
        whole = flat.clone()
        dist.all_reduce(whole)
        wanted += whole
        reduction(Bucket(flat, [flat[:300].view(20, 15), flat[300:]], 0, last=True))
        handed_out += flat
    return float(torch.linalg.norm(handed_out - wanted) / torch.linalg.norm(wanted))


SOUND = [True, False, True, True, False, True, False, True]
"""PowerSGD sends the first two steps whole, and goes on with what it has from the ones before after that."""


class Asking(TorchDispatchMode):
    """Hears whenever the host asks for a number, for which on a GPU it waits until all before is computed."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.asked += func._overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero)
        return func(*args, **(kwargs or {}))


def asks(reduction):
    """How often the host asks for a number in four steps."""
    with Asking() as asking:
        for step in range(4):
            flat = torch.randn(1024, generator=torch.Generator().manual_seed(step))
            reduction(Bucket(flat, [flat.view(32, 32)], 0, last=True))
    return asking.asked


def spoiled(reduction, spoiled_steps=(1, 4, 6)):
    """Whether a gradient that is no number is handed out as such, and the step after it is sound again."""
    found, generator = [], torch.Generator().manual_seed(1)
    for step in range(len(SOUND)):
        flat = torch.randn(1024, generator=generator)
        if step in spoiled_steps:
            flat[5] = float("nan")
        reduction(Bucket(flat, [flat.view(32, 32)], 3, last=True))
        found.append(bool(torch.isfinite(flat).all()))
    return found


def owed(rank, reduction):
    """The most that is handed out of gradients of nothing, after four of random numbers; and of the same with what was left out
    of those forgotten."""
    generator, found = torch.Generator().manual_seed(rank), []
    for forgotten in (False, True):
        for step in range(5):
            flat = torch.randn(340, generator=generator) if step < 4 else torch.zeros(340)
            if step == 4 and forgotten:
                reduction.forget()
            reduction(Bucket(flat, [flat[:300].view(20, 15), flat[300:]], 0, last=True))
        found.append(float(flat.abs().max()))
    return found


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    """One gang does it all."""

    def work(rank):
        meet(Place.of(os.environ, rank, RANKS), torch.device("cpu"), 60.0, lambda: False)
        group = dist.group.WORLD
        made = {
            name: partial(compressed, group, CompressionConfig.model_validate(given))
            for name, (given, _) in METHODS.items()
        }
        without = partial(TopK, group, 0.1, feedback=False)
        levels = Levels(build(MESHES["ddp"], RANKS, "cpu"), (2, 2))
        halves = {f"{name} by levels": partial(Half, dtype, levels) for name, dtype in HALVES.items()}
        return {
            "delivered": {
                name: delivered(rank, make())
                for name, make in {**made, **halves, "topk without feedback": without}.items()
            },
            "spoiled": {name: spoiled(make()) for name, make in made.items()},
            "asks": {name: asks(make()) for name, make in made.items()},
            "spoiled at once": spoiled(made["powersgd"](), (2,)),
            "owed": {name: owed(rank, made[name]()) for name in KEEP_RESTS},
            "losses": {
                (mesh, name): learn(rank, axes, given)
                for mesh, axes in MESHES.items()
                for name, given in {"none": {}, **{name: given for name, (given, _) in METHODS.items()}}.items()
            },
        }

    ended = run(work, RANKS, tmp_path_factory.mktemp("gang") / "ranks")
    assert [end.code for end in ended] == [0] * RANKS, "\n".join(end.output for end in ended)
    return [end.result for end in ended]


@pytest.mark.parametrize(
    ("method", "most"),
    [
        ("fp16", 2e-3),
        ("bf16", 1e-2),
        ("fp16 by levels", 2e-3),
        ("bf16 by levels", 1e-2),
        ("int8", 1e-4),
        ("topk", 1e-5),
    ],
)
def test_of_what_is_handed_out_nothing_is_lost_in_the_end(gang, method, most):
    for found in gang:
        assert found["delivered"][method] < most


def test_without_error_feedback_most_of_it_is(gang):
    assert all(found["delivered"]["topk without feedback"] > 0.3 for found in gang)


@pytest.mark.parametrize("method", METHODS)
def test_the_host_asks_for_no_number_within_the_backward_pass(gang, method):
    assert all(found["asks"][method] == 0 for found in gang)


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_no_number_is_told_and_not_remembered(gang, method):
    for found in gang:
        assert found["spoiled"][method] == SOUND


def test_the_first_gradient_that_is_compressed_may_be_no_number(gang):
    for found in gang:
        assert found["spoiled at once"] == [step != 2 for step in range(len(SOUND))]


@pytest.mark.parametrize("method", KEEP_RESTS)
def test_what_was_left_out_of_a_step_that_came_to_nothing_is_forgotten(gang, method):
    for found in gang:
        usual, forgotten = found["owed"][method]
        assert usual > 0.0
        assert forgotten == 0.0


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("method", METHODS)
def test_training_comes_as_far_as_with_whole_gradients(gang, mesh, method):
    _, most = METHODS[method]
    for found in gang:
        last = {name: sum(found["losses"][mesh, name][-5:]) for name in ("none", method)}
        print(mesh, method, f"{last[method] / last['none']:.4f}")
        assert last[method] < most * last["none"]
        assert found["losses"][mesh, method] != found["losses"][mesh, "none"]
        assert found["losses"][mesh, method] == gang[0]["losses"][mesh, method]
