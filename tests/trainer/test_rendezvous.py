"""Ranks that meet at a store which rank 0 holds itself, as under the launcher: how they leave together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from support.launching import free_port
from support.processes import Ended, Gang, start
from trainyard.contract.exits import Exit
from trainyard_trainer.parallel import rendezvous
from trainyard_trainer.parallel.rendezvous import Place, RanksMissing, StoppedEarly, meet

LOST = 40


def gang(folder: Path, stop_asked: Callable[[int], bool], poll_seconds: float) -> Gang:
    """Ranks 0 to 2 of four; each exits 75 once it is stopped, LOST without rank 0. poll_seconds: how often 1 and 2 look."""

    def work(rank: int) -> int:
        if rank:
            rendezvous.POLL_SECONDS = poll_seconds
        place = Place.of(os.environ, rank, 4)
        assert place.hosts_store == (rank == 0)
        (folder / f"here-{rank}").touch()
        try:
            meet(place, torch.device("cpu"), 60.0, lambda: stop_asked(rank))
        except StoppedEarly:
            return Exit.YIELDED
        except RanksMissing:
            return LOST
        return Exit.FAILURE

    hosted = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(free_port())}
    return start(work, 4, folder / "ranks", environments=dict.fromkeys(range(3), hosted), only=range(3))


def come(gang: Gang, folder: Path) -> None:
    gang.until(lambda: len(list(folder.glob("here-*"))) == 3)
    time.sleep(0.5)  # from there to the store; a rank that comes later meets nobody, and is stopped all the same


def codes(ended: list[Ended]) -> list[int]:
    return [rank.code for rank in ended]


def test_rank_0_takes_the_store_along_only_once_the_others_have_read_the_stop(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ranks = gang(tmp_path, lambda rank: rank == 0 and told.exists(), poll_seconds=0.7)
    come(ranks, tmp_path)
    told.touch()  # of one pod alone, such as by kubectl delete pod
    assert codes(ranks.wait()) == [Exit.YIELDED] * 3


def test_a_store_that_is_lost_when_a_stop_was_asked_is_a_stop(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ranks = gang(tmp_path, lambda rank: told.exists(), poll_seconds=0.7)
    come(ranks, tmp_path)
    ranks.kill(0)
    time.sleep(0.8)  # they have looked, and found nobody
    told.touch()
    assert codes(ranks.wait()) == [-9, Exit.YIELDED, Exit.YIELDED]


def test_a_store_that_is_lost_otherwise_is_a_failure_within_seconds(tmp_path: Path) -> None:
    ranks = gang(tmp_path, lambda rank: False, poll_seconds=0.05)
    come(ranks, tmp_path)
    ranks.kill(0)
    assert codes(ranks.wait(20.0)) == [-9, LOST, LOST]
