"""What the process groups send in a step is what the planner's formulas say: byte by byte, for every kind of mesh."""

import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support.ledgers import CASES, PLACES, of_gangs
from support.processes import run
from trainyard.contract.plan import Axis
from trainyard_trainer.ledger import Ledger
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.waiting import Waits

LATE_SECONDS = 0.2


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    return of_gangs(tmp_path_factory.mktemp("gangs"))


@pytest.mark.parametrize("case", CASES)
def test_bytes_counted_are_the_bytes_of_the_closed_formulas(ledgers, case):
    assert ledgers[case]
    for said, formulas, _ in ledgers[case]:
        assert formulas.keys() == said.keys()
        for line, sent in formulas.items():
            assert sent == pytest.approx(said[line], rel=1e-12), line


@pytest.mark.parametrize("case", CASES)
def test_every_line_was_on_its_way_for_a_time_of_which_no_more_than_all_is_exposed(ledgers, case):
    for said, _, (timed, communication, exposed) in ledgers[case]:
        assert {tuple(line) for line in timed} == said.keys()
        assert 0 < exposed <= communication


def late(rank):
    """A counted step of two collectives. Nobody waits for the first; rank 1 comes late to the second, once rank 0 waits in it.
    What was on its way, and what of it was exposed."""
    meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
    mesh = build([Axis("shard", 2)], 2, "cpu")
    store, group = dist.distributed_c10d._get_default_store(), mesh.get_group()
    ledger, waits = Ledger(mesh, PLACES), Waits(torch.device("cpu"))
    waits.begin()

    def tell():
        while not waits.inside:
            time.sleep(0.001)
        store.set("inside", "yes")

    with ledger.counting(True):
        hidden = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        while not hidden.is_completed():
            time.sleep(0.001)
        torch.ones(1).neg()  # the next operation sees that it is done
        if rank == 0:
            threading.Thread(target=tell, daemon=True).start()
        else:
            store.wait(["inside"])
            time.sleep(LATE_SECONDS)
        dist.all_reduce(torch.ones(4), group=group, async_op=True).wait()
    waits.end()
    return ledger.communication_seconds, ledger.exposed_seconds(waits.take())


def test_exposed_is_what_training_waits_and_not_what_is_on_its_way_meanwhile(tmp_path):
    ended = run(late, 2, tmp_path / "ranks")
    assert [end.code for end in ended] == [0, 0], "\n".join(end.output for end in ended)
    communication, exposed = ended[0].result
    assert LATE_SECONDS <= exposed < communication
