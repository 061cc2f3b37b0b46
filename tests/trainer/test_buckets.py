"""Reductions go on beside the backward pass: in a thread, and on a GPU on a stream of their own."""

import threading
from contextlib import contextmanager

import pytest
import torch
from trainyard_trainer.parallel import buckets
from trainyard_trainer.parallel.buckets import Bucket, Lane


class Device:
    """Stands for torch.cuda: streams and events that keep the order of what they are asked, and which stream is current where."""

    def __init__(self):
        self.order, self._here = [], threading.local()
        self.compute = self._made("compute")

    def _made(self, name):
        device = self

        class Stream:
            def record_event(self):
                device.order.append(f"{name} records")
                return f"event of {name}"

            def wait_event(self, event):
                device.order.append(f"{name} waits for {event}")

            def __str__(self):
                return name

        return Stream()

    def Stream(self):  # as torch names it
        return self._made("side")

    def current_stream(self, device=None):
        return getattr(self._here, "stream", self.compute)

    @contextmanager
    def stream(self, stream):
        before, self._here.stream = self.current_stream(), stream
        yield
        self._here.stream = before


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(buckets.torch, "get_device_module", lambda device: made)
    return made


def a_bucket(number=0):
    flat = torch.ones(4)
    return Bucket(flat, [flat], number, last=True)


def test_a_reduction_is_on_a_stream_that_waits_for_the_gradients_and_is_waited_for_by_its_sum(device):
    go = threading.Event()

    def reduction(bucket):
        assert go.wait(60.0)
        device.order.append(f"reduced on {device.current_stream()}")

    done = Lane(reduction).sum(a_bucket())
    assert not done.done(), "whoever computes goes on meanwhile"
    told = done.then(lambda _: device.order.append(f"set on {device.current_stream()}"))
    go.set()
    told.wait()
    assert device.order == [
        "compute records",
        "side waits for event of compute",
        "reduced on side",
        "set on side",
    ]


def test_reductions_follow_each_other_on_one_stream(device):
    streams, order = [], []

    def reduction(bucket):
        streams.append(device.current_stream())
        order.append(bucket.number)

    lane = Lane(reduction)
    for sum_ in [lane.sum(a_bucket(number)) for number in range(5)]:
        sum_.wait()
    assert order == list(range(5))
    assert len(set(map(id, streams))) == 1


def test_what_goes_wrong_in_a_reduction_is_raised_where_its_sum_is_waited_for():
    def reduction(bucket):
        raise ValueError("no such peer")

    with pytest.raises(ValueError, match="no such peer"):
        Lane(reduction).sum(a_bucket()).wait()
