"""Ranks that meet at a store which rank 0 holds itself, as under the launcher: how they leave together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.launching import free_port
from support.processes import Ended, Gang, start
from trainyard.contract.exits import Exit
from trainyard_trainer.parallel import rendezvous
from trainyard_trainer.parallel.rendezvous import Place, RanksMissing, StoppedEarly, meet

LOST = 40


def gang(folder: Path, stop_asked: Callable[[int], bool], poll_seconds: float, leave_seconds: float = 60.0) -> Gang:
    """Ranks 0 to 2 of four; each exits 75 once it is stopped, LOST without rank 0. poll_seconds: how often 1 and 2 look.
    leave_seconds: for how long ranks wait for each other's word."""
    agree = rendezvous._agree

    def work(rank: int) -> int:
        rendezvous.LEAVE_SECONDS = leave_seconds
        if rank:
            rendezvous.POLL_SECONDS = poll_seconds
        place = Place.of(os.environ, rank, 4)
        assert place.hosts_store == (rank == 0)
        at_the_store = False

        def agreed(*given: Any) -> None:
            nonlocal at_the_store
            at_the_store = True
            agree(*given)

        def asked() -> bool:
            if at_the_store:  # where a rank asks only after it has said that it came
                (folder / f"here-{rank}").touch()
            return stop_asked(rank)

        rendezvous._agree = agreed
        try:
            meet(place, torch.device("cpu"), 60.0, asked)
        except StoppedEarly:
            return Exit.YIELDED
        except RanksMissing:
            return LOST
        return Exit.FAILURE

    hosted = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(free_port())}
    return start(work, 4, folder / "ranks", environments=dict.fromkeys(range(3), hosted), only=range(3))


def come(gang: Gang, folder: Path) -> None:
    gang.until(lambda: len(list(folder.glob("here-*"))) == 3)


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


def test_a_store_that_is_lost_otherwise_is_a_failure_at_once(tmp_path: Path) -> None:
    ranks = gang(tmp_path, lambda rank: False, poll_seconds=0.05, leave_seconds=1.0)
    come(ranks, tmp_path)
    ranks.kill(0)
    assert codes(ranks.wait(50.0)) == [-9, LOST, LOST]  # and not only after the 60 s in which all were to come
