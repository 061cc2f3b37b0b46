"""Parameter servers: with none stale they compute what one process does; stale ones let a worker go ahead, and no further."""

import json
import multiprocessing
import os
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.gradients import BOUNDS, difference
from support.processes import run
from torch import nn
from trainyard.api.trainer import TrainerConfig
from trainyard_trainer.data.batches import batches_of
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import weights
from trainyard_trainer.model.loss import cross_entropy
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.optimizer import adamw, learning_rate, set_learning_rate
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.server import Servers, Shard, deal
from trainyard_trainer.parameter_server import main, train

WORKERS, STALENESS, AHEAD = 3, 2, 6
CONFIG = TrainerConfig.model_validate(
    {
        "model": {"preset": "tiny"},
        "data": {"files": [__file__], "sequenceLength": 16, "globalBatch": 6, "microBatch": 2},
        "optimizer": {"warmupSteps": 2, "learningRate": 0.01},
        "steps": 5,
    }
)
LONGER = CONFIG.model_copy(update={"steps": 40})


def batches(config, rank, ranks):
    return batches_of(config, corpus_of(config), config.data.micro_batch, rank, ranks)


def of_one_process():
    """The same steps without servers: all samples, one gradient, AdamW."""
    model = Transformer.of(CONFIG.model).double()
    weights.draw(model, CONFIG.model.shape.layers, CONFIG.seed)
    optimizer, mine = adamw(model, CONFIG.optimizer), batches(CONFIG, 0, 1)
    for step in range(1, CONFIG.steps + 1):
        loss_of(model, mine, step).backward()
        set_learning_rate(optimizer, learning_rate(step, CONFIG.steps, CONFIG.optimizer))
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.named_parameters()}


def first_gradient(dtype):
    """Of one process, by parameter."""
    model = Transformer.of(CONFIG.model).to(dtype)
    weights.draw(model, CONFIG.model.shape.layers, CONFIG.seed)
    loss_of(model, batches(CONFIG, 0, 1), 1).backward()
    return {name: value.grad for name, value in model.named_parameters()}


def added_up(rank, dtype):
    """The gradient with which the server of this process takes its first step, of the parameters that it keeps."""
    rows, apply = [], Shard._apply

    def record(shard, gradients, *given):
        rows.append(gradients.clone())
        apply(shard, gradients, *given)

    Shard._apply = record
    model = train(CONFIG.model_copy(update={"steps": 1}), batches(CONFIG, rank, WORKERS), 0, dtype)
    Shard._apply = apply
    named = list(model.named_parameters())
    kept = [named[n] for n in deal([value.numel() for _, value in named], WORKERS)[rank]]
    parts = torch.split(rows[0], [value.numel() for _, value in kept])
    return {name: part.tolist() for (name, _), part in zip(kept, parts, strict=True)}


def loss_of(model, mine, step):
    losses = (cross_entropy(model(b.inputs, b.documents), b.targets, CONFIG.model.vocabulary) for b in mine.step(step))
    return sum(losses) / mine.global_tokens


def work_of(free):
    """What each worker finds, as numbers that travel: its parameters after training with none stale; its mean loss before and
    after with some; the most steps that a worker of its shard was ahead while the last one was held back; and what its server
    adds up, by type."""

    def work(rank):
        meet(Place.of(os.environ, rank, WORKERS), torch.device("cpu"), 60.0, lambda: False)
        exact = train(CONFIG, batches(CONFIG, rank, WORKERS), 0, torch.float64)
        stale = train(LONGER, batches(LONGER, rank, WORKERS), STALENESS)
        fresh = Transformer.of(CONFIG.model)
        weights.draw(fresh, CONFIG.model.shape.layers, CONFIG.seed)
        whole = batches(CONFIG, 0, 1)
        with torch.no_grad():
            losses = [float(loss_of(model, whole, 1)) for model in (fresh, stale)]
        sums = {dtype: added_up(rank, dtype) for dtype in BOUNDS}
        return {n: p.tolist() for n, p in exact.named_parameters()}, losses, held_back(rank, free), sums

    return work


