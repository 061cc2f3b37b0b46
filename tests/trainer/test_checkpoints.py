"""What is loaded was committed, whole and unmixed: after damage, beside an older attempt that writes."""

import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from support.processes import run, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from trainyard.contract.plan import Axis, Lineage, Mark
from trainyard_trainer.checkpoint.distributed import Checkpoints, NothingVerifies, SaveFailed, What
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.checkpoint.record import Training
from trainyard_trainer.checkpoint.store import Superseded
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.report import Reporter, Warned

TRAINING = Training(0, "data", {}, "configuration")


def opened(root, rank, ranks, attempt, history=(), resume=None, keep=3):
    """The checkpoints of one rank, and a small state: a matrix spread over the ranks, and a number that all hold."""
    meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 30.0, lambda: False)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    state = {"matrix": DTensor.from_local(torch.zeros(4, 3), mesh, [Shard(0)]), "number": torch.zeros(())}
    lineage = Lineage(tuple(Mark(*mark) for mark in history), Mark(*resume) if resume else None)
    axes = (Axis("shard", ranks),)
    report = Reporter.from_environment(rank)
    return Checkpoints(Folder(Path(root), attempt), lineage, keep, "job", report, rank, ranks, axes), state


def fill(state, value):
    state["matrix"].to_local().fill_(value)
    state["number"].fill_(value)


def save_steps(checkpoints, state, steps):
    for step in steps:
        fill(state, float(step))
        checkpoints.save(state, What(step, f"samples of {step}", TRAINING))


def load(checkpoints, state):
    """The step that was loaded, after a look at every number of the state; None where there is nothing."""
    record = checkpoints.load(state, lambda record: None)
    values = set(state["matrix"].to_local().flatten().tolist()) | {float(state["number"])}
    assert values == {float(record.step if record else 0)}, f"mixed: {values}"
    return record and (record.attempt, record.step)


def write(root, steps, ranks=1, attempt=1, **keywords):
    """One attempt that goes on from its history and saves some steps."""

    def work(rank):
        checkpoints, state = opened(root, rank, ranks, attempt, **keywords)
        load(checkpoints, state)
        save_steps(checkpoints, state, steps)

    return run(work, ranks, root.parent / f"{root.name}-write-{attempt}")


def read(root, attempt, history, ranks=1, resume=None):
    """What an attempt would go on from, and how its ranks ended."""

    def work(rank):
        return repr(load(*opened(root, rank, ranks, attempt, history, resume)))

    return run(work, ranks, root.parent / f"{root.name}-read-{attempt}")


def committed(root):
    return sorted(path.parent.name for path in root.glob("*/*/commit.json"))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": lambda folder: flip(folder / "__0_0.distcp"),
    "a flipped bit in the index": lambda folder: flip(folder / ".metadata"),
    "a file cut short": lambda folder: os.truncate(folder / "__0_0.distcp", 100),
    "a file that is gone": lambda folder: (folder / "__0_0.distcp").unlink(),
    "no record": lambda folder: (folder / "commit.json").unlink(),
    "a broken record": lambda folder: (folder / "commit.json").write_text('{"attempt": 1'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_passed_over_aloud(tmp_path, damage):
    root = tmp_path / "root"
    write(root, [1, 2], ranks=2)
    damage(root / "attempt-0001" / "step-00000002.attempt-0001")
    after = read(root, 2, [(1, 2)], ranks=2, resume=(1, 2))
    assert [end.result for end in after] == [repr((1, 1))] * 2, after[0].output
    assert {r.reason for r in after[0].reports if isinstance(r, Warned)} & {"CheckpointUnverified", "CheckpointMissing"}


def test_where_nothing_of_the_history_verifies_training_does_not_begin_anew(tmp_path):
    root = tmp_path / "root"
    write(root, [1, 2])
    for folder in root.glob("attempt-0001/step-*"):
        flip(folder / ".metadata")
    (after,) = read(root, 2, [(1, 2)])
    assert after.code != 0
    assert NothingVerifies.__name__ in after.output


def test_a_plan_that_resumes_from_an_empty_volume_is_an_error(tmp_path):
    (after,) = read(tmp_path / "root", 2, [(1, 2)], resume=(1, 2))
    assert NothingVerifies.__name__ in after.output


def test_a_checkpoint_of_another_job_is_never_loaded(tmp_path):
    root = tmp_path / "root"
    write(root, [1])
    record = root / "attempt-0001" / "step-00000001.attempt-0001" / "commit.json"
    record.write_text(record.read_text().replace('"job":"job"', '"job":"other"'))
    (after,) = read(root, 2, [(1, -1)])
    assert after.result == repr(None), after.output


def test_a_checkpoint_fits_any_number_of_ranks(tmp_path):
    root = tmp_path / "root"
    write(root, [1], ranks=3)

    def work(rank):
        meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 30.0, lambda: False)
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
        state = {"matrix": DTensor.from_local(torch.zeros(6, 3), mesh, [Shard(0)]), "number": torch.zeros(())}
        lineage = Lineage((Mark(1, 1),))
        report = Reporter.from_environment(rank)
        checkpoints = Checkpoints(Folder(root, 2), lineage, 3, "job", report, rank, 2, (Axis("shard", 2),))
        return repr(load(checkpoints, state))

    ended = run(work, 2, tmp_path / "two")
    assert [end.result for end in ended] == [repr((1, 1))] * 2, ended[0].output


