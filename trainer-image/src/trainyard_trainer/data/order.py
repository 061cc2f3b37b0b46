"""Which samples make a step: a pure function of (seed, step), so that there is no state to save or to lose.

Position p of the endless stream of samples belongs to epoch p // samples, and each epoch is a permutation of all
samples by a key of its own. The permutation is a Feistel network on the smallest power of four that holds the samples,
walked until it lands inside (cycle walking; Black and Rogaway 2002): one-to-one by construction, and computable for any
position alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, as in splitmix64


@dataclass(frozen=True, slots=True)
class Order:
    """samples: how many there are; global_batch: how many a step takes, over all ranks; data: digest of the corpus."""

    samples: int
    global_batch: int
    seed: int
    data: str

    def step(self, step: int) -> NDArray[np.int64]:
        """Ids of the samples of a step, in order. Steps count from 1. An id is below `samples`."""
        first = (step - 1) * self.global_batch
        positions = np.arange(first, first + self.global_batch, dtype=np.int64)
        epochs, offsets = np.divmod(positions, self.samples)
        ids = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            ids[inside] = permute(offsets[inside], self.samples, self.seed, int(epoch))
        return ids

    def digest(self, step: int) -> str:
        """Names what a step learns from: hex digest of its sample ids and of the corpus they are taken from."""
        ids = self.step(step).astype("<i8").tobytes()
        return hashlib.blake2b(ids, digest_size=16, key=self.data.encode()[:64]).hexdigest()


def share(ids: NDArray[np.int64], rank: int, ranks: int) -> NDArray[np.int64]:
    """A rank's part of a step's samples: consecutive, none lost or taken twice, sizes that differ by at most one."""
    return np.array_split(ids, ranks)[rank]


def permute(offsets: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where each offset (0 to size - 1) of an epoch lands: one-to-one on the same range."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    landed = _feistel(offsets.astype(np.uint64), keys, half_bits)
    outside = landed >= size
    while outside.any():
        landed[outside] = _feistel(landed[outside], keys, half_bits)
        outside = landed >= size
    return landed.astype(np.int64)


def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
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
