"""What a rank learns of its machine, of its peers and of its history file."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from support.processes import run, start
from trainyard.api.trainer import OptimizerConfig
from trainyard_trainer.history import NAME, History
from trainyard_trainer.machine import cores, threads
from trainyard_trainer.optimizer import learning_rate
from trainyard_trainer.parallel.gradients import clip
from trainyard_trainer.parallel.rendezvous import Place, RanksMissing, meet


def place(rank, ranks):
    return Place.of(os.environ, rank, ranks)


def test_ranks_that_never_come_are_counted(tmp_path):
    def work(rank):
        with pytest.raises(RanksMissing, match=r"waited 1 s at 127\.0\.0\.1:\d+: 2 of 3 ranks came"):
            meet(place(rank, 3), torch.device("cpu"), 1.0, lambda: False)

    ended = run(work, 3, tmp_path / "gang", only=[0, 2])
    assert [end.code for end in ended] == [0, 0], ended[0].output


def test_a_rank_of_another_attempt_does_not_count(tmp_path):
    def work(rank):
        with pytest.raises(RanksMissing, match="1 of 2 ranks came"):
            meet(place(rank, 2), torch.device("cpu"), 1.0, lambda: False)

    environments = {rank: {"TORCHELASTIC_RUN_ID": f"6f1c-{rank}"} for rank in range(2)}
    ended = run(work, 2, tmp_path / "gang", environments=environments)
    assert [end.code for end in ended] == [0, 0], ended[0].output


def test_a_rank_that_dies_ends_the_others_at_once(tmp_path):
    def work(rank):
        meet(place(rank, 2), torch.device("cpu"), 60.0, lambda: False)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.all_reduce(torch.zeros(4))

    gang = start(work, 2, tmp_path / "gang")
    ended = gang.wait(seconds=30.0)  # half of the timeout of collectives
    assert [end.code for end in ended] == [1, -signal.SIGKILL]


def test_a_share_of_the_cores_unless_told_otherwise(tmp_path):
    assert threads({"OMP_NUM_THREADS": "3"}, 8) == 3
    assert threads({"OMP_NUM_THREADS": "many"}, 10_000) == 1
    limit = tmp_path / "cpu.max"
    limit.write_text("50000 100000\n")
    assert cores(limit) == 0.5
    limit.write_text("max 100000\n")
    assert cores(limit) == len(os.sched_getaffinity(0))
    assert cores(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    config = OptimizerConfig(learning_rate=1.0, final_fraction=0.1, warmup_steps=4)
    rates = [learning_rate(step, 12, config) for step in range(1, 13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[7] == pytest.approx(0.55)
    assert rates[11] == pytest.approx(0.1)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert learning_rate(1, 1, config.but(warmup_steps=0)) == pytest.approx(0.1)


def test_a_gradient_is_scaled_down_and_never_up():
    parts = [torch.tensor([3.0, 4.0])]
    clip(parts, 5.0, 10.0)
    assert parts[0].tolist() == [3.0, 4.0]
    clip(parts, 5.0, 1.0)
    assert parts[0].tolist() == pytest.approx([0.6, 0.8])


def steps(folder):
    return [(line["attempt"], line["step"]) for line in map(json.loads, (folder / NAME).read_text().splitlines())]


def test_a_new_attempt_drops_what_it_does_again(tmp_path):
    first = History(tmp_path, 1, 0)
    for step in (1, 2, 3):
        first.add(step, "aa", 1.5)
    second = History(tmp_path, 2, 2)
    first.add(4, "aa", 1.5)  # the older attempt still runs somewhere
    second.add(3, "aa", 1.25)
    assert steps(tmp_path) == [(1, 1), (1, 2), (2, 3)]
    assert second.missing == 0
    assert float.fromhex(json.loads((tmp_path / NAME).read_text().splitlines()[-1])["loss"]) == 1.25


def test_a_line_cut_off_by_a_crash_is_a_gap(tmp_path):
    (tmp_path / NAME).write_text('{"attempt": 1, "step": 1, "samples": "aa", "loss": "0x1p+0"}\n{"attempt": 1, "st')
    history = History(tmp_path, 2, 2)
    assert history.missing == 1
    assert steps(tmp_path) == [(1, 1)]


def test_what_is_imported_before_a_fork_starts_no_thread_and_is_all_that_is_needed(tmp_path):
    """In a process of its own: here everything is imported already."""
    script = """
import os, sys
from trainyard_trainer.preload import preload
preload()
before = set(sys.modules)
from trainyard_trainer.train import main
assert main(["--config", "config.json"]) == 0
late = {name for name in set(sys.modules) - before if name.startswith(("torch", "sympy", "numpy", "triton"))}
print(len(late))
"""
    config = {"model": {"preset": "tiny"}, "steps": 1, "data": {"files": [__file__]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 20
