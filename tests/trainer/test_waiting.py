"""Collectives of a GPU are timed without being kept, since what is kept of one keeps its buffers."""

import weakref

import pytest
import torch
from torch._C import _distributed_c10d as c10d
from trainyard_trainer.waiting import TIMING, Waits


class Kernel:
    """Stands for NCCL's work, which no machine without a GPU has."""

    def __init__(self, over):
        self.over = over

    def is_completed(self):
        return self.over

    def _get_duration(self):
        return 250.0


@pytest.fixture
def waits(monkeypatch):
    monkeypatch.setattr(c10d.Work, "wait", lambda work: True)
    made = []

    def begun(timing):
        monkeypatch.setenv(TIMING, timing)
        made.append(Waits(torch.device("cuda")))
        made[0].begin()
        return made[0]

    yield begun
    made[0].end()


def test_a_collective_that_is_over_is_counted_and_let_go(waits):
    timed = waits("1")
    running = Kernel(over=False)
    known = []
    for kernel in (Kernel(over=True), Kernel(over=True), running, Kernel(over=True)):
        c10d.Work.wait(kernel)
        known.append(weakref.ref(kernel))
    del kernel
    assert [one() is None for one in known] == [True, True, False, False], "in their order, each once it is over"
    running.over = True
    assert timed.take() == 1.0
    assert timed.take() == 0.0


def test_where_nothing_is_timed_no_collective_is_kept(waits):
    untimed = waits("0")
    kernel = Kernel(over=False)
    known = weakref.ref(kernel)
    c10d.Work.wait(kernel)
    del kernel
    assert known() is None
    assert untimed.take() is None
