"""Collectives of a GPU are kernels: what they took is read from torch's flight recorder, and what is not there is not said."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.processes import run
from torch._C import _distributed_c10d as c10d
from trainyard.contract.plan import Axis
from trainyard.planner.collectives import Collective
from trainyard.planner.traffic import Bytes
from trainyard_trainer import kernels, listening
from trainyard_trainer.kernels import FIRST_LOOK, LOOKS_APART, Kernel, Share, between, settled
from trainyard_trainer.ledger import Heard, Ledger, Line, dealt
from trainyard_trainer.listening import Listening
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.waiting import TIMING, Waits

SECOND = 10**9


def entry(record, created, milliseconds=None, name="nccl:all_reduce", group="0", p2p=False):
    """One of the recorder's, as `dump_nccl_trace_json` writes it."""
    timed = {} if milliseconds is None else {"duration_ms": milliseconds}
    return {
        "record_id": record,
        "time_created_ns": created,
        "profiling_name": name,
        "process_group": [group, f"mesh_{group}"],
        "is_p2p": p2p,
        "retired": milliseconds is not None,
        **timed,
    }


def test_the_collectives_of_a_step_are_those_called_in_it():
    entries = [entry(0, 10, 1.0), entry(1, 20, 250.0), entry(2, 30, 500.0, group="1"), entry(3, 40, 1.0)]
    assert between(entries, 15, 35) == [Kernel("0", False, 0.25), Kernel("1", False, 0.5)]


def test_a_step_of_which_a_collective_is_not_over_or_not_timed_is_not_known():
    assert between([entry(0, 10, 1.0), entry(1, 20)], 0, 30) is None
    assert between([entry(0, 10, 1.0), entry(1, 20)], 0, 15) == [Kernel("0", False, 0.001)]


def test_a_step_that_the_recorder_no_longer_has_whole_is_not_known():
    assert between([entry(7, 20, 1.0)], 15, 30) is None
    assert between([entry(0, 20, 1.0)], 15, 30) == [Kernel("0", False, 0.001)]
    assert between([], 15, 30) is None


def test_a_batch_of_sends_and_receives_is_timed_as_a_whole():
    batch = [
        entry(0, 10, name="nccl:send 0->1", p2p=True),
        entry(1, 11, name="nccl:recv 0<-1", p2p=True),
        entry(2, 12, 40.0, name="nccl:coalesced", p2p=True),
    ]
    assert between(batch, 0, 20) == [Kernel("0", True, 0.04)]
    assert between([*batch[:2], entry(2, 12, name="nccl:coalesced", p2p=True)], 0, 20) is None


def recorded(folder):
    """What torch's own recorder has of gloo's collectives, which it keeps in the same form, but for their times."""

    def work(rank):
        meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
        began = time.time_ns()
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        return began, time.time_ns(), json.loads(c10d._dump_fr_trace_json())["entries"], dist.group.WORLD.group_name

    ended = run(work, 2, folder)
    assert [end.code for end in ended] == [0, 0], "\n".join(end.output for end in ended)
    return ended[0].result


def test_the_recorder_of_the_installed_torch_has_that_form(tmp_path):
    began, ended, entries, group = recorded(tmp_path / "ranks")
    timed = [{**one, "duration_ms": 4.0} for one in entries]
    assert between(timed, began, ended)[0] == Kernel(group, False, 0.004)
    assert between(timed, ended, ended + SECOND) == []
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
    assert 'DEFINE_CONSTANT(duration_key, "duration_ms")' in header.read_text()


class Steps:
    """Steps of a second each, of which the recorder knows `known`."""

    def __init__(self, known):
        self.now, self.known, self.looks = 0, known, []
        self.share = Share(self.look, lambda: self.now)

    def look(self, begin, end):
        self.looks.append((begin, end))
        return self.known

    def take(self, count):
        taken = []
        for _ in range(count):
            self.now += SECOND
            taken.append(self.share.take())
        return taken


def test_the_part_of_one_step_in_fifty_stands_for_the_steps_until_the_next_look():
    steps = Steps([Kernel("0", False, 0.1), Kernel("1", True, 0.15)])
    assert steps.take(FIRST_LOOK) == [None] * FIRST_LOOK
    assert steps.take(LOOKS_APART) == [0.25] * LOOKS_APART
    steps.known = [Kernel("0", False, 0.5)]
    assert steps.take(2) == [0.5, 0.5]
    assert steps.looks == [
        ((FIRST_LOOK - 1 + more) * SECOND, (FIRST_LOOK + more) * SECOND) for more in (0, LOOKS_APART)
    ]


def test_a_look_that_finds_nothing_to_go_by_says_so():
    steps = Steps(None)
    assert steps.take(2 * LOOKS_APART) == [None] * 2 * LOOKS_APART


def test_kernels_that_ran_at_once_make_no_more_than_the_step():
    steps = Steps([Kernel("0", False, 0.8), Kernel("1", False, 0.9)])
    assert steps.take(FIRST_LOOK + 1)[-1] == 1.0


def test_what_was_done_between_two_steps_is_part_of_neither():
    steps = Steps([Kernel("0", False, 0.5)])
    steps.take(FIRST_LOOK - 1)
    steps.now += 100 * SECOND
    steps.share.skip()
    assert steps.take(2) == [None, 0.5]
    assert steps.looks == [((FIRST_LOOK + 99) * SECOND, (FIRST_LOOK + 100) * SECOND)]


