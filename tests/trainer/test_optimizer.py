"""How weights move: the rate of each step, the precision, what is computed again, and what is compiled."""

import math
import os

import pytest
import torch
from support.processes import TINY, plan_file, run
from trainyard.api.trainer import OptimizerConfig, ParallelConfig, Shape, parse
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard_trainer import scaling
from trainyard_trainer.data.batches import IGNORED, batches_of
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import weights
from trainyard_trainer.model.loss import cross_entropy
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.optimizer import learning_rate
from trainyard_trainer.parallel.mesh import axes_of, build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.report import StepDone
from trainyard_trainer.scaling import FIRST, STEPS_TO_GROWTH, Scaler
from trainyard_trainer.train import cut, deterministic, main


def rates(steps, **given):
    config = OptimizerConfig.model_validate({"learningRate": 1.0, "warmupSteps": 4, "finalFraction": 0.2, **given})
    return [learning_rate(step, steps, config) for step in range(1, steps + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_rate_is_the_schedules_closed_formula(schedule):
    """Warm-up of 4 steps, 20 in all, from 1 down to 0.2."""
    found = rates(20, schedule=schedule, decayFraction=0.25)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[-1] == pytest.approx(0.2)
    for step in range(5, 21):
        done = (step - 4) / 16
        expected = {
            "cosine": 0.2 + 0.8 * (1 + math.cos(math.pi * done)) / 2,
            "linear": 1 - 0.8 * done,
            "wsd": 1.0 if step <= 15 else 1 - 0.8 * (step - 15) / 5,
        }[schedule]
        assert found[step - 1] == pytest.approx(expected)


def test_without_a_warm_up_the_first_step_has_the_first_rate_of_the_schedule():
    assert rates(4, schedule="linear", warmupSteps=0) == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert rates(1, schedule="wsd", warmupSteps=0) == pytest.approx([0.2])
    assert rates(3, warmupSteps=6) == pytest.approx([1 / 6, 2 / 6, 3 / 6])


# The scale of the loss


def test_a_scale_falls_when_gradients_overflow_and_rises_after_many_steps_without():
    scaler = Scaler("float16")
    assert scaler.overflows(2.0, math.inf)
    assert scaler.overflows(2.0, math.nan)
    assert scaler.scale == FIRST / 4
    assert not any(scaler.overflows(2.0, 1.0) for _ in range(STEPS_TO_GROWTH))
    assert scaler.scale == FIRST / 2


def test_a_loss_that_is_not_finite_is_no_overflow_and_neither_is_a_gradient_at_the_smallest_scale():
    scaler = Scaler("float16")
    assert not scaler.overflows(math.nan, math.nan)
    while scaler.overflows(2.0, math.inf):
        pass
    assert scaler.scale == 1.0
    assert not Scaler("float32").overflows(2.0, math.inf)
    assert Scaler("bfloat16").scale == 1.0


def attempt(folder, form, before=lambda: None, **trainer):
    axes = tuple(Axis(name, int(size)) for name, size in (axis.split("=") for axis in form.split(",")))
    ranks = math.prod(axis.size for axis in axes)
    folder.mkdir()
    environment = plan_file(folder / "plan.json", folder / "run", ranks=ranks, mesh=axes, trainer={**TINY, **trainer})

    def work(rank):
        before()
        return main([])

    ended = run(work, ranks, folder / "gang", environments=dict.fromkeys(range(ranks), environment))
    assert [end.code for end in ended] == [Exit.DONE] * ranks, ended[0].output
    return [report for report in ended[0].reports if isinstance(report, StepDone)]


def test_float16_learns_what_float32_learns(tmp_path):
    expected = [step.loss for step in attempt(tmp_path / "alone", "shard=1")]
    for form in ("replicate=2", "pipeline=2,shard=1"):
        found = [step.loss for step in attempt(tmp_path / form, form, precision="float16")]
        assert found != expected
        assert found == pytest.approx(expected, rel=1e-2)


def test_a_gradient_that_overflows_is_computed_again_with_a_smaller_scale_and_no_step_is_lost(tmp_path):
    """Beginning far beyond what float16 holds, which nothing but the scale decides."""

    def scaled(first):
        return lambda: setattr(scaling, "FIRST", first)

    usual = attempt(tmp_path / "usual", "shard=2", scaled(2.0**10), precision="float16")
    high = attempt(tmp_path / "high", "shard=2", scaled(2.0**40), precision="float16")
    assert [step.loss for step in high] == pytest.approx([step.loss for step in usual], rel=1e-3)
    assert [step.grad_norm for step in high] == pytest.approx([step.grad_norm for step in usual], rel=1e-2)
    assert [step.digest for step in high] == [step.digest for step in usual]


# One gang for what is the same whatever is kept, compiled or packed

SHAPE = Shape(layers=2, width=32, heads=4, kv_heads=2, hidden=64, tie_embeddings=False)
FORMS = ("replicate=2", "shard=2", "tensor=2", "pipeline=2,shard=1")
ZERO_BUBBLE = "pipeline=2,shard=1 zero-bubble"
MASKED = {
    "files": [__file__],
    "packing": "masked",
    "separator": ord("e"),
    "sequenceLength": 24,
    "globalBatch": 5,
    "microBatch": 2,
}


def config_of(**trainer):
    return parse({"model": {"preset": "tiny"}, "data": MASKED, **trainer})


def learnt(rank, form, change):
    """Loss, tokens that count and gradients' squared norm, of all ranks, of one step of packed documents in float64."""
    config, (form, schedule) = config_of(), (*form.split(), "1f1b")[:2]
    axes = tuple(Axis(name, int(size)) for name, size in (axis.split("=") for axis in form.split(",")))
    mesh = build(axes, 2, "cpu")
    with torch.device("meta"):
        model = Transformer.of(config.model).double()
    change(model)
    spread = Spread(model, mesh, torch.device("cpu"), ParallelConfig(schedule=schedule))
    weights.draw(model, 2, seed=5)
    batches = cut(config, corpus_of(config), axes_of(mesh), rank)
    mine = list(batches.step(1))
    loss = spread.learn(mine, batches.global_tokens)
    sums = torch.tensor([loss, batches.part_of_tokens(mine), spread.norm_squared()], dtype=torch.float64)
    torch.distributed.all_reduce(sums)
    return sums.tolist()


CHANGES = {
    "nothing": lambda model: None,
    "recomputed": lambda model: model.recompute(True),
    "looked through": lambda model: model.compile_blocks("eager"),
    "compiled": lambda model: model.compile_blocks("aot_eager"),
}
"""eager: dynamo alone. aot_eager: all of the compiler, forward and backward pass, but the code that inductor writes at last."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """By form and change, what both ranks of a gang say."""
    cases = [(form, change) for form in FORMS for change in CHANGES]
    cases += [(ZERO_BUBBLE, "nothing"), (ZERO_BUBBLE, "recomputed")]  # nothing that is compiled goes with it

    def work(rank):
        meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
        return [learnt(rank, form, CHANGES[change]) for form, change in cases]

    ended = run(work, 2, tmp_path_factory.mktemp("gang") / "2")
    assert [end.code for end in ended] == [0, 0], ended[0].output
    return dict(zip(cases, ended[0].result, strict=True))


def test_packed_documents_are_learnt_alike_on_every_mesh(packed):
    config = config_of()
    batches = batches_of(config, corpus_of(config), 2, 0, 1)
    model = Transformer.of(config.model).double()
    weights.draw(model, 2, seed=5)
    loss, tokens = 0.0, 0
    for inputs, targets, documents in batches.step(1):
        assert int(documents.max()) > 0
        part = cross_entropy(model(inputs, documents), targets, 260) / batches.global_tokens
        part.backward()
        loss, tokens = loss + float(part.detach()), tokens + int((targets != IGNORED).sum())
    squared = sum(float(parameter.grad.square().sum()) for parameter in model.parameters())
    assert tokens < batches.global_tokens
    for found in packed.values():
        assert found == pytest.approx([loss, tokens, squared], rel=1e-9)


@pytest.mark.parametrize("form", [*FORMS, ZERO_BUBBLE])
def test_what_is_computed_again_gives_the_same_gradients(packed, form):
    assert packed[form, "recomputed"] == pytest.approx(packed[form, "nothing"], rel=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", ["looked through", "compiled"])
def test_what_is_compiled_computes_the_same(packed, form, change):
    assert packed[form, change] == pytest.approx(packed[form, "nothing"], rel=1e-13)


def test_each_block_is_compiled_for_itself():
    model = Transformer(SHAPE, 260, 10000.0)
    model.compile_blocks("eager")
    assert all(block._compiled_call_impl is not None for block in model.blocks.values())
    assert model._compiled_call_impl is None


@pytest.mark.parametrize(("wanted", "set_"), [(None, True), (True, True), (False, False)])
def test_determinism_is_torchs_own_and_on_a_cpu_the_default(wanted, set_):
    before = torch.are_deterministic_algorithms_enabled()
    try:
        deterministic(wanted, torch.device("cpu"))
        assert torch.are_deterministic_algorithms_enabled() is set_
    finally:
        torch.use_deterministic_algorithms(before)
