"""Saves beside the training: what is written is the state of one step, whatever happens to the state and to the gang."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from support.killpoints import checkpoints, fill, state_of, values, what
from support.processes import TINY, plan_file, run, start
from support.stores import Counting, Held
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer import session
from trainyard_trainer.checkpoint import places
from trainyard_trainer.checkpoint.distributed import Checkpoints, SaveFailed
from trainyard_trainer.checkpoint.files import Posix
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.checkpoint.pace import gives_up
from trainyard_trainer.launch.hang import MARGIN_SECONDS, UNMEASURED_SECONDS, patience_seconds
from trainyard_trainer.launch.progress import Progress, heard
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.report import CheckpointDurable, CheckpointStarted, Phase, PhaseChanged, StepDone, Warned
from trainyard_trainer.train import main

LONG = {**TINY, "steps": 100_000}


def opened(root, rank, ranks, attempt, files=None, **keywords):
    saved = checkpoints(root, rank, ranks, attempt, files or Posix())
    state = state_of(rank, ranks)
    saved.load(state, lambda record: None)
    return saved, state


def met(rank, ranks):
    meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 30.0, lambda: False)


def held(gate, operation="create", suffix=".distcp"):
    """A store whose first `operation` on such a file waits until `gate` is there."""
    return Counting(Held(gate, operation, suffix))


def test_the_state_changes_while_it_is_written_and_what_was_copied_is_saved(tmp_path):
    gate = tmp_path / "gate"

    def work(rank):
        met(rank, 2)
        saved, state = opened(tmp_path / "root", rank, 2, 1, held(gate))
        fill(state, 1.0)
        saved.start(state, what(1))
        saved.staged()
        fill(state, 2.0)
        torch.distributed.barrier()  # the training's collectives go on
        assert saved.busy
        if rank == 0:
            gate.touch()
        assert saved.finish().record.step == 1
        _, copy = opened(tmp_path / "root", rank, 2, 2)
        return values(copy)

    ended = run(work, 2, tmp_path / "work")
    assert [end.result for end in ended] == [{1.0}, {1.0}], ended[0].output


def test_a_save_given_up_leaves_nothing_and_the_next_one_counts(tmp_path):
    gate = tmp_path / "gate"

    def work(rank):
        met(rank, 2)
        saved, state = opened(tmp_path / "root", rank, 2, 1, held(gate))
        fill(state, 1.0)
        saved.start(state, what(1))
        saved.staged()
        saved.cancel()
        torch.distributed.barrier()
        gate.touch()
        with pytest.raises(SaveFailed, match="a newer save takes its place"):
            saved.finish()
        fill(state, 2.0)
        saved.save(state, what(2))

    ended = run(work, 2, tmp_path / "work")
    assert [end.code for end in ended] == [0, 0], ended[0].output
    assert [path.name for path in (tmp_path / "root" / "attempt-0001").glob("*step*")] == ["step-00000002.attempt-0001"]


def test_a_save_that_is_written_when_it_is_given_up_is_committed(tmp_path):
    """The other order: all ranks have written, and rank 0 is about to commit."""
    gate = tmp_path / "gate"

    def work(rank):
        met(rank, 2)
        saved, state = opened(tmp_path / "root", rank, 2, 1, held(gate, "create", "commit.json.tmp"))
        fill(state, 1.0)
        saved.start(state, what(1))
        while not gate.with_suffix(".waiting").exists():
            time.sleep(0.005)
        saved.cancel()
        torch.distributed.barrier()
        gate.touch()
        return saved.finish().record.step

    ended = run(work, 2, tmp_path / "work")
    assert [end.result for end in ended] == [1, 1], ended[0].output


def test_a_process_of_its_own_writes_as_a_thread_does(tmp_path):
    def work(rank):
        met(rank, 1)
        saved = checkpoints(tmp_path / "root", rank, 1, 1, Posix())
        saved = type(saved)(saved.store, saved.lineage, 2, "job", saved.report, rank, 1, saved.mesh, in_process=True)
        state = state_of(rank, 1)
        saved.load(state, lambda record: None)
        saved.warm(state)
        for step in (1, 2):
            fill(state, float(step))
            saved.start(state, what(step))
            saved.staged()
            fill(state, -1.0)
            saved.finish()
        again, copy = opened(tmp_path / "root", rank, 1, 2)
        return values(copy), len(again.last.record.files)

    (ended,) = run(work, 1, tmp_path / "work")
    assert ended.result == ({2.0}, 2), ended.output


def in_a_process(**given):
    """The checkpoints of a session as they are made on a GPU."""
    return Checkpoints(**{**given, "in_process": True})


def test_a_script_without_a_main_guard_is_not_run_again_by_the_process_that_writes(tmp_path):
    """`python script.py`, as the launcher starts it: what is spawned must not join the gang a second time."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os
