"""Copies in memory: a gang that starts again loads without its storage, also with a node replaced; and never what is wrong."""

import json
import os
import shutil
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import TINY, plan_file, run
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Domain
from trainyard_trainer.checkpoint import copies
from trainyard_trainer.checkpoint.copies import partners
from trainyard_trainer.report import ResumedFrom, Warned
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

STEPS = 9
ENOUGH = 64 * 2**20


def train(tmp_path, name, attempt, *, dies=None, budget=ENOUGH):
    """One attempt of four ranks, each a node of its own with its own memory; `dies`: killed once that step is durable."""
    environment = plan_file(
        tmp_path / f"{name}-{attempt}.json",
        tmp_path / name,
        attempt=attempt,
        ranks=4,
        trainer={**TINY, "steps": STEPS},
        every_steps=3,
        history=[(before, -1) for before in range(1, attempt)],
        copies_bytes=budget,
    )

    def work(rank):
        copies.FOLDER = tmp_path / "memory" / str(rank)
        save = Session.save

        def save_and_see(self, *arguments, wait=False):
            save(self, *arguments, wait=wait)
            self._finish()
            if self.steps_done == dies:
                os.kill(os.getpid(), signal.SIGKILL)

        Session.save = save_and_see
        return main([])

    return run(work, 4, tmp_path / f"{name}-{attempt}", environments=dict.fromkeys(range(4), environment))


def losses(tmp_path, name):
    return [json.loads(line)["loss"] for line in (tmp_path / name / "history.jsonl").read_text().splitlines()]


def damage_the_store(tmp_path):
    """What holds the tensors is gone; the records are there."""
    for path in (tmp_path / "run").glob("*/step-*/__*"):
        path.write_bytes(b"")


def test_a_gang_loads_from_memory_with_its_storage_gone_and_one_node_replaced(tmp_path):
    train(tmp_path, "run", 1, dies=6)
    kept = {rank: sorted(path.name for path in (tmp_path / "memory" / str(rank)).glob("*/*/*")) for rank in range(4)}
    assert kept[0] == [".metadata", "__0_0.distcp", "__2_0.distcp"], "its own, and those of the node half a turn away"
    assert kept[1] == ["__1_0.distcp", "__3_0.distcp"]
    damage_the_store(tmp_path)
    shutil.rmtree(tmp_path / "memory" / "2")
    ended = train(tmp_path, "run", 2)
    assert [end.code for end in ended] == [Exit.DONE] * 4, ended[0].output
    assert [r.step for r in ended[0].reports if isinstance(r, ResumedFrom)] == [6]
    assert "step 6 was loaded from the memory of the nodes" in ended[0].output
    train(tmp_path, "whole", 1)
    assert losses(tmp_path, "run") == losses(tmp_path, "whole")


@pytest.mark.parametrize("what", ["altered", "none, for want of room"])
def test_where_copies_are_wrong_or_missing_the_store_is_read(tmp_path, what):
    train(tmp_path, "run", 1, dies=6, budget=1000 if what != "altered" else ENOUGH)
    files = list((tmp_path / "memory").glob("*/*/*/__1_0.distcp"))
    if what == "altered":
        assert len(files) == 2
        for path in files:
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    else:
        assert files == []
    ended = train(tmp_path, "run", 2)
    assert [end.code for end in ended] == [Exit.DONE] * 4, ended[0].output
    assert [r.step for r in ended[0].reports if isinstance(r, ResumedFrom)] == [6]
    assert "from the memory of the nodes" not in ended[0].output
    assert [r.reason for r in ended[0].reports if isinstance(r, Warned)] == []


racks = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(racks)
def test_each_node_keeps_one_copy_and_none_lies_in_the_rack_it_is_of_where_that_can_be(rack_of):
    tree = [Domain(0, f"rack-{n}") for n in range(5)]
    kept_by = partners(rack_of, tree)
    assert sorted(kept_by) == list(range(len(rack_of)))
    if max(rack_of.count(rack) for rack in rack_of) <= len(rack_of) // 2:
        assert all(rack_of[keeper] != rack_of[node] for node, keeper in enumerate(kept_by))
