"""A stop that one rank hears of ends all ranks after the same step, with a checkpoint; before the first step it loses
nothing.
"""

import json
import signal
import threading
import time
from functools import partial

import pytest
import torch
from support.processes import TINY, plan_file, run, start
from support.stores import Counting
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer import session
from trainyard_trainer.checkpoint import places
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.data.batches import Batches
from trainyard_trainer.report import (
    CheckpointDurable,
    Phase,
    PhaseChanged,
    Reporter,
    ResumedFrom,
    StepDone,
    StopAcknowledged,
)
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

LONG = {**TINY, "steps": 100_000}


def environments(tmp_path, ranks, **plan):
    shared = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", ranks=ranks, trainer=LONG, **plan)
    return {
        rank: {
            **shared,
            env.STOP_FILE: str(tmp_path / f"stop-{rank}"),
            env.CHECKPOINT_FILE: str(tmp_path / f"checkpoint-{rank}"),
        }
        for rank in range(ranks)
    }


def ask_to_stop(tmp_path, rank):
    (tmp_path / f"stop-{rank}").write_text(json.dumps({"reason": "test", "deadline": 0}))


def steps(reports):
    return [report.step for report in reports if isinstance(report, StepDone)]


def commits(tmp_path):
    return sorted(
        (record["attempt"], record["step"])
        for record in map(json.loads, (path.read_text() for path in tmp_path.glob("checkpoints/*/*/commit.json")))
    )


def test_a_stop_heard_by_one_rank_ends_all_after_the_same_step(tmp_path):
    gang = start(lambda rank: main([]), 3, tmp_path / "gang", environments(tmp_path, 3))
    gang.until(lambda: 4 in steps(gang.reports(0)))
    ask_to_stop(tmp_path, 2)
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 3, ended[0].output
    last = {steps(end.reports)[-1] for end in ended}
    agreed = {report.step for end in ended for report in end.reports if isinstance(report, StopAcknowledged)}
    assert len(last) == 1
    assert agreed == last
    assert commits(tmp_path) == [(1, last.pop())]


def test_sigterm_stops_where_there_is_no_launcher(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LONG))
    arguments = ["--config", str(config), "--checkpoints", str(tmp_path / "checkpoints")]
    gang = start(lambda rank: main(arguments), 2, tmp_path / "gang")
    gang.until(lambda: 4 in steps(gang.reports(0)))
    gang.kill(1, signal.SIGTERM)
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    assert commits(tmp_path) == [(1, steps(ended[0].reports)[-1])]


def test_a_stop_while_ranks_are_missing_ends_who_is_there(tmp_path):
    ask_to_stop(tmp_path, 1)
    ended = run(lambda rank: main([]), 3, tmp_path / "gang", environments=environments(tmp_path, 3), only=[0, 1])
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    assert commits(tmp_path) == []


def stalls(rank, from_step, folder):
    """The volume of one rank answers no more from a step on, as a network file system whose server is gone."""
    fetches = Batches.step

    def step(self, number):
        if rank == 1 and number >= from_step:
            threading.Event().wait()
        return fetches(self, number)

    Batches.step = step
    return main([])


@pytest.mark.parametrize("from_step", [1, 5])
def test_a_stop_during_a_data_stall_ends_all_after_the_step_that_is_done(tmp_path, from_step):
    given = environments(tmp_path, 2)
    gang = start(lambda rank: stalls(rank, from_step, tmp_path), 2, tmp_path / "gang", given)
    gang.until(lambda: any(isinstance(r, PhaseChanged) and r.phase is Phase.DATA for r in gang.reports(1)))
    ask_to_stop(tmp_path, 1)
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    assert commits(tmp_path) == [(1, from_step - 1)]
    assert steps(ended[0].reports) == steps(ended[1].reports) == list(range(1, from_step))
    phases = [report.phase for report in ended[1].reports if isinstance(report, PhaseChanged)]
    assert phases[phases.index(Phase.DATA) + 1] is (Phase.WARM_UP if from_step == 1 else Phase.TRAIN)


def test_a_volume_that_dies_behind_the_last_samples_keeps_nobody_from_the_end(tmp_path):
    shared = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", ranks=2, trainer={**TINY, "steps": 2})
    given = dict.fromkeys(range(2), shared)
    ended = run(lambda rank: stalls(rank, 3, tmp_path), 2, tmp_path / "gang", environments=given)
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    assert commits(tmp_path) == [(1, 2)]


def lingers(rank, phase, folder):
    """One rank stays where a phase begins until a stop was asked, as if it loaded, compiled or saved for long."""
    says = Reporter.phase

    def enters(self, entered, step):
        says(self, entered, step)
        if rank == 0 and entered is phase and not (folder / f"in-{phase}").exists():
            (folder / f"in-{phase}").touch()
            while not (folder / "stop-1").exists():
                time.sleep(0.01)

    Reporter.phase = enters
    return main([])


