"""Which samples a step takes: decided by (seed, step) alone, every sample once in an epoch, at any world size."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from trainyard_trainer.data.batches import IGNORED, Batches
from trainyard_trainer.data.corpus import Corpus, Piece, Source
from trainyard_trainer.data.order import BLOCK, Order, apportion, permute, share

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
    order = Order((samples,), batch, seed, "data")
    steps = -(-2 * samples // batch)
    stream = np.concatenate([order.step(step) for step in range(1, steps + 1)])[: 2 * samples]
    assert np.array_equal(np.sort(stream[:samples]), np.arange(samples))
    assert np.array_equal(np.sort(stream[samples:]), np.arange(samples))


@given(st.integers(1, 10**9), st.integers(1, 200), seeds, st.integers(1, 10**7), st.integers(1, 300))
def test_any_number_of_ranks_shares_a_step_without_loss_or_repetition(samples, batch, seed, step, ranks):
    ids = Order((samples,), batch, seed, "data").step(step)
    parts = [share(ids, rank, ranks) for rank in range(ranks)]
    assert np.array_equal(np.concatenate(parts), ids)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


weights = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=5)


@settings(max_examples=30, deadline=None)
@given(weights, st.integers(1, 4000), seeds, st.lists(st.integers(1, 400), min_size=5, max_size=5))
def test_sources_with_weights_are_each_walked_through_without_loss_or_repetition(given_weights, batch, seed, sizes):
    """Over any number of steps: of each source every sample equally often, give or take the epoch that has begun."""
    samples = tuple(sizes[: len(given_weights)])
    order = Order(samples, batch, seed, "data", tuple(given_weights))
    stream = np.concatenate([order.step(step) for step in range(1, 4)])
    firsts = np.cumsum([0, *samples[:-1]])
    for first, size in zip(firsts, samples, strict=True):
        taken = stream[(stream >= first) & (stream < first + size)] - first
        times = np.bincount(taken, minlength=size)
        assert times.max() - times.min() <= 1
        assert np.array_equal(
            np.sort(taken[: len(taken) // size * size]), np.repeat(np.arange(size), len(taken) // size)
        )


@settings(max_examples=30, deadline=None)
@given(weights, seeds)
def test_weights_are_kept_to_the_sample_in_every_block(given_weights, seed):
    shares = apportion(given_weights, BLOCK)
    assert sum(shares) == BLOCK
    exact = [BLOCK * weight / sum(given_weights) for weight in given_weights]
    most = 1 if min(exact) >= 1 else len(shares)  # who has no place of its own gets one of another's
    assert all(abs(share - wanted) < most for share, wanted in zip(shares, exact, strict=True))
    assert min(shares) >= 1
    size = 10**6
    ids = Order((size,) * len(shares), BLOCK, seed, "data", tuple(given_weights)).step(3)
    assert np.bincount(ids // size, minlength=len(shares)).tolist() == shares


def test_weights_that_divide_a_block_are_kept_exactly():
    assert apportion([9, 1], BLOCK) == [9000, 1000]
    assert apportion([3, 1], BLOCK) == [7500, 2500]
    assert apportion([1e9, 1, 1], BLOCK) == [9998, 1, 1]


@given(seeds, st.integers(1, 10**6))
def test_the_digest_tells_steps_seeds_and_texts_apart(seed, step):
    order = Order((10**6,), 8, seed, "data")
    others = (
        order.digest(step + 1),
        Order((10**6,), 8, seed + 1, "data").digest(step),
        Order((10**6,), 8, seed, "x").digest(step),
    )
    assert order.digest(step) == Order((10**6,), 8, seed, "data").digest(step)
    assert order.digest(step) not in others


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 8), st.integers(1, 12))
def test_all_ranks_take_equally_many_micro_batches_and_every_token_counts_once(batch, micro, length, ranks):
    corpus = Corpus((Source((Piece(np.arange(1000, dtype=np.uint16), "text"),), "data", 1),), 1000)
    order = Order((999 // length,), batch, 7, "data")
    counted, passes = [], set()
    for rank in range(ranks):
        rows = list(Batches(corpus, order, length, micro, rank, ranks).step(3))
        passes.add(tuple(inputs.shape for inputs, _, _ in rows))
        for inputs, targets, _ in rows:
            assert inputs.shape[0] <= micro
            real = targets != IGNORED
            assert bool((targets[real] == inputs[real] + 1).all())
            counted += targets[real].tolist()
    expected = (order.step(3)[:, None] * length + np.arange(1, length + 1)).flatten().tolist()
    assert len(passes) == 1
    assert sorted(counted) == sorted(expected)
