"""What one rank puts through the network in one step.

All ranks take equally many micro-batches, since every pass through the network is a collective: where the samples do
not divide, the last micro-batches are filled up with rows that count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard_trainer.data.corpus import Corpus, EmptyCorpus
from trainyard_trainer.data.order import Order, share

IGNORED = -100  # the target of a token that does not count: torch's default ignore_index


@dataclass(frozen=True, slots=True)
class Batches:
    """The corpus cut into samples of `sequence_length` tokens, and one rank's way through them.

    rank, ranks: among those that take different samples.
    """

    corpus: Corpus
    order: Order
    sequence_length: int
    micro_batch: int
    rank: int
    ranks: int

    @property
    def global_tokens(self) -> int:
        """Tokens of a step that count for the loss, over all ranks: every token of every sample has a successor."""
        return self.order.global_batch * self.sequence_length

    def step(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets (each micro-batch x sequence_length, int64) of this rank's micro-batches."""
        mine = share(self.order.step(step), self.rank, self.ranks)
        most = -(-self.order.global_batch // self.ranks)
        rows = min(self.micro_batch, most)
        for first in range(0, most, rows):
            yield self._rows(mine[first : first + rows], min(rows, most - first))

    def _rows(self, ids: NDArray[np.int64], rows: int) -> tuple[Tensor, Tensor]:
        starts = np.zeros(rows, dtype=np.int64)
        starts[: len(ids)] = ids * self.sequence_length
        tokens = self.corpus.tokens[starts[:, None] + np.arange(self.sequence_length + 1)].astype(np.int64)
        targets = tokens[:, 1:].copy()
        targets[len(ids) :] = IGNORED
        return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(targets)


def samples(corpus: Corpus, sequence_length: int) -> int:
    """How many samples a corpus gives; the last target of one is the first token of the next."""
    count = (len(corpus.tokens) - 1) // sequence_length
    if count < 1:
        raise EmptyCorpus(
            f"data.sequenceLength: {sequence_length} is more than the {len(corpus.tokens)} tokens of the "
            f"{corpus.files} files; use less, or more text"
        )
    return count
