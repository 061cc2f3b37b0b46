"""A training that was interrupted is the training that was not: bit for bit on as many ranks, closely on others."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support.processes import TINY, plan_file, run
from trainyard.contract.exits import Exit
from trainyard_trainer.checkpoint.places import streams_at
from trainyard_trainer.checkpoint.writer import Reader
from trainyard_trainer.export import export, newest
from trainyard_trainer.report import CheckpointDurable, PhaseChanged, ResumedFrom, StepDone, Warned
from trainyard_trainer.train import main

STEPS = 9


def train(tmp_path, name, *, attempt=1, ranks=2, stop_after=None, history=(), **plan):
    """One attempt; it ends at `stop_after` as if it had been killed right after that step's checkpoint."""
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    trainer = {**TINY, "steps": STEPS}
    environment = plan_file(
        folder / f"plan-{attempt}.json",
        folder,
        attempt=attempt,
        ranks=ranks,
        history=history,
        trainer=plan.pop("trainer", trainer),
        every_steps=3,
        **plan,
    )

    def work(rank):
        if stop_after is not None:
            die_after(stop_after)
        return main([])

    return run(work, ranks, folder / f"attempt-{attempt}", environments=dict.fromkeys(range(ranks), environment))


def die_after(step):
    """Every rank of this attempt dies by SIGKILL after the commit of a step, before it begins the next."""
    import os
    import signal

    from trainyard_trainer.session import Session

    save = Session.save

    def save_and_die(self, *arguments, wait=False):
        save(self, *arguments, wait=True)
        if self.steps_done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Session.save = save_and_die


