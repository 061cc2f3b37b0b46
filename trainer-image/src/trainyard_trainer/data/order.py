"""Which samples make a step: a pure function of (seed, step), so that there is no state to save or to lose.

Position p of the endless stream of samples belongs to epoch p // samples, and each epoch is a permutation of all
samples by a key of its own. The permutation is a Feistel network on the smallest power of four that holds the samples,
walked until it lands inside (cycle walking; Black and Rogaway 2002): one-to-one by construction, and computable for any
position alone.

Sources with weights are mixed by blocks of the stream: each block has its share of places for every source, and which places
these are is a permutation too. So how many samples of a source went before a position can be computed as well, and each
source is walked through in its own order, every sample once in an epoch of that source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BLOCK = 10_000
"""Positions in which weights are kept to the sample: a hundredth of a percent."""
_ROUNDS = 6
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, as in splitmix64


@dataclass(frozen=True, slots=True)
class Order:
    """samples: of each source; global_batch: how many a step takes, over all ranks; data: digest of the corpus.

    weights: of the sources; empty: they are one, and each sample comes once in an epoch of all.
    """

    samples: tuple[int, ...]
    global_batch: int
    seed: int
    data: str
    weights: tuple[float, ...] = ()

    def step(self, step: int) -> NDArray[np.int64]:
        """Ids of the samples of a step, in order. Steps count from 1. An id is below the sum of `samples`: sources have
        theirs one after the other."""
        first = (step - 1) * self.global_batch
        positions = np.arange(first, first + self.global_batch, dtype=np.int64)
        if not self.weights:
            return _walk(positions, sum(self.samples), self.seed, "")
        blocks, places = np.divmod(positions, BLOCK)
        sources, turns = np.empty_like(positions), np.empty_like(positions)
        for block in np.unique(blocks):
            inside = blocks == block
            mixed = _mixed(self.weights, self.seed, int(block))
            sources[inside], turns[inside] = mixed.sources[places[inside]], mixed.turns[places[inside]]
        ids = np.empty_like(positions)
        for source in np.unique(sources):
            inside = sources == source
            within = _walk(turns[inside], self.samples[source], self.seed, f"{source}:")
            ids[inside] = within + sum(self.samples[:source])
        return ids

    def digest(self, step: int) -> str:
        """Names what a step learns from: hex digest of its sample ids and of the corpus they are taken from."""
        ids = self.step(step).astype("<i8").tobytes()
        return hashlib.blake2b(ids, digest_size=16, key=self.data.encode()[:64]).hexdigest()


def share(ids: NDArray[np.int64], rank: int, ranks: int) -> NDArray[np.int64]:
    """A rank's part of a step's samples: consecutive, none lost or taken twice, sizes that differ by at most one."""
    return np.array_split(ids, ranks)[rank]


def apportion(weights: Sequence[float], places: int) -> list[int]:
    """How many of so many places each weight gets; their sum is `places` (largest remainder; Hamilton 1792). A weight too small
    for one place gets one all the same, at the cost of the largest share."""
    exact = [weight / sum(weights) * places for weight in weights]
    shares = [int(share) for share in exact]
    left = sorted(range(len(weights)), key=lambda n: (shares[n] - exact[n], n))
    for n in left[: places - sum(shares)]:
        shares[n] += 1
    for n in [n for n, share in enumerate(shares) if not share]:
        shares[n] += 1
        shares[shares.index(max(shares))] -= 1
    return shares


@dataclass(frozen=True, slots=True)
class _Mixed:
    """A block of the stream: of each place the source, and how many samples of that source went before, since the beginning."""

    sources: NDArray[np.int64]
    turns: NDArray[np.int64]


@lru_cache(maxsize=2)
def _mixed(weights: tuple[float, ...], seed: int, block: int) -> _Mixed:
    shares = np.array(apportion(weights, BLOCK), dtype=np.int64)
    sources = np.searchsorted(
        np.cumsum(shares), permute(np.arange(BLOCK), BLOCK, seed, f"mix:{block}"), side="right"
    ).astype(np.int64)
    turns = np.empty_like(sources)
    for source, share_of_block in enumerate(shares):
        turns[sources == source] = block * share_of_block + np.arange(share_of_block)
    return _Mixed(sources, turns)


def _walk(positions: NDArray[np.int64], samples: int, seed: int, name: str) -> NDArray[np.int64]:
    """Which sample stands at each position of an endless walk through so many, epoch after epoch. name: of the walk."""
    epochs, offsets = np.divmod(positions, samples)
    ids = np.empty_like(positions)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        ids[inside] = permute(offsets[inside], samples, seed, f"{name}{epoch}")
    return ids


def permute(offsets: NDArray[np.int64], size: int, seed: int, epoch: int | str) -> NDArray[np.int64]:
    """Where each offset (0 to size - 1) of an epoch lands: one-to-one on the same range."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    landed = _feistel(offsets.astype(np.uint64), keys, half_bits)
    outside = landed >= size
    while outside.any():
        landed[outside] = _feistel(landed[outside], keys, half_bits)
        outside = landed >= size
    return landed.astype(np.int64)


def _keys(seed: int, epoch: int | str) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8")


def _feistel(values: NDArray[np.uint64], keys: NDArray[np.uint64], half_bits: int) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        mixed = (right ^ key) * _MIX
        mixed ^= mixed >> np.uint64(29)
        left, right = right, left ^ ((mixed * _MIX >> np.uint64(32)) & mask)
    return (left << bits) | right
