"""Samples reach the device by copies that the host does not wait for, before anything is computed with them."""

import os

import torch
from support.processes import run
from torch import Tensor
from trainyard.api.trainer import ParallelConfig, Shape
from trainyard.contract.plan import Axis
from trainyard_trainer.data.ahead import Ahead
from trainyard_trainer.data.batches import Batch
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread

ROWS, LENGTH = 2, 8


class Sources:
    """Of each step two micro-batches, the second with documents."""

    def step(self, step):
        tokens = torch.full((ROWS, LENGTH), step)
        return iter([Batch(tokens, tokens), Batch(tokens, tokens, torch.zeros_like(tokens))])


def fetched(monkeypatch, pin):
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    ahead = Ahead(Sources(), lambda: False, None, pin=pin)
    ahead.fetch(4)
    return ahead.take(4), pinned


def test_for_a_gpu_all_samples_are_pinned(monkeypatch):
    batches, pinned = fetched(monkeypatch, pin=True)
    assert [[None if part is None else part.tolist() for part in batch] for batch in batches] == [
        [None if part is None else part.tolist() for part in batch] for batch in Sources().step(4)
    ]
    assert len(pinned) == 5
    assert not any(part is one for batch in batches for part in batch for one in pinned)


def test_for_a_cpu_none_are(monkeypatch):
    assert fetched(monkeypatch, pin=False)[1] == []


def copied(rank, form):
    """What happens in a step, in its order: copies of samples to the device, and passes through the network."""
    meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
    axes = tuple(Axis(name, int(size)) for name, size in (axis.split("=") for axis in form.split(",")))
    shape = Shape(layers=2, width=32, heads=4, kv_heads=2, hidden=64, tie_embeddings=False)
    with torch.device("meta"):
        model = Transformer(shape, 260, 10000.0)
    spread = Spread(model, build(axes, 2, "cpu"), torch.device("cpu"), ParallelConfig())
    weights.draw(model, shape.layers, seed=5)
    order, to = [], Tensor.to

    def seen(tensor, *arguments, **named):
        if tensor.dtype is torch.int64 and tensor.shape == (ROWS, LENGTH) and torch.device("cpu") in arguments:
            order.append("copy" if named.get("non_blocking") else "wait")
        return to(tensor, *arguments, **named)

    Tensor.to = seen
    next(iter(model.blocks.values())).register_forward_pre_hook(lambda *_: order.append("pass"))
    spread.learn([Batch(*batch[:2]) for batch in Sources().step(4)], tokens=64)
    return order


def test_all_copies_are_asked_for_before_the_first_pass_and_none_is_waited_for(tmp_path):
    for form in ("replicate=2,shard=1", "shard=2", "pipeline=2,shard=1"):
        ended = run(lambda rank, form=form: copied(rank, form), 2, tmp_path / form)
        assert [end.code for end in ended] == [0, 0], "\n".join(end.output for end in ended)
        assert [end.result for end in ended] == [["copy"] * 4 + ["pass"] * 2] * 2, form
