"""What one rank puts through the network in one step.

All ranks take equally many micro-batches, since every pass through the network is a collective: where the samples do
not divide, the last micro-batches are filled up with rows that count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from trainyard.api.trainer import TrainerConfig

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data.corpus import Corpus
from trainyard_trainer.data.order import Order, share

IGNORED = -100  # the target of a token that does not count: torch's default ignore_index


class Batch(NamedTuple):
    """A micro-batch: inputs and targets, each rows x sequence_length, int64. documents: of each input token, which of its
    sample's documents it is in; None where a sample counts as one document."""

    inputs: Tensor
    targets: Tensor
    documents: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batches:
    """The corpus cut into samples of `sequence_length` tokens, and one rank's way through them.

    rank, ranks: among those that take different samples. alike: how many take the same ones. masked: whether the documents of
    a sample are kept apart.
    """

    corpus: Corpus
    order: Order
    sequence_length: int
    micro_batch: int
    rank: int
    ranks: int
    masked: bool = False
    alike: int = 1
    _ends: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum(self.order.samples, dtype=np.int64))

    @property
    def global_tokens(self) -> int:
        """Tokens of a step that could count for the loss, over all ranks; all of them do unless documents are kept apart."""
        return self.order.global_batch * self.sequence_length

    def step(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches. Raises BadConfiguration for a token that the model does not have."""
        mine = share(self.order.step(step), self.rank, self.ranks)
        most = -(-self.order.global_batch // self.ranks)
        rows = min(self.micro_batch, most)
        for first in range(0, most, rows):
            yield self._batch(mine[first : first + rows], min(rows, most - first))

    def part_of_tokens(self, batches: Iterable[Batch]) -> float:
        """This rank's term of the number of tokens that count in a step; their sum over all ranks is the number."""
        return counted(batches) / self.alike if self.masked else self.global_tokens / (self.ranks * self.alike)

    def _batch(self, ids: NDArray[np.int64], rows: int) -> Batch:
        tokens = np.zeros((rows, self.sequence_length + 1), dtype=np.int64)
        begins = np.zeros(tokens.shape, dtype=np.bool_)
        sources = np.searchsorted(self._ends, ids, side="right")
        for row, (sample, source) in enumerate(zip(ids, sources, strict=True)):
            first = int(sample - self._ends[source] + self.order.samples[source]) * self.sequence_length
            self.corpus.sources[source].read(first, tokens[row], begins[row])
            if not 0 <= tokens[row].min() <= tokens[row].max() < self.corpus.vocabulary:
                self._refuse(int(source), first, tokens[row])
        targets = tokens[:, 1:].copy()
        targets[len(ids) :] = IGNORED
        inputs = torch.from_numpy(tokens[:, :-1].copy())
        if not self.masked:
            return Batch(inputs, torch.from_numpy(targets))
        if self.corpus.separator is not None:
            begins[:, 1:] |= tokens[:, :-1] == self.corpus.separator
        targets[begins[:, 1:]] = IGNORED  # what comes after a document's end does not follow from it
        return Batch(inputs, torch.from_numpy(targets), torch.from_numpy(np.cumsum(begins[:, :-1], axis=1)))

    def _refuse(self, source: int, first: int, tokens: NDArray[np.int64]) -> None:
        at = int(np.flatnonzero((tokens < 0) | (tokens >= self.corpus.vocabulary))[0])
        where, position = self.corpus.sources[source].place(first + at)
        raise BadConfiguration(
            f"{where}: token {position} is {tokens[at]}, and the model has tokens 0 to {self.corpus.vocabulary - 1} "
            "(spec.trainer.model.vocabulary); use the tokenizer's number of tokens, or the files that belong to it"
        )


def counted(batches: Iterable[Batch]) -> int:
    """Tokens that count for the loss."""
    return sum(int((batch.targets != IGNORED).sum()) for batch in batches)


def order_of(corpus: Corpus, sequence_length: int, global_batch: int, seed: int) -> Order:
    """The order of a corpus's samples. Raises EmptyCorpus where a source has none."""
    weights = tuple(source.weight for source in corpus.sources if source.weight is not None)
    return Order(corpus.samples(sequence_length), global_batch, seed, corpus.digest, weights)


def batches_of(config: TrainerConfig, corpus: Corpus, rows: int, rank: int, ranks: int, alike: int = 1) -> Batches:
    """As a configuration says. rows: most samples of a micro-batch."""
    data = config.data
    order = order_of(corpus, data.sequence_length, data.global_batch, config.seed)
    return Batches(corpus, order, data.sequence_length, rows, rank, ranks, data.packing == "masked", alike)
