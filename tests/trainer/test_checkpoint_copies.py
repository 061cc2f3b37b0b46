"""Copies in memory: a gang that starts again loads without its storage, also with a node replaced; and never what is wrong."""

import contextlib
import json
import os
import pickle
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.processes import TINY, plan_file, run
from trainyard.api.trainer import TrainerConfig
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Domain, Member, decode
from trainyard.planner.traffic import Bytes
from trainyard_trainer import session
from trainyard_trainer.checkpoint import copies
from trainyard_trainer.checkpoint.agreement import Agreement
from trainyard_trainer.checkpoint.copies import Copies, partners
from trainyard_trainer.checkpoint.files import Posix
from trainyard_trainer.checkpoint.near import Slice
from trainyard_trainer.checkpoint.record import CommitRecord, StoredFile, Training
from trainyard_trainer.checkpoint.store import Stored
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.report import ResumedFrom, SentInStep, Warned
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

STEPS = 9
ENOUGH = 64 * 2**20


def dies_when_durable(step):
    """A rank ends this way once its save of that step and all copies of it are made."""
    save = Session.save

    def save_and_see(self, *arguments, wait=False):
        save(self, *arguments, wait=wait)
        self._finish()
        if self.steps_done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Session.save = save_and_see


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
        dies_when_durable(dies)
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


def test_what_a_save_sends_to_another_node_is_told_as_part_of_the_steps_since_the_one_before(tmp_path):
    ended = train(tmp_path, "run", 1, dies=6)
    said = [[r for r in end.reports if isinstance(r, SentInStep) and r.data == Bytes.STATE] for end in ended]
    assert [[r.bytes == 0 for r in some] for some in said] == [[True, False, False]] * 4, (
        "step 3, and the saves of 3 and 6"
    )
    assert {(r.axis, r.collective, r.level) for some in said for r in some} == {("storage", "send-receive", "node")}
    for rank, some in enumerate(said):
        (folder,) = (tmp_path / "memory" / str(rank)).glob("*/*")
        written = [*folder.glob(f"__{rank}_*"), *(folder.glob(".metadata") if rank == 0 else ())]
        assert some[-1].bytes == round(sum(path.stat().st_size for path in written) / 3)
    counted, predicted = sum(some[-1].bytes for some in said), sum(some[-1].predicted_bytes for some in said)
    with torch.device("meta"):
        model = Transformer.of(TrainerConfig.model_validate(TINY).model)
    assert predicted == pytest.approx(12 * sum(parameter.numel() for parameter in model.parameters()) / 3)
    assert counted > predicted, "of a tiny model, more than half is what DCP writes around its numbers"


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


class Counter:
    """Something of a script's own, whose state grows with the steps."""

    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_what_a_script_keeps_beside_its_tensors_may_have_grown(tmp_path):
    def counts(rank):
        copies.FOLDER = tmp_path / "memory" / str(rank)
        dies_when_durable(3)
        model, counter = torch.nn.Linear(4, 1), Counter()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = session.load(model, optimizer, counter=counter)
        while step < 3:
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            step += 1
            counter.seen += range(100)
            session.report(step, loss)
            if step == 3:
                session.save()
        return counter.seen

    def attempt(number):
        history = [(before, -1) for before in range(1, number)]
        given = plan_file(
            tmp_path / f"{number}.json", tmp_path / "run", attempt=number, history=history, copies_bytes=ENOUGH
        )
        return run(counts, 2, tmp_path / f"gang-{number}", environments=dict.fromkeys(range(2), given))

    assert [end.code for end in attempt(1)] == [-signal.SIGKILL] * 2
    damage_the_store(tmp_path)
    ended = attempt(2)
    assert [end.result for end in ended] == [[*range(100)] * 3] * 2, ended[0].output


