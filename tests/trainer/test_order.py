"""Which samples a step takes: decided by (seed, step) alone, every sample once in an epoch, at any world size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from trainyard_trainer.data.batches import IGNORED, Batches
from trainyard_trainer.data.corpus import Corpus
from trainyard_trainer.data.order import Order, permute, share

sizes = st.integers(1, 3000)
seeds = st.integers(0, 2**53 - 1)
epochs = st.integers(0, 2**40)


@given(sizes, seeds, epochs)
def test_an_epoch_takes_every_sample_exactly_once(size, seed, epoch):
    landed = permute(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(landed), np.arange(size))


@given(st.integers(50, 3000), seeds, epochs)
def test_epochs_differ(size, seed, epoch):
    offsets = np.arange(size)
    assert not np.array_equal(permute(offsets, size, seed, epoch), permute(offsets, size, seed, epoch + 1))


@given(st.integers(1, 500), st.integers(1, 64), seeds)
def test_the_steps_of_an_epoch_together_are_the_epoch(samples, batch, seed):
    order = Order(samples, batch, seed, "data")
    steps = -(-2 * samples // batch)
    stream = np.concatenate([order.step(step) for step in range(1, steps + 1)])[: 2 * samples]
    assert np.array_equal(np.sort(stream[:samples]), np.arange(samples))
    assert np.array_equal(np.sort(stream[samples:]), np.arange(samples))


@given(st.integers(1, 10**9), st.integers(1, 200), seeds, st.integers(1, 10**7), st.integers(1, 300))
def test_any_number_of_ranks_shares_a_step_without_loss_or_repetition(samples, batch, seed, step, ranks):
    ids = Order(samples, batch, seed, "data").step(step)
    parts = [share(ids, rank, ranks) for rank in range(ranks)]
    assert np.array_equal(np.concatenate(parts), ids)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(seeds, st.integers(1, 10**6))
def test_the_digest_tells_steps_seeds_and_texts_apart(seed, step):
    order = Order(10**6, 8, seed, "data")
    others = (
        order.digest(step + 1),
        Order(10**6, 8, seed + 1, "data").digest(step),
        Order(10**6, 8, seed, "x").digest(step),
    )
    assert order.digest(step) == Order(10**6, 8, seed, "data").digest(step)
    assert order.digest(step) not in others


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 8), st.integers(1, 12))
def test_all_ranks_take_equally_many_micro_batches_and_every_token_counts_once(batch, micro, length, ranks):
    corpus = Corpus(np.arange(1000, dtype=np.uint16), "data", 1)
    order = Order(999 // length, batch, 7, "data")
    counted, passes = [], set()
    for rank in range(ranks):
        rows = list(Batches(corpus, order, length, micro, rank, ranks).step(3))
        passes.add(tuple(inputs.shape for inputs, _ in rows))
        for inputs, targets in rows:
            assert inputs.shape[0] <= micro
            real = targets != IGNORED
            assert bool((targets[real] == inputs[real] + 1).all())
            counted += targets[real].tolist()
    expected = (order.step(3)[:, None] * length + np.arange(1, length + 1)).flatten().tolist()
    assert len(passes) == 1
    assert sorted(counted) == sorted(expected)