def lines(tmp_path, name):
    return [json.loads(line) for line in (tmp_path / name / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = train(folder, "run")
    assert [end.code for end in ended] == [Exit.DONE, Exit.DONE], ended[0].output
    return lines(folder, "run")


def test_the_history_has_a_line_for_every_step_and_the_loss_falls(undisturbed):
    assert [line["step"] for line in undisturbed] == list(range(1, STEPS + 1))
    losses = [float.fromhex(line["loss"]) for line in undisturbed]
    assert losses[0] == pytest.approx(5.56, abs=0.2)  # ln 260: nothing is known yet
    assert losses[-1] < losses[0] - 0.1


def test_two_resumes_on_as_many_ranks_change_no_bit(tmp_path, undisturbed):
    train(tmp_path, "run", stop_after=3)
    train(tmp_path, "run", attempt=2, history=[(1, 3)], stop_after=6)
    ended = train(tmp_path, "run", attempt=3, history=[(1, 3), (2, 6)], resume=(2, 6))
    assert [end.code for end in ended] == [Exit.DONE, Exit.DONE], ended[0].output
    history = lines(tmp_path, "run")
    assert [(line["samples"], line["loss"]) for line in history] == [
        (line["samples"], line["loss"]) for line in undisturbed
    ]
    assert [line["attempt"] for line in history] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_another_number_of_ranks_takes_the_same_samples_to_the_same_loss(tmp_path, undisturbed):
    train(tmp_path, "run", ranks=4, stop_after=3)
    train(tmp_path, "run", ranks=3, attempt=2, history=[(1, 3)], stop_after=6)
    ended = train(tmp_path, "run", ranks=1, attempt=3, history=[(1, 3), (2, 6)])
    assert ended[0].code == Exit.DONE, ended[0].output
    for line, expected in zip(lines(tmp_path, "run"), undisturbed, strict=True):
        assert line["samples"] == expected["samples"]
        assert float.fromhex(line["loss"]) == pytest.approx(float.fromhex(expected["loss"]), rel=1e-6)


def test_steps_after_the_last_commit_are_done_again_and_counted_once(tmp_path, undisturbed):
    train(tmp_path, "run", stop_after=6)
    # The operator knows only of step 3: what came after is not history, though it was committed.
    ended = train(tmp_path, "run", attempt=2, history=[(1, 3)])
    assert [report.step for report in ended[0].reports if isinstance(report, ResumedFrom)] == [3]
    history = lines(tmp_path, "run")
    assert [line["attempt"] for line in history] == [1] * 3 + [2] * 6
    assert [line["loss"] for line in history] == [line["loss"] for line in undisturbed]


def test_the_launcher_hears_what_happens(tmp_path):
    train(tmp_path, "run", stop_after=6)
    (reports, _) = (end.reports for end in train(tmp_path, "run", attempt=2, history=[(1, -1)]))
    phases = [(report.phase, report.step) for report in reports if isinstance(report, PhaseChanged)]
    assert phases == [
        ("init", 0),
        ("load", 0),
        ("warm-up", 6),
        ("train", 7),
        ("save", 9),  # begins beside the training
        ("train", 9),
        ("save", 9),  # is waited for
        ("done", 9),
    ]
    steps = [report for report in reports if isinstance(report, StepDone)]
    assert [report.step for report in steps] == [7, 8, 9]
    assert all(report.tokens == 6 * 16 and report.grad_norm > 0 and report.step_seconds > 0 for report in steps)
    durable = [report for report in reports if isinstance(report, CheckpointDurable)]
    assert [(report.attempt, report.step) for report in durable] == [(2, 9)]
    assert durable[0].bytes > 100_000


def test_training_that_is_complete_ends_at_once_and_well(tmp_path):
    train(tmp_path, "run")
    ended = train(tmp_path, "run", attempt=2, history=[(1, STEPS)])
    assert [end.code for end in ended] == [Exit.DONE, Exit.DONE], ended[0].output
    assert len(lines(tmp_path, "run")) == STEPS


def test_other_data_is_reported_and_another_shape_refused(tmp_path):
    train(tmp_path, "run", stop_after=3)
    seeded = {**TINY, "steps": STEPS, "seed": 1}
    ended = train(tmp_path, "run", attempt=2, history=[(1, 3)], trainer=seeded, stop_after=6)
    assert "DataChanged" in {report.reason for report in ended[0].reports if isinstance(report, Warned)}
    wider = {**TINY, "steps": STEPS, "model": {"preset": "tiny", "width": 64}}
    ended = train(tmp_path, "run", attempt=3, history=[(1, 3), (2, 6)], trainer=wider)
    assert [end.code for end in ended] == [Exit.CONFIGURATION] * 2
    assert "spec.trainer.model.width: 64, but the checkpoint of step 6 was made with 32" in ended[0].output


def test_bfloat16_computes_coarser_and_keeps_whole_weights(tmp_path, undisturbed):
    ended = train(tmp_path, "run", trainer={**TINY, "steps": STEPS, "precision": "bfloat16"})
    assert [end.code for end in ended] == [Exit.DONE, Exit.DONE], ended[0].output
    losses = [float.fromhex(line["loss"]) for line in lines(tmp_path, "run")]
    expected = [float.fromhex(line["loss"]) for line in undisturbed]
    assert losses != expected
    assert losses == pytest.approx(expected, rel=2e-2)
    stored = newest(tmp_path / "run")
    saved = Reader(stored.path, streams_at(stored.path)).read_metadata().state_dict_metadata
    types = {
        name: tensor.properties.dtype
        for name, tensor in saved.items()
        if name.endswith(("weight", "exp_avg", "exp_avg_sq"))
    }
    assert len(types) > 30
    assert set(types.values()) == {torch.float32}
    (file,) = export(stored, tmp_path / "exported")
    for name, weight in load_file(file).items():  # with digits that two bytes do not hold
        assert not torch.equal(weight, weight.bfloat16().float()), name


def test_another_seed_is_another_run(tmp_path, undisturbed):
    train(tmp_path, "run", trainer={**TINY, "steps": STEPS, "seed": 1})
    assert lines(tmp_path, "run")[0]["loss"] != undisturbed[0]["loss"]