@pytest.mark.parametrize("timing", ["0", "1"])
def test_a_gpu_of_which_nothing_is_known_waits_for_an_unknown_time_and_not_for_none(monkeypatch, timing):
    monkeypatch.setenv(TIMING, timing)
    waits = Waits(torch.device("cuda"))
    waits.begin()
    assert [waits.take() for _ in range(3)] == [None] * 3
    waits.end()


def test_the_ledger_waits_until_the_kernels_of_its_step_are_measured(monkeypatch):
    monkeypatch.setattr(kernels.time, "sleep", lambda seconds: None)
    answers = iter([None, None, [Kernel("0", False, 1.0)]])
    assert settled(0, 1, lambda begin, end: next(answers)) == [Kernel("0", False, 1.0)]
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", 0.0)
    assert settled(0, 1, lambda begin, end: None) is None


ACTIVATIONS = Line("tensor", Bytes.ACTIVATIONS, Collective.ALL_REDUCE)
SCALES = Line("tensor", Bytes.GRADIENTS, Collective.ALL_REDUCE)
STREAM = Line("pipeline", Bytes.ACTIVATIONS, Collective.SEND_RECEIVE)
TIED = Line("pipeline", Bytes.GRADIENTS, Collective.SEND_RECEIVE)
HEARD = [
    Heard("t", ACTIVATIONS, Collective.ALL_REDUCE, 8.0),
    Heard("p", STREAM, Collective.SEND_RECEIVE, 30.0),
    Heard("t", None, Collective.ALL_REDUCE, 8.0),
    Heard("t", SCALES, Collective.ALL_REDUCE, 8.0),
    Heard("p", TIED, Collective.SEND_RECEIVE, 10.0),
]


def test_each_line_has_the_time_of_its_own_collectives():
    found = dealt(
        HEARD,
        [
            Kernel("t", False, 1.0),
            Kernel("p", True, 4.0),
            Kernel("t", False, 2.0),
            Kernel("other", False, 9.0),
            Kernel("p", True, 4.0),
            Kernel("t", False, 4.0),
        ],
    )
    assert found == {ACTIVATIONS: 1.0, SCALES: 4.0, STREAM: 6.0, TIED: 2.0}


def test_a_group_of_which_not_as_much_was_recorded_as_heard_has_no_times():
    assert dealt(HEARD, [Kernel("t", False, 1.0), Kernel("p", True, 4.0)]) == {STREAM: 3.0, TIED: 1.0}
    assert dealt(HEARD, [Kernel("t", False, 1.0)] * 3) == {ACTIVATIONS: 1.0, SCALES: 1.0}


class Told:
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.lines, self.overlap = [], []

    def sent(self, axis, kind, collective, **figures):
        self.lines.append((axis, kind, figures["count"], figures["seconds"]))

    def overlapped(self, *seconds):
        self.overlap.append(seconds)


def steps_on_a_gpu(rank):
    """A counted step of a mesh that says it is one of GPUs: gloo stands for NCCL, which here has no device."""
    meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
    mesh = build([Axis("replicate", 2), Axis("shard", 1)], 2, "cpu")
    mesh._device_type = "cuda"
    group = mesh.get_group("replicate")
    answers = []
    for known in ([Kernel(group.group_name, False, 0.5)] * 2, None):
        ledger = Ledger(mesh, Places((("node 0",), ("node 1",))), look=lambda begin, end, known=known: known)
        with ledger.counting(True):
            dist.all_reduce(torch.ones(4), group=group)
            dist.all_reduce(torch.ones(4), group=group, async_op=True).wait()
        told = Told()
        ledger.tell(told, {}, step_seconds=2.0, waited_seconds=1.0)
        answers.append((told.lines, told.overlap))
    return answers


def test_a_step_on_a_gpu_is_told_with_the_seconds_of_its_kernels_or_with_none(tmp_path):
    ended = run(steps_on_a_gpu, 2, tmp_path / "ranks")
    assert [end.code for end in ended] == [0, 0], "\n".join(end.output for end in ended)
    for end in ended:
        known, unknown = end.result
        assert known == ([("replicate", Bytes.GRADIENTS, 2, 1.0)], [])
        assert unknown == ([("replicate", Bytes.GRADIENTS, 2, None)], [])


def exchanged(rank):
    """A batch of which no operation has a piece of work, as with NCCL: what is heard of it, and what is seen to be done."""
    meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
    begun, done = [], []
    received, other = torch.zeros(3), 1 - rank

    class NoWork:
        unbox = staticmethod(lambda boxed: None)

    real = dist.Work
    with Listening(lambda group, collective, buffers: begun.append(str(collective)), lambda *seen: done.append(seen)):
        listening.dist.Work = NoWork
        try:
            works = [
                dist.P2POp(dist.isend, torch.full((3,), float(rank)), other),
                dist.P2POp(dist.irecv, received, other),
            ]
            for work in dist.batch_isend_irecv(works):
                work.wait()
            torch.ones(3).add_(1.0)  # the next operation looks at what is done
        finally:
            listening.dist.Work = real
    return begun, done, received.tolist()


def test_a_send_without_a_piece_of_work_is_counted_and_nobody_asks_when_it_is_done(tmp_path):
    ended = run(exchanged, 2, tmp_path / "ranks")
    assert [end.code for end in ended] == [0, 0], "\n".join(end.output for end in ended)
    for rank, end in enumerate(ended):
        assert end.result == ([Collective.SEND_RECEIVE], [], [1.0 - rank] * 3)
