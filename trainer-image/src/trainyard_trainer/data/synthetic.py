"""Tokens that nobody wrote: each a fixed function of its position, so that as many as one likes take no room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.corpus import Piece, Source, digest_of

_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Scattered:
    """`tokens` of them, all below `vocabulary`: splitmix64 of the position (Steele et al. 2014)."""

    tokens: int
    vocabulary: int

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, part: slice) -> NDArray[Any]:
        first, last, _ = part.indices(self.tokens)
        mixed = np.arange(first + 1, last + 1, dtype=np.uint64) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
        return (mixed ^ (mixed >> np.uint64(31))) % np.uint64(self.vocabulary)


def source(tokens: int, vocabulary: int, path: str, weight: float | None = None) -> Source:
    """path: of the field, for messages."""
    piece = Piece(Scattered(tokens, vocabulary), f"{path}: made up", np.zeros(1, np.int64))
    return Source((piece,), digest_of([f"scattered:{tokens}:{vocabulary}".encode()]), 1, weight)