import torch
from trainyard_trainer import session
from trainyard_trainer.checkpoint.distributed import Checkpoints

with open("ran", "a") as ran:
    ran.write(os.environ["RANK"])
session.Checkpoints = lambda **given: Checkpoints(**{**given, "in_process": True})
session.join(every=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = session.load(model, optimizer)
while step < 6 and not session.should_stop(step):
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    session.report(step, loss)
    if session.should_save(step):
        session.save()
session.end()
"""
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TRAINYARD_CHECKPOINTS": str(tmp_path / "checkpoints"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, script],
            env={**given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert sorted((tmp_path / "ran").read_text()) == ["0", "1"]
    assert "SaveFailed" not in said[0], said[0]
    assert {2, 6} <= set(commits(tmp_path))


def test_a_process_that_writes_and_is_killed_costs_its_save_and_a_thread_writes_the_next(tmp_path):
    gate = tmp_path / "gate"

    def work(rank):
        session.Checkpoints = in_a_process
        return training_on(lambda rank: held(gate))(rank)

    gang = start(work, 2, tmp_path / "gang", environments(tmp_path, 2, every_steps=3))
    waiting = gate.with_suffix(".waiting")
    gang.until(waiting.exists)
    killed = int(waiting.read_text())
    assert killed not in gang.pids.values()
    os.kill(killed, signal.SIGKILL)
    gate.touch()
    gang.until(lambda: len(of(gang.reports(1), CheckpointDurable)) > 1)
    (tmp_path / "stop").touch()
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    (warned,) = (warned for warned in of(ended[0].reports, Warned) if warned.reason == "SaveFailed")
    assert "step-00000003.attempt-0001: rank " in warned.message
    assert "the process that writes has ended with -9; from now on a thread writes; training goes on" in warned.message
    assert 3 not in commits(tmp_path)
    assert commits(tmp_path)[-1] == of(ended[0].reports, StepDone)[-1].step


def environments(tmp_path, ranks, trainer=LONG, **plan):
    shared = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", ranks=ranks, trainer=trainer, **plan)
    return {rank: {**shared, env.STOP_FILE: str(tmp_path / "stop")} for rank in range(ranks)}


def of(reports, kind):
    return [report for report in reports if isinstance(report, kind)]


def commits(tmp_path):
    records = (json.loads(path.read_text()) for path in tmp_path.glob("checkpoints/*/*/commit.json"))
    return sorted(record["step"] for record in records)


def training_on(store):
    """The trainer, with its checkpoints in a store that the test made."""

    def work(rank):
        places.Folder = partial(Folder, files=store(rank))
        return main([])

    return work


def test_training_goes_on_while_a_save_is_written_and_the_next_save_waits(tmp_path):
    gate = tmp_path / "gate"
    gang = start(training_on(lambda rank: held(gate)), 2, tmp_path / "gang", environments(tmp_path, 2, every_steps=3))
    gang.until(lambda: len(of(gang.reports(0), StepDone)) > 8)
    assert [report.step for report in of(gang.reports(0), CheckpointStarted)] == [3]
    assert of(gang.reports(0), CheckpointDurable) == []
    assert {report.reason for report in of(gang.reports(0), Warned)} == {"SaveLate"}
    gate.touch()
    gang.until(lambda: len(of(gang.reports(1), CheckpointDurable)) > 1)
    (tmp_path / "stop").touch()
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    saved = [report.step for report in of(ended[0].reports, CheckpointDurable)]
    assert saved[0] == 3
    assert saved[1] > 8
    assert saved[-1] == of(ended[0].reports, StepDone)[-1].step


def test_a_stop_while_an_older_save_is_written_saves_the_last_step(tmp_path):
    gate = tmp_path / "gate"
    gang = start(training_on(lambda rank: held(gate)), 2, tmp_path / "gang", environments(tmp_path, 2, every_steps=3))
    gang.until(lambda: len(of(gang.reports(0), StepDone)) > 4)
    (tmp_path / "stop").touch()
    time.sleep(0.2)
    gate.touch()
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    last = of(ended[0].reports, StepDone)[-1].step
    assert commits(tmp_path) == [3, last]


def test_a_stop_right_after_a_save_began_waits_for_that_save(tmp_path):
    """The step of the save is the last one: one commit, not two."""
    gate = tmp_path / "gate"

    def work(rank):
        should_save = session.Session.should_save

        def asked_to_stop_at_the_save(self, step):
            if step == 3:
                self._stop = True
            return should_save(self, step)

        session.Session.should_save = asked_to_stop_at_the_save
        return training_on(lambda rank: held(gate))(rank)

    gang = start(work, 2, tmp_path / "gang", environments(tmp_path, 2, every_steps=3))
    gang.until(gate.with_suffix(".waiting").exists)
    gate.touch()
    ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    assert [report.step for report in of(ended[0].reports, CheckpointDurable)] == [3]
    assert commits(tmp_path) == [3]


def test_a_gang_killed_after_steps_beyond_its_save_resumes_bit_for_bit(tmp_path):
    trainer = {**TINY, "steps": 9}
    run(lambda rank: main([]), 2, tmp_path / "whole", environments=environments(tmp_path, 2, trainer))
    expected = [
        line["loss"] for line in map(json.loads, (tmp_path / "checkpoints/history.jsonl").read_text().splitlines())
    ]
    (tmp_path / "checkpoints").rename(tmp_path / "of-whole")

    def work(rank):
        should_save = session.Session.should_save

        def waits_to_be_killed(self, step):
            while step == 6:
                time.sleep(0.01)
            return should_save(self, step)

        session.Session.should_save = waits_to_be_killed
        return main([])

    gang = start(work, 2, tmp_path / "killed", environments(tmp_path, 2, trainer, every_steps=3))
    gang.until(lambda: of(gang.reports(0), CheckpointDurable) and len(of(gang.reports(0), StepDone)) > 5)
    for rank in (0, 1):
        gang.kill(rank, signal.SIGKILL)
    gang.wait()
    known = {"attempt": 2, "history": [(1, -1)], "every_steps": 3}
    ended = run(lambda rank: main([]), 2, tmp_path / "again", environments=environments(tmp_path, 2, trainer, **known))
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    lines = [json.loads(line) for line in (tmp_path / "checkpoints/history.jsonl").read_text().splitlines()]
    assert [line["attempt"] for line in lines] == [1] * 3 + [2] * 6
    assert [line["loss"] for line in lines] == expected


def full(rank, victim, failures):
    """A volume that has no room left on one rank, for the first `failures` files of tensors."""
    left = [failures]

    def at(n, operation, path):
        if rank == victim and operation == "write" and path.suffix == ".distcp" and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return Counting(at)


def test_a_full_volume_is_told_and_training_goes_on_with_what_was_saved(tmp_path):
    victim = 1
    trainer = {**TINY, "steps": 9}
    work = training_on(lambda rank: full(rank, victim, 1))
    ended = run(work, 2, tmp_path / "gang", environments=environments(tmp_path, 2, trainer, every_steps=3))
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    (warned,) = (warned for warned in of(ended[0].reports, Warned) if warned.reason != "SaveLate")
    assert warned.reason == "SaveFailed"
    assert "step-00000003.attempt-0001" in warned.message
    assert f"rank {victim}: OSError: [Errno 28] No space left on device" in warned.message
    assert commits(tmp_path)[-1] == 9
    assert not list(tmp_path.glob("checkpoints/*/*00000003*")), "a failed save keeps no room"
    assert not list(tmp_path.glob("checkpoints/*/unfinished*"))


def test_a_volume_full_at_the_end_is_an_error_that_names_it(tmp_path):
    work = training_on(lambda rank: full(rank, 0, 1000))
    ended = run(work, 2, tmp_path / "gang", environments=environments(tmp_path, 2, TINY))
    assert [end.code for end in ended] == [Exit.FAILURE] * 2
    assert "No space left on device" in ended[1].output


@pytest.mark.parametrize(
    ("usual", "elapsed", "left", "expected"),
    [
        (10.0, 5.0, 60.0, True),  # the newest step soonest
        (10.0, 8.0, 5.0, False),  # the rest of the older one is all there is time for
        (10.0, 0.0, 5.0, True),  # neither will do: the newest is tried
        (None, 5.0, 60.0, False),  # nobody knows how long a save takes, and none is there yet
    ],
)
def test_an_older_save_is_given_up_where_there_is_time_for_the_last_step(usual, elapsed, left, expected):
    assert gives_up(usual, elapsed, left) is expected


def test_a_save_beside_the_training_excuses_no_silence():
    """Only a worker that waits for its save may be silent for as long as a save takes."""
    progress = Progress()
    for report in (
        StepDone(at=0.0, rank=0, step=1, loss=1.0, tokens=1, step_seconds=0.5, grad_norm=1.0, digest=""),
        PhaseChanged(at=0.0, rank=0, phase=Phase.TRAIN, step=1),
        CheckpointStarted(at=0.0, rank=0, step=1, attempt=1, path="/"),
    ):
        progress = heard(progress, report, 1, 0.0)
    assert patience_seconds(progress, 120.0) == 120.0 + MARGIN_SECONDS
    progress = heard(progress, PhaseChanged(at=0.0, rank=0, phase=Phase.SAVE, step=1), 1, 0.0)
    assert patience_seconds(progress, 120.0) == UNMEASURED_SECONDS[Phase.SAVE]
