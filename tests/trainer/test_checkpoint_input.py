"""What users, volumes and clocks do to a folder of checkpoints: an error with the path and the value, and nothing lost."""

import errno
import json
import os
import shutil
import time
from functools import partial

import pytest
import torch
from support.killpoints import checkpoints, fill, state_of, values, what
from support.processes import TINY, plan_file, run, start
from support.stores import Counting
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer.checkpoint import places
from trainyard_trainer.checkpoint.files import Posix
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.report import CheckpointDurable, Failed, StepDone, Warned
from trainyard_trainer.train import main

LONG = {**TINY, "steps": 100_000}


def train(tmp_path, name, *, ranks=1, at=None, trainer=TINY, **plan):
    environment = plan_file(tmp_path / f"{name}.json", tmp_path / "root", ranks=ranks, trainer=trainer, **plan)
    environment[env.STOP_FILE] = str(tmp_path / "stop")

    def work(rank):
        if at is not None:
            places.Folder = partial(Folder, files=Counting(at))
        return main([])

    return start(work, ranks, tmp_path / name, environments=dict.fromkeys(range(ranks), environment))


def failing(number, operation):
    def at(n, what, path):
        if what == operation:
            raise OSError(number, os.strerror(number), str(path))

    return at


def failed(ended):
    (report,) = (report for report in ended.reports if isinstance(report, Failed))
    return report


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_volume_that_cannot_be_written_to_is_the_users_to_mount(tmp_path, number):
    (ended,) = train(tmp_path, "first", at=failing(number, "make_folder")).wait()
    assert ended.code == Exit.CONFIGURATION
    report = failed(ended)
    assert report.configuration
    assert report.message == (
        f"spec.checkpoint.volume: {tmp_path}/root: {os.strerror(number)}; mount it so that the trainer may write to it"
    )


def test_a_volume_that_does_not_answer_may_do_so_later(tmp_path):
    (ended,) = train(tmp_path, "first", at=failing(errno.EIO, "make_folder")).wait()
    assert ended.code == Exit.FAILURE
    assert f"Input/output error: '{tmp_path}/root'" in failed(ended).message


def test_files_that_are_torn_for_good_are_no_reason_to_try_again(tmp_path):
    (ended,) = train(tmp_path, "first").wait()
    assert ended.code == Exit.DONE, ended.output
    (data,) = tmp_path.glob("root/*/*/__0_0.distcp")
    os.truncate(data, 100)
    (ended,) = train(tmp_path, "second", attempt=2, history=[(1, 6)]).wait()
    assert ended.code == Exit.CONFIGURATION
    message = failed(ended).message
    assert message.startswith(f"spec.checkpoint.volume: {tmp_path}/root: attempt 2 has a history to continue")
    assert "step-00000006.attempt-0001: __0_0.distcp: 100 bytes, but " in message
    assert "put back the volume or the files" in message
    assert list(tmp_path.glob("root/*/*/commit.json")), "nothing was deleted"


def test_files_that_cannot_be_read_now_may_be_later(tmp_path):
    train(tmp_path, "first").wait()

    def at(n, operation, path):
        if operation == "read" and path.suffix == ".distcp":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    (ended,) = train(tmp_path, "second", attempt=2, history=[(1, 6)], at=at).wait()
    assert ended.code == Exit.FAILURE
    assert "Stale file handle" in failed(ended).message
    (ended,) = train(tmp_path, "third", attempt=3, history=[(1, 6)]).wait()
    assert ended.code == Exit.DONE, ended.output


def test_a_history_that_cannot_be_taken_over_now_is_not_begun_anew(tmp_path):
    train(tmp_path, "first").wait()
    record = next(tmp_path.glob("root/attempt-0001/step-*"))

    def at(n, operation, path):
        if operation == "rename" and path == record:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    (ended,) = train(tmp_path, "second", attempt=2, history=[(1, 6)], at=at).wait()
    assert ended.code == Exit.FAILURE
    assert f"{record}: cannot be taken over: [Errno 5] Input/output error" in failed(ended).message
    assert record.exists()