def of_two_nodes(rank, folder):
    """What each of four ranks on two nodes has: a plan, and all ranks."""
    meet(Place.of(os.environ, rank, 4), torch.device("cpu"), 60.0, lambda: False)
    copies.FOLDER = folder / "memory" / str(rank // 2)
    with open(os.environ[env.PLAN], "rb") as plan:
        known = decode(plan.read())
    members = (Member(0, "node-0"), Member(1, "node-1"))
    return replace(known, processes_per_node=2, members=members), Agreement(rank, 4)


def content(rank):
    return bytes([rank]) * 15_000 + bytes([100 + rank]) * 15_000


def written(kept, folder):
    """A commit of which each rank has written a file, as a save does."""
    rank, path = kept.everyone.rank, folder / kept.folder.name / "step"
    path.mkdir(parents=True, exist_ok=True)
    name = f"__{rank}_0.distcp"
    with contextlib.closing(kept.tee(Posix()).create(path / name)) as stream:
        stream.write(content(rank))
    files = kept.everyone.gather(StoredFile(name, len(content(rank)), ""))
    return Stored(CommitRecord(1, 1, tuple(files), 4, (), "", "", Training(0, "", {}, ""), 0.0), path)


def test_all_ranks_of_a_node_together_take_what_it_may_take(tmp_path):
    budgets = {"less": 100_000, "enough": 120_000}

    def saves(rank):
        plan, everyone = of_two_nodes(rank, tmp_path)
        for name, budget in budgets.items():
            kept = Copies.of(replace(plan, uid=name), budget, everyone)
            kept.committed(written(kept, tmp_path / "store"))

    ended = run(saves, 4, tmp_path / "gang", environments=dict.fromkeys(range(4), plan_file(tmp_path / "p", tmp_path)))
    assert [end.code for end in ended] == [0] * 4, ended[0].output
    for node in range(2):
        files = {name: list((tmp_path / "memory" / str(node) / name).glob("*/*")) for name in budgets}
        assert 0 < sum(path.stat().st_size for path in files["less"]) <= budgets["less"]
        assert {path.name for path in files["enough"]} == {f"__{rank}_0.distcp" for rank in range(4)}
        assert all(path.read_bytes() == content(int(path.name[2])) for path in files["enough"])


def test_of_what_others_wrote_a_rank_gets_what_it_asked_for_and_no_rank_holds_what_all_asked(tmp_path):
    def asks(rank):
        plan, everyone = of_two_nodes(rank, tmp_path)
        kept = Copies.of(plan, ENOUGH, everyone)
        stored = written(kept, tmp_path / "store")
        gathered = []
        gather = everyone.gather
        everyone.gather = lambda value: (gathered.append(len(pickle.dumps(value))), gather(value))[1]

        def pieces(needs):
            copies.wanted = lambda folder, state: needs
            return kept._pieces(stored, {}, {f"__{rank}_0.distcp"})

        of_each = [Slice(f"__{writer}_0.distcp", 1000 * rank, 20_000) for writer in range(4)]
        given = pieces(of_each)
        expected = {part: content(n)[part.offset :][: part.length] for n, part in enumerate(of_each) if n != rank}
        copies.MOST_PIECES_BYTES = 50_000
        of_one = pieces([Slice("__0_0.distcp", 1000 * rank, 20_000)])
        return given == expected, max(gathered) < 20_000, of_one

    ended = run(asks, 4, tmp_path / "gang", environments=dict.fromkeys(range(4), plan_file(tmp_path / "p", tmp_path)))
    assert [end.result for end in ended] == [(True, True, None)] * 4, ended[0].output


racks = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(racks)
def test_each_node_keeps_one_copy_and_none_lies_in_the_rack_it_is_of_where_that_can_be(rack_of):
    tree = [Domain(0, f"rack-{n}") for n in range(5)]
    kept_by = partners(rack_of, tree)
    assert sorted(kept_by) == list(range(len(rack_of)))
    if max(rack_of.count(rack) for rack in rack_of) <= len(rack_of) // 2:
        assert all(rack_of[keeper] != rack_of[node] for node, keeper in enumerate(kept_by))