@pytest.mark.parametrize("phase", [Phase.LOAD, Phase.WARM_UP, Phase.SAVE])
def test_a_stop_is_seen_in_every_phase_and_loses_nothing(tmp_path, phase):
    """Asked while one rank loads, compiles or saves: all leave after the step under way, and what was done is durable."""
    given = environments(tmp_path, 2, every_steps=3)
    gang = start(lambda rank: lingers(rank, phase, tmp_path), 2, tmp_path / "gang", given)
    gang.until((tmp_path / f"in-{phase}").exists)
    ask_to_stop(tmp_path, 1)
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    done = steps(ended[0].reports)
    assert steps(ended[1].reports) == done
    assert len(done) <= (4 if phase is Phase.SAVE else 1)
    assert commits(tmp_path)[-1] == (1, done[-1] if done else 0)


def evaluates_for_ever(rank):
    """A script of one's own whose evaluation after the third step ends only when it is asked to."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = session.load(model, optimizer)
    leaves = False
    while not leaves and not session.should_stop(step):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        step += 1
        session.report(step, loss)
        if step == 3:
            with session.evaluating():
                while not leaves:
                    leaves = session.should_stop(step)
    session.end()


def test_a_stop_during_an_evaluation_is_seen_within_it(tmp_path):
    gang = start(evaluates_for_ever, 2, tmp_path / "gang", environments(tmp_path, 2))
    gang.until(lambda: any(isinstance(r, PhaseChanged) and r.phase is Phase.EVAL for r in gang.reports(0)))
    ask_to_stop(tmp_path, 1)
    ended = gang.wait()
    assert steps(ended[0].reports) == [1, 2, 3]
    assert commits(tmp_path) == [(1, 3)]
    assert "SystemExit: 75" in ended[0].output


def test_an_attempt_stopped_before_its_first_step_commits_what_it_resumed(tmp_path):
    def stopped_once_it_has_loaded(rank):
        load = Session.load

        def and_then(self, *arguments):
            done = load(self, *arguments)
            (tmp_path / "stop-1").touch()
            return done

        Session.load = and_then
        return main([])

    first = run(stopped_once_it_has_loaded, 2, tmp_path / "first", environments=environments(tmp_path, 2))
    assert [end.code for end in first] == [Exit.YIELDED] * 2, first[0].output
    assert commits(tmp_path) == [(1, 0)]
    (tmp_path / "stop-1").unlink()  # else the second attempt might not even meet
    again = run(
        stopped_once_it_has_loaded,
        2,
        tmp_path / "again",
        environments=environments(tmp_path, 2, attempt=2, history=[(1, 0)], resume=(1, 0)),
    )
    assert [end.code for end in again] == [Exit.YIELDED] * 2, again[0].output
    assert [type(r).__name__ for r in again[0].reports if isinstance(r, ResumedFrom | CheckpointDurable)] == [
        "ResumedFrom",
        "CheckpointDurable",
    ]
    assert steps(again[0].reports) == []
    assert commits(tmp_path) == [(1, 0), (2, 0)]


def test_a_stop_while_hashes_are_compared_ends_all_before_anything_is_loaded(tmp_path):
    """On one rank that has still to read: the rest of the files and a save of the same state are nobody's to wait for."""

    def asked(n, operation, path):
        if operation == "read" and path.suffix == ".distcp":
            (tmp_path / "stop-1").touch()

    def work(rank):
        if rank == 1:
            places.Folder = partial(Folder, files=Counting(asked))
        return main([])

    shared = plan_file(tmp_path / "first.json", tmp_path / "checkpoints", ranks=2)
    first = run(lambda rank: main([]), 2, tmp_path / "first", environments=dict.fromkeys(range(2), shared))
    assert [end.code for end in first] == [Exit.DONE] * 2, first[0].output
    done = TINY["steps"]
    given = environments(tmp_path, 2, attempt=2, history=[(1, done)], resume=(1, done))
    ended = run(work, 2, tmp_path / "second", environments=given)
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    for end in ended:
        assert not [report for report in end.reports if isinstance(report, ResumedFrom)]
        assert [report.step for report in end.reports if isinstance(report, StopAcknowledged)] == [0]
    assert commits(tmp_path) == [(1, done)]
    (tmp_path / "stop-1").unlink()
    given = environments(tmp_path, 2, attempt=3, history=[(1, done), (2, 0)], resume=(1, done))
    gang = start(lambda rank: main([]), 2, tmp_path / "third", given)
    gang.until(lambda: done + 2 in steps(gang.reports(0)))
    ask_to_stop(tmp_path, 1)
    ended = gang.wait()
    assert [report.step for report in ended[0].reports if isinstance(report, ResumedFrom)] == [done]


def test_a_save_that_one_rank_is_asked_for_is_made_by_all_and_training_goes_on(tmp_path):
    gang = start(lambda rank: main([]), 2, tmp_path / "gang", environments(tmp_path, 2))
    gang.until(lambda: 2 in steps(gang.reports(0)))
    (tmp_path / "checkpoint-1").write_text('{"number": 1}')
    gang.until(lambda: any(isinstance(report, CheckpointDurable) for report in gang.reports(1)))
    (saved,) = (report.step for report in gang.reports(1) if isinstance(report, CheckpointDurable))
    gang.until(lambda: saved + 3 in steps(gang.reports(0)))
    ask_to_stop(tmp_path, 0)
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    assert commits(tmp_path) == [(1, saved), (1, steps(ended[0].reports)[-1])]