def test_the_folder_of_an_earlier_job_of_the_same_name_is_the_users_to_change(tmp_path):
    train(tmp_path, "first", attempt=2).wait()
    for record in tmp_path.glob("root/*/*/commit.json"):
        record.write_text(record.read_text().replace('"6f1c"', '"earlier"'))
    (ended,) = train(tmp_path, "second").wait()
    assert ended.code == Exit.CONFIGURATION
    assert "step-00000006.attempt-0002: is a checkpoint of another job (earlier; this is 6f1c)" in failed(ended).message
    assert "give each job a folder of its own" in failed(ended).message
    assert list(tmp_path.glob("root/attempt-0002/*/commit.json"))


def test_a_volume_that_goes_away_is_told_and_the_training_goes_on_until_it_is_back(tmp_path):
    gang = train(tmp_path, "gang", ranks=2, trainer=LONG, every_steps=5)
    gang.until(lambda: any(isinstance(report, CheckpointDurable) for report in gang.reports(0)))
    (tmp_path / "root").rename(tmp_path / "away")
    gang.until(lambda: any(isinstance(report, Warned) for report in gang.reports(0)))
    (warned, *_) = (report for report in gang.reports(0) if isinstance(report, Warned))
    assert warned.reason == "SaveFailed"
    assert str(tmp_path / "root") in warned.message
    (tmp_path / "away").rename(tmp_path / "root")
    reached = max(report.step for report in gang.reports(0) if isinstance(report, StepDone))
    gang.until(lambda: any(isinstance(r, CheckpointDurable) and r.step > reached for r in gang.reports(0)))
    (tmp_path / "stop").touch()
    assert [end.code for end in gang.wait()] == [Exit.YIELDED] * 2


def test_a_history_that_cannot_be_written_does_not_end_the_training(tmp_path):
    def work(rank):
        from trainyard_trainer.history import History

        def full(self, *arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        History.add = full
        return main([])

    environment = plan_file(tmp_path / "plan.json", tmp_path / "root", ranks=1)
    (ended,) = run(work, 1, tmp_path / "gang", environments={0: environment})
    assert ended.code == Exit.DONE, ended.output
    assert [report.reason for report in ended.reports if isinstance(report, Warned)] == ["HistoryNotWritten"]


def test_a_clock_that_jumps_back_makes_no_older_checkpoint_the_newest(tmp_path):
    def work(rank):
        meet(Place.of(os.environ, rank, 1), torch.device("cpu"), 30.0, lambda: False)
        state = state_of(rank, 1)
        saved = checkpoints(tmp_path / "root", rank, 1, 1, Posix())
        saved.load(state, lambda record: None)
        now = time.time
        for step, jump in ((1, 0.0), (2, 1e6), (3, -1e6)):
            time.time = lambda jump=jump: now() + jump
            fill(state, float(step))
            saved.save(state, what(step))
        time.time = now
        again = checkpoints(tmp_path / "root", rank, 1, 2, Posix())
        again.load(state, lambda record: None)
        return values(state)

    (ended,) = run(work, 1, tmp_path / "work")
    assert ended.result == {3.0}, ended.output


def test_two_gangs_on_one_folder_never_mix(tmp_path):
    """Both are attempt 1 of one job: the later goes on, the earlier one ends at its next save and says why."""
    first = train(tmp_path, "first", trainer=LONG, every_steps=5)
    first.until(lambda: any(isinstance(report, CheckpointDurable) for report in first.reports(0)))
    second = train(tmp_path, "second", trainer=LONG, every_steps=7)
    (ended,) = first.wait()
    assert ended.code == Exit.FAILURE
    assert "has claimed attempt 1" in failed(ended).message
    (tmp_path / "stop").touch()
    (ended,) = second.wait()
    assert ended.code == Exit.YIELDED, ended.output
    for record in map(json.loads, (path.read_text() for path in tmp_path.glob("root/*/*/commit.json"))):
        assert record["attempt"] == 1
    shutil.rmtree(tmp_path / "root")
