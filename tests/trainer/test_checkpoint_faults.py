"""Whatever file operation a gang dies at, by a kill or by power loss, the next attempt loads what was committed, whole."""

from random import Random

import pytest
from support.killpoints import TRAINING, trials
from support.processes import run
from support.stores import Counting, Journal, after_power_loss, never
from trainyard_trainer.checkpoint.files import Posix, make_folders, remove_tree
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.checkpoint.record import CommitRecord
from trainyard_trainer.checkpoint.store import Stored, Superseded, WrongFolder

SEED = 20
TRIALS = 30


def test_nothing_wrong_is_loaded_after_death_at_any_operation(tmp_path):
    lives = list(trials(TRIALS, SEED, tmp_path))
    print(f"seed {SEED}: {[(life.ranks, life.victim, life.point, life.power) for life in lives]}")
    assert [life for life in lives if life.wrong] == []
    assert {life.loaded for life in lives} >= {0, 6} or len({life.loaded for life in lives}) > 3, (
        "no variety in the draw"
    )


def commit(attempt, step, job="job", parent=None):
    return CommitRecord(attempt, step, (), 1, (), job, "", TRAINING, 0.0, parent)


def committed(folder, step, job="job"):
    path = folder.begin(step)
    return folder.commit(path, commit(folder.attempt, step, job))


def test_what_is_not_synced_is_lost_with_the_power(tmp_path):
    """The store itself: without it, the test above would promise nothing."""
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    store = Journal(never, kept)
    for name in ("synced", "unsynced"):
        with store.create(root / name) as stream:
            stream.write(b"x" * 100)
            if name == "synced":
                store.sync(stream)
    store.sync_folder(root)
    with store.create(root / "nameless") as stream:
        store.sync(stream)
    left = []
    for seed in range(20):
        after_power_loss(root, kept, tmp_path / str(seed), Random(seed))
        assert (tmp_path / str(seed) / "synced").read_bytes() == b"x" * 100
        left.append(
            (
                (tmp_path / str(seed) / "unsynced").read_bytes() == b"x" * 100,
                (tmp_path / str(seed) / "nameless").exists(),
            )
        )
    assert {whole for whole, _ in left} == {True, False}
    assert {named for _, named in left} == {True, False}


def test_a_rename_survives_the_power_whole_or_not_at_all(tmp_path):
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    store = Journal(never, kept)
    for name in ("a", "b", "a/folder"):
        store.make_folder(root / name)
    for name in (".", "a"):
        store.sync_folder(root / name)
    store.rename(root / "a" / "folder", root / "b" / "folder")
    found = set()
    for seed in range(20):
        after = tmp_path / str(seed)
        after_power_loss(root, kept, after, Random(seed))
        found.add(((after / "a" / "folder").exists(), (after / "b" / "folder").exists()))
    assert found == {(True, False), (False, True)}


def test_folders_of_attempts_that_can_never_count_go_with_the_first_commit(tmp_path):
    """Attempt 1 committed, 2 was given up with a commit that is not history, 3 left a save unfinished; 4 goes on from 1."""
    for attempt, steps in ((1, (1,)), (2, (2,)), (3, ())):
        folder = Folder(tmp_path, attempt)
        folder.claim("job")
        for step in steps:
            committed(folder, step)
    Folder(tmp_path, 3).files.make_folder(folder.directory(3, 3))
    fourth = Folder(tmp_path, 4)
    fourth.claim("job")
    taken = fourth.inherit(next(stored for stored in fourth.find().commits if stored.record.attempt == 1))
    assert isinstance(taken, Stored)
    fourth.abandon(keep=())
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-0004"]
    assert [stored.record.attempt for stored in fourth.find().commits] == [1]
    with pytest.raises(Superseded):
        committed(folder, 4)


def test_only_the_abandoned_go_and_other_jobs_checkpoints_stay(tmp_path):
    """By the whole of load and save: attempt 2 is not in the lineage of attempt 4, attempt 1 belongs to another job."""
    from support.killpoints import checkpoints, fill, state_of, what
    from trainyard.contract.plan import Mark

    def work(rank):
        import os

        import torch
        from trainyard_trainer.parallel.rendezvous import Place, meet

        meet(Place.of(os.environ, rank, 1), torch.device("cpu"), 30.0, lambda: False)
        state = state_of(rank, 1)
        for attempt, job, history in ((1, "other", ()), (2, "job", ()), (3, "job", ()), (4, "job", (Mark(3, -1),))):
            saved = checkpoints(tmp_path / "root", rank, 1, attempt, Posix(), job, history)
            saved.load(state, lambda record: None)
            there = sorted(path.name for path in (tmp_path / "root").glob("attempt-*"))
            fill(state, float(attempt))
            saved.save(state, what(attempt))
        return there, sorted(path.name for path in (tmp_path / "root").glob("attempt-*"))

    (ended,) = run(work, 1, tmp_path / "work")
    assert ended.code == 0, ended.output
    before, after = ended.result
    assert before == ["attempt-0001", "attempt-0003", "attempt-0004"], "attempt 3 had already removed what 2 left"
    assert after == ["attempt-0001", "attempt-0004"]


def test_the_later_of_two_gangs_of_one_attempt_saves_and_the_earlier_is_told(tmp_path):
    first, second = Folder(tmp_path, 1), Folder(tmp_path, 1)
    first.claim("job")
    committed(first, 1)
    second.claim("job")
    with pytest.raises(Superseded, match=r"has claimed attempt 1 .* give each gang a folder of its own"):
        committed(first, 2)
    committed(second, 2)


def test_the_folder_of_an_earlier_job_of_the_same_name_is_refused(tmp_path):
    earlier = Folder(tmp_path, 3)
    earlier.claim("earlier uid")
    committed(earlier, 7, "earlier uid")
    with pytest.raises(WrongFolder, match=r"step-00000007.*another job \(earlier uid; this is later uid\)"):
        Folder(tmp_path, 1).claim("later uid")
    assert len(earlier.find().commits) == 1


def test_a_save_that_was_interrupted_does_not_block_its_step(tmp_path):
    folder = Folder(tmp_path, 1)
    folder.claim("job")
    (folder.begin(1) / "__0_0.distcp").write_bytes(b"half")
    committed(folder, 1)
    assert [stored.record.step for stored in folder.find().commits] == [1]
    with pytest.raises(FileExistsError):
        folder.begin(1)


def test_a_folder_made_is_durable_before_something_is_made_in_it(tmp_path):
    done = []
    store = Counting(lambda n, operation, path: done.append((operation, path.relative_to(tmp_path).as_posix())))
    make_folders(store, tmp_path / "a" / "b")
    assert done == [("make_folder", "a"), ("sync_folder", "."), ("make_folder", "a/b"), ("sync_folder", "a")]
    remove_tree(Posix(), tmp_path / "a")
    assert not (tmp_path / "a").exists()