def test_only_as_many_stay_as_are_to_be_kept_and_inherited_ones_count(tmp_path):
    root = tmp_path / "root"
    write(root, [1, 2, 3, 4], keep=2)
    assert committed(root) == ["step-00000003.attempt-0001", "step-00000004.attempt-0001"]
    write(root, [5, 6], attempt=2, history=[(1, 4)], resume=(1, 4), keep=2)
    # The plan names step 4: it stays, though two newer ones are there.
    assert committed(root) == [
        "step-00000004.attempt-0001",
        "step-00000005.attempt-0002",
        "step-00000006.attempt-0002",
    ]
    assert {path.parent.name for path in root.glob("*/*/commit.json")} == set(committed(root))
    assert {path.parent.parent.name for path in root.glob("*/*/commit.json")} == {"attempt-0002"}


def test_what_an_interrupted_save_left_is_cleared_by_the_next_attempt(tmp_path):
    root = tmp_path / "root"
    write(root, [1])
    left = root / "attempt-0001" / "step-00000002.attempt-0001"
    shutil.copytree(root / "attempt-0001" / "step-00000001.attempt-0001", left)
    (left / "commit.json").unlink()
    read(root, 2, [(1, -1)])
    assert not left.exists()
    assert committed(root) == ["step-00000001.attempt-0001"]
    assert not list(root.glob("*/unfinished*"))


def test_an_older_attempt_that_wakes_up_can_neither_save_nor_delete(tmp_path):
    """Attempt 1 is frozen after step 2; attempt 2 takes over and saves; attempt 1 goes on, and a third one reads."""
    root, asleep, awake = tmp_path / "root", tmp_path / "asleep", tmp_path / "awake"

    def old(rank):
        checkpoints, state = opened(root, rank, 1, attempt=1, keep=2)
        load(checkpoints, state)
        save_steps(checkpoints, state, [1, 2])
        asleep.touch()
        while not awake.exists():
            time.sleep(0.01)
        with pytest.raises(Superseded):
            save_steps(checkpoints, state, [3])
        with pytest.raises(OSError, match="No such file"):
            checkpoints.store.delete(checkpoints.store.directory(1, 1))

    gang = start(old, 1, tmp_path / "old")
    gang.until(asleep.exists)
    write(root, [5], attempt=2, history=[(1, 2)], resume=(1, 2), keep=2)
    awake.touch()
    (ended,) = gang.wait()
    assert ended.code == 0, ended.output
    assert "step-00000003.attempt-0001" not in committed(root)
    (after,) = read(root, 3, [(1, 2), (2, -1)])
    assert after.result == repr((2, 5)), after.output


def test_a_save_never_writes_over_what_is_there(tmp_path):
    root = tmp_path / "root"

    def work(rank):
        checkpoints, state = opened(root, rank, 1, attempt=1)
        load(checkpoints, state)
        save_steps(checkpoints, state, [1])
        with pytest.raises(SaveFailed, match="exists"):
            save_steps(checkpoints, state, [1])

    (ended,) = run(work, 1, tmp_path / "work")
    assert ended.code == 0, ended.output


def test_a_rank_that_cannot_write_is_an_error_on_all(tmp_path):
    root = tmp_path / "root"

    def work(rank):
        checkpoints, state = opened(root, rank, 2, attempt=1)
        load(checkpoints, state)
        if rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))  # a full volume, as this rank sees it
        with pytest.raises(SaveFailed, match="rank"):
            save_steps(checkpoints, state, [1])
        os._exit(0)

    ended = run(work, 2, tmp_path / "work")
    assert [end.code for end in ended] == [0, 0], ended[0].output + ended[1].output
    assert committed(root) == []
