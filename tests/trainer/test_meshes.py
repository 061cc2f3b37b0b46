"""A training goes on from mesh to mesh: the same samples, the same loss, whoever holds what."""

import json

import pytest
from support.processes import TINY, plan_file, run
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard.planner.traffic import Bytes
from trainyard_trainer.report import SentInStep, StepDone
from trainyard_trainer.train import main

STEPS = 6


def train(folder, form, *, attempt=1, steps=STEPS, history=(), settings=None, code=Exit.DONE, every_steps=2):
    """One attempt on a mesh such as pipeline=2,tensor=2; the reports of rank 0."""
    axes = tuple(Axis(name, int(size)) for name, size in (axis.split("=") for axis in form.split(",")))
    ranks = 1
    for axis in axes:
        ranks *= axis.size
    folder.mkdir(exist_ok=True)
    environment = plan_file(
        folder / f"plan-{attempt}.json",
        folder,
        attempt=attempt,
        ranks=ranks,
        mesh=axes,
        history=history,
        trainer={**TINY, "steps": STEPS, **(settings or {}), **({"steps": steps} if steps else {})},
        every_steps=every_steps,
    )
    ended = run(
        lambda rank: main([]), ranks, folder / f"gang-{attempt}", environments=dict.fromkeys(range(ranks), environment)
    )
    assert [end.code for end in ended] == [code] * ranks, "\n".join(end.output for end in ended)
    return ended[0].reports


def lines(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def losses(folder):
    return [float.fromhex(line["loss"]) for line in lines(folder)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process, the same steps without a break."""
    folder = tmp_path_factory.mktemp("alone")
    train(folder, "shard=1")
    return folder


CONSTANT = {"optimizer": {"warmupSteps": 0, "finalFraction": 1.0}}
"""A learning rate that does not depend on how many steps there will be, so that an attempt may end early."""


def test_a_training_goes_on_on_any_other_mesh(tmp_path):
    reports = train(tmp_path / "alone", "shard=1", settings=CONSTANT)
    train(tmp_path / "moved", "pipeline=2,shard=2", steps=2, settings=CONSTANT)
    train(tmp_path / "moved", "shard=2,tensor=2", attempt=2, steps=4, history=[(1, 2)], settings=CONSTANT)
    moved = train(tmp_path / "moved", "replicate=2,shard=1", attempt=3, history=[(1, 2), (2, 4)], settings=CONSTANT)
    for line, expected in zip(lines(tmp_path / "moved"), lines(tmp_path / "alone"), strict=True):
        assert line["samples"] == expected["samples"]
        assert float.fromhex(line["loss"]) == pytest.approx(float.fromhex(expected["loss"]), rel=1e-6)
    steps = [[r for r in of if isinstance(r, StepDone)] for of in (reports, moved)]
    assert [r.tokens for r in steps[1]] == [r.tokens for r in steps[0]][4:]
    assert [r.grad_norm for r in steps[1]] == pytest.approx([r.grad_norm for r in steps[0]][4:], rel=1e-5)


@pytest.mark.parametrize("form", ["replicate=2,shard=1", "pipeline=2,shard=1,tensor=2"])
def test_bfloat16_computes_coarser_on_any_mesh(tmp_path, alone, form):
    reports = train(tmp_path / "run", form, settings={"precision": "bfloat16"}, every_steps=None)
    assert losses(tmp_path / "run") != losses(alone)
    assert losses(tmp_path / "run") == pytest.approx(losses(alone), rel=2e-2)
    sent = [report for report in reports if isinstance(report, SentInStep)]
    assert {report.axis for report in sent} == {
        axis for axis in form.replace("=", ",").split(",") if axis[0] in "prt"
    } | {"gang", "storage"}
    assert [report.bytes for report in sent] == [report.predicted_bytes for report in sent]
    # Without copies in memory a save sends nothing to another process, and that is said.
    assert [report.bytes for report in sent if report.data == Bytes.STATE] == [0]


def test_a_mesh_that_does_not_divide_the_model_ends_with_78_before_anybody_is_waited_for(tmp_path):
    reports = train(tmp_path / "run", "tensor=4", code=Exit.CONFIGURATION)
    assert reports[-1].configuration
    assert reports[-1].message == (
        "spec.parallelism.tensor: 4 does not divide the 2 heads of keys and values (spec.trainer.model.kvHeads); use 1 or 2"
    )
