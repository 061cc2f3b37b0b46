"""What there is to learn from, as the ranks see it: sources of tokens, each an endless row of documents cut into samples.

A source's tokens lie in pieces: a text in memory, a part of a file that is mapped into memory, a function of the position. Only
what a step asks for is read. Samples are consecutive runs of `sequence_length` tokens of a source, whatever pieces they lie
in; the last target of one is the first token of the next."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.configuration import BadConfiguration

FIELD: Final = "spec.trainer.data"


class EmptyCorpus(BadConfiguration):
    """There is nothing to learn from. The message names the pattern or the field that would have to change."""


class Tokens(Protocol):
    """Tokens in a row, of which parts can be had: an array, or what counts as one."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens. where: file or column, for messages.

    begins: positions at which documents begin, in order, the first of them among them; None where only separators tell.
    """

    tokens: Tokens
    where: str
    begins: NDArray[np.integer[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Pieces one after the other. digest: names what they hold. files: how many were found. weight: as it was asked for."""

    pieces: tuple[Piece, ...]
    digest: str
    files: int
    weight: float | None = None
    _ends: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ends = np.cumsum([len(piece.tokens) for piece in self.pieces], dtype=np.int64)
        object.__setattr__(self, "_ends", ends)

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, first: int, into: NDArray[np.int64], begins: NDArray[np.bool_]) -> None:
        """Fill `into` with the tokens from `first` on, and mark in `begins` those that the pieces know to begin a document."""
        piece, done = int(np.searchsorted(self._ends, first, side="right")), 0
        while done < len(into):
            found = self.pieces[piece]
            at = first + done - int(self._ends[piece]) + len(found.tokens)
            part = found.tokens[at : at + len(into) - done]
            into[done : done + len(part)] = part
            if found.begins is not None:
                low, high = np.searchsorted(found.begins, (at, at + len(part)))
                begins[done + found.begins[low:high] - at] = True
            done += len(part)
            piece += 1

    def place(self, position: int) -> tuple[str, int]:
        """(where, which token there) for a message."""
        piece = int(np.searchsorted(self._ends, position, side="right"))
        return self.pieces[piece].where, position - int(self._ends[piece]) + len(self.pieces[piece].tokens)


@dataclass(frozen=True, slots=True)
class Corpus:
    """All sources. vocabulary: what every token has to be below. separator: the token that ends a document, where one is
    known."""

    sources: tuple[Source, ...]
    vocabulary: int
    separator: int | None = None

    @property
    def digest(self) -> str:
        """Names what is learnt from: hex, equal on all ranks that read the same."""
        if len(self.sources) == 1:
            return self.sources[0].digest
        said = "".join(f"{source.digest}:{source.weight}\n" for source in self.sources)
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    @property
    def tokens(self) -> int:
        """How many there are in all sources."""
        return sum(source.tokens for source in self.sources)

    @property
    def files(self) -> int:
        return sum(source.files for source in self.sources)

    def samples(self, sequence_length: int) -> tuple[int, ...]:
        """How many samples each source gives. Raises EmptyCorpus where one gives none."""
        counts = tuple((source.tokens - 1) // sequence_length for source in self.sources)
        for n, (count, source) in enumerate(zip(counts, self.sources, strict=True)):
            if count < 1:
                which = f" of sources[{n}]" if len(counts) > 1 else ""
                raise EmptyCorpus(
                    f"{FIELD}.sequenceLength: {sequence_length} is more than the {source.tokens} tokens of the "
                    f"{source.files} files{which}; use less, or more text"
                )
        return counts


def digest_of(parts: Sequence[bytes | memoryview]) -> str:
    """A hex digest of 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