def held_back(rank, free):
    """The last worker begins when the first has taken all the steps that it may alone. One that did not wait for it would take
    the rest as well and be further ahead; one that waited sooner would never set it free."""
    model = nn.Linear(8, 8)
    servers = Servers(model, CONFIG.optimizer, AHEAD, STALENESS)
    for step in range(1, AHEAD + 1):
        if rank == WORKERS - 1 and step == 1:
            assert free.wait(60.0)
        model(torch.ones(8)).sum().backward()
        servers.step()
        if rank == 0 and step == STALENESS:
            free.set()
    servers.close()
    return servers.shard.lead


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    free = multiprocessing.get_context("fork").Event()
    ended = run(work_of(free), WORKERS, tmp_path_factory.mktemp("gang") / "servers")
    assert [end.code for end in ended] == [0] * WORKERS, "\n".join(end.output for end in ended)
    return [end.result for end in ended]


def test_servers_of_nothing_stale_compute_what_one_process_does(found):
    expected = of_one_process()
    for parameters, *_ in found:
        assert set(parameters) == set(expected)
        for name, value in expected.items():
            seen = torch.tensor(parameters[name], dtype=torch.float64)
            assert float(torch.linalg.norm(seen - value) / torch.linalg.norm(value)) < 1e-12, name


@pytest.mark.parametrize("dtype", BOUNDS)
def test_what_servers_add_up_is_the_gradient_of_one_process(found, dtype):
    expected, seen = first_gradient(dtype), set()
    for *_, sums in found:
        for name, numbers in sums[dtype].items():
            gradient = torch.tensor(numbers, dtype=dtype).view_as(expected[name])
            assert difference(gradient.numpy(), expected[name]) < BOUNDS[dtype], name
            seen.add(name)
    assert seen == set(expected)


def test_a_worker_without_a_gpu_of_its_own_is_refused(monkeypatch, capsys):
    """Where there are GPUs it computes on its own."""
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main([]) == 78
    assert "spec.processesPerNode: local rank 1 has no GPU, there are 1; use at most 1" in capsys.readouterr().out


def test_a_stale_worker_learns_all_the_same(found):
    for _, (before, after), *_ in found:
        assert after < 0.75 * before


def test_a_worker_gets_so_many_steps_ahead_of_the_slowest_and_no_further(found):
    assert max(lead for _, _, lead, _ in found) == STALENESS


def test_a_shard_waits_for_all_where_nothing_may_be_stale():
    """The gradients of two workers, in either order, are one step with their sum."""
    kept = [torch.zeros(3)]
    both = Shard(kept, CONFIG.optimizer, 1, 1, 0).exchange(0, torch.tensor([3.0, -5.0, 7.0]))
    shard = Shard(kept, CONFIG.optimizer, 1, 2, 0)
    shard._gradients[1], shard._done[1] = torch.tensor([1.0, -2.0, 3.0]), 1
    assert torch.equal(shard.exchange(0, torch.tensor([2.0, -3.0, 4.0])), both)


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 8))
def test_every_parameter_has_one_server_and_none_has_much_more_than_another(sizes, servers):
    kept = deal(sizes, servers)
    assert sorted(n for some in kept for n in some) == list(range(len(sizes)))
    assert all(a < b for some in kept for a, b in pairwise(some))
    loads = [sum(sizes[n] for n in some) for some in kept]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_staleness_that_cannot_be_is_refused(capsys):
    assert main(["--staleness", "-1"]) == 78
    assert "--staleness: -1; it is a number of steps, 0 or more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"model": {"from": "/models/mine"}},
            "spec.trainer.model.from: /models/mine, and parameter servers begin with",
        ),
        ({"precision": "bfloat16"}, "spec.trainer.precision: bfloat16, and parameter servers compute in float32 alone"),
        (
            {"data": {"packing": "masked"}},
            "spec.trainer.data.packing: masked, and parameter servers divide the loss by",
        ),
    ],
)
def test_what_parameter_servers_would_leave_out_is_refused(tmp_path, capsys, given, sentence):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(given))
    assert main(["--config", str(config)]) == 78
    assert sentence in capsys.readouterr().out
