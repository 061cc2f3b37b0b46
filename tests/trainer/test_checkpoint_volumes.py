"""What happens to real volumes and to processes that stop answering: told with path and reason, and nothing lost."""

import json
import os
import signal
from functools import partial

from support.processes import TINY, plan_file, start
from support.stores import Counting
from support.volumes import volume
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer.checkpoint import places
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.report import CheckpointDurable, Failed, ResumedFrom, StepDone, Warned
from trainyard_trainer.train import main

LONG = {**TINY, "steps": 100_000}
ROOM = 4 * 2**20  # a checkpoint takes a third of a MiB


def train(tmp_path, name, root, *, ranks=2, work=None, trainer=LONG, **plan):
    environment = plan_file(tmp_path / f"{name}.json", root, ranks=ranks, trainer=trainer, **plan)
    environment[env.STOP_FILE] = str(tmp_path / f"{name}.stop")
    return start(work or (lambda rank: main([])), ranks, tmp_path / name, dict.fromkeys(range(ranks), environment))


def of(gang, kind):
    return [report for report in gang.reports(0) if isinstance(report, kind)]


def last_step(gang):
    return max((report.step for report in of(gang, StepDone)), default=0)


def durable_again(gang):
    """Wait for a checkpoint of a step that has not been made yet."""
    now = last_step(gang)
    gang.until(lambda: any(report.step > now for report in of(gang, CheckpointDurable)))


def failed_save(gang):
    """Wait for the next save that fails, and for steps after it; the answer is what was said of it."""
    known = len(of(gang, Warned))
    gang.until(lambda: any(report.reason == "SaveFailed" for report in of(gang, Warned)[known:]))
    now = last_step(gang)
    gang.until(lambda: last_step(gang) > now + 5)
    return next(report.message for report in of(gang, Warned)[known:] if report.reason == "SaveFailed")


def test_whatever_happens_to_the_volume_training_goes_on_and_saves_once_it_can(tmp_path):
    with volume(tmp_path, ROOM) as store:
        root = store.at / "job"
        gang = train(tmp_path, "gang", root, every_steps=5, keep=2)
        durable_again(gang)

        store.fill()
        message = failed_save(gang)
        assert "[Errno 28] No space left on device" in message
        assert str(root) in message
        assert "training goes on, the newest is that of step" in message
        assert list(root.glob("*/*/commit.json")), "the last good one stands"
        store.free()
        durable_again(gang)

        store.read_only()
        message = failed_save(gang)
        assert f"[Errno 30] Read-only file system: '{root}" in message
        store.writable()
        durable_again(gang)

        store.go_away()
        message = failed_save(gang)
        assert f"the volume is not there any more: '{root}'" in message
        store.come_back()
        durable_again(gang)

        (tmp_path / "gang.stop").touch()
        ended = gang.wait()
        assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
        last = [report.step for report in ended[0].reports if isinstance(report, StepDone)][-1]
        steps = [json.loads(path.read_text())["step"] for path in root.glob("*/*/commit.json")]
        assert max(steps) == last
        assert len(steps) == 2
        assert not list(root.glob("*/unfinished*")), "failed saves keep no room"


def test_a_volume_mounted_read_only_is_the_users_to_change(tmp_path):
    with volume(tmp_path, ROOM) as store:
        store.read_only()
        (ended,) = train(tmp_path, "gang", store.at / "job", ranks=1, trainer=TINY).wait()
    assert ended.code == Exit.CONFIGURATION
    (report,) = (report for report in ended.reports if isinstance(report, Failed))
    assert report.message == (
        f"spec.checkpoint.volume: {store.at}/job: Read-only file system; mount it so that the trainer may write to it"
    )


def test_a_gang_that_was_frozen_and_replaced_can_harm_nothing_when_it_thaws(tmp_path):
    """Frozen with a save due at every step; the one after it trains to its end on the same folder meanwhile."""
    root = tmp_path / "root"
    old = train(tmp_path, "old", root, every_steps=1, keep=2)
    durable_again(old)
    for rank in (0, 1):
        old.kill(rank, signal.SIGSTOP)
    done = last_step(old) + 20
    new = train(tmp_path, "new", root, attempt=2, history=[(1, -1)], every_steps=5, trainer={**TINY, "steps": done})
    ended = new.wait()
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    assert next(report.step for report in ended[0].reports if isinstance(report, ResumedFrom)) > 0
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    for rank in (0, 1):
        old.kill(rank, signal.SIGCONT)
    ended = old.wait()
    assert [end.code for end in ended] == [Exit.FAILURE] * 2, ended[0].output
    (report,) = (report for report in ended[0].reports if isinstance(report, Failed))
    assert f"attempt 2 has begun in {root}; what attempt 1 saves would not count" in report.message
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before
    lines = [json.loads(line) for line in (root / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, done + 1))


def test_a_rank_that_never_answers_at_the_last_save_holds_the_others_for_no_longer_than_the_grace(tmp_path):
    """They end by themselves, saying where they waited; what was durable stands, and the next attempt goes on from it."""
    root, stop = tmp_path / "root", tmp_path / "gang.stop"

    def freezes(n, operation, path):
        if operation == "create" and path.suffix == ".distcp" and stop.exists():
            os.kill(os.getpid(), signal.SIGSTOP)

    def work(rank):
        if rank == 1:
            places.Folder = partial(Folder, files=Counting(freezes))
        return main([])

    gang = train(tmp_path, "gang", root, work=work, every_steps=5, grace_seconds=2.0)
    durable_again(gang)
    stop.touch()
    gang.until(lambda: "Timeout" in (tmp_path / "gang" / "rank-0.out").read_text())
    gang.kill(1)
    ended = gang.wait()
    assert ended[0].code == Exit.FAILURE
    assert "in leave" in ended[0].output, "where it waited"
    saved = max(report.step for report in ended[0].reports if isinstance(report, CheckpointDurable))
    again = train(tmp_path, "again", root, attempt=2, history=[(1, -1)], trainer={**TINY, "steps": saved + 2})
    ended = again.wait()
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    assert [report.step for report in ended[0].reports if isinstance(report, ResumedFrom)] == [saved]
