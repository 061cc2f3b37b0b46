"""Text as tokens, equal on every rank and on every machine that holds the same files.

Without a tokenizer a token is a byte. A separator follows each file. The order of the files is that of their names, never the
file system's. Text is read, and tokenized, at every start and by every rank: much of it is better made a token file of once
(`python -m trainyard_trainer.data.tokenize`).
"""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trainyard.api.trainer import SEPARATOR, TrainerConfig

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data.corpus import FIELD, EmptyCorpus, Piece, Source, digest_of

AT_ONCE = 256  # documents that the tokenizer takes together, on all cores

_NOT_LIBRARY = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "config-")


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it is from."""

    text: bytes
    where: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How text becomes tokens. tokenizer: of Hugging Face `tokenizers`; None: bytes. separator: behind each document."""

    tokenizer: Any
    separator: int

    @classmethod
    def of(cls, config: TrainerConfig) -> Reading:
        """As the configuration says. Raises BadConfiguration where the tokenizer cannot be read or knows too many tokens."""
        path, separator = config.data.tokenizer, config.data.separator
        if path is None:
            return cls(None, SEPARATOR)
        assert separator is not None
        return cls(read_tokenizer(path, config.model.vocabulary), separator)

    def tokens(self, documents: Iterable[Document]) -> Iterator[NDArray[np.uint16 | np.uint32]]:
        """Of one document after the other. Raises BadConfiguration for a text that is not UTF-8 and has to be."""
        if self.tokenizer is None:
            for document in documents:
                yield np.append(np.frombuffer(document.text, dtype=np.uint8), np.uint16(self.separator))
            return
        kind = np.uint16 if self.tokenizer.get_vocab_size() <= 1 << 16 and self.separator < 1 << 16 else np.uint32
        waiting: list[str] = []
        for document in documents:
            waiting.append(_decoded(document))
            if len(waiting) == AT_ONCE:
                yield from self._encoded(waiting, kind)
                waiting = []
        yield from self._encoded(waiting, kind)

    def _encoded(
        self, texts: list[str], kind: type[np.uint16] | type[np.uint32]
    ) -> Iterator[NDArray[np.uint16 | np.uint32]]:
        for found in self.tokenizer.encode_batch(texts, add_special_tokens=False):
            yield np.array([*found.ids, self.separator], dtype=kind)


def read_tokenizer(path: str, vocabulary: int) -> Any:
    """A tokenizer.json. Raises BadConfiguration where it cannot be read, or has tokens that the model does not have."""
    from tokenizers import Tokenizer  # only where text is read by one

    if not os.path.isfile(path):
        raise BadConfiguration(f"{FIELD}.tokenizer: {path} is not a file in this container")
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # it raises nothing narrower
        raise BadConfiguration(f"{FIELD}.tokenizer: {path}: {error}; name a tokenizer.json of tokenizers") from None
    known = tokenizer.get_vocab_size()
    if known > vocabulary:
        raise BadConfiguration(
            f"spec.trainer.model.vocabulary: {vocabulary} is less than the {known} tokens of {path}; use {known} or more"
        )
    return tokenizer


def read(patterns: Sequence[str], reading: Reading, path: str, weight: float | None = None) -> Source:
    """The files that match, each a document; with no pattern, the Python standard library's sources. path: of the field."""
    paths = matching(patterns, path) if patterns else _standard_library()
    documents = (Document(Path(name).read_bytes(), name) for name in paths)
    return of_documents(documents, reading, f"{path}: the {len(paths)} files that match", weight)


def of_documents(documents: Iterable[Document], reading: Reading, what: str, weight: float | None = None) -> Source:
    """Texts as one piece in memory. what: they are, for messages. Raises EmptyCorpus where all are empty."""
    found = list(reading.tokens(documents))
    tokens = np.concatenate(found) if found else np.empty(0, np.uint16)
    if len(tokens) <= len(found):
        raise EmptyCorpus(f"{what} are all empty")
    begins = np.cumsum([0, *(len(text) for text in found[:-1])], dtype=np.int64)
    digest = digest_of([tokens.astype(f"<u{tokens.itemsize}", copy=False).tobytes()])
    return Source((Piece(tokens, what, begins),), digest, len(found), weight)


def matching(patterns: Sequence[str], path: str) -> list[str]:
    """The files that match any of the patterns, each once, by name. path: of the field, for messages.

    Raises EmptyCorpus where a pattern matches nothing: a typing error would otherwise change the data unseen.
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)}
        if not matched:
            raise EmptyCorpus(f"{path}: {pattern} matches no file in this container")
        found |= matched
    return sorted(found)


def _decoded(document: Document) -> str:
    try:
        return document.text.decode()
    except UnicodeDecodeError as error:
        raise BadConfiguration(
            f"{FIELD}: {document.where}: byte {error.start} is not UTF-8, which a tokenizer needs; "
            "leave the file out, or convert it"
        ) from None


def _standard_library() -> list[str]:
    """Sources of the interpreter that runs this, without its tests (which distributions leave out) and what was added."""
    root = sysconfig.get_path("stdlib")
    found: set[str] = set()
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(_NOT_LIBRARY)]
        found |= {os.path.join(folder, file) for file in files if file.endswith(".py")}
    if not found:
        raise EmptyCorpus(
            f"{FIELD}.files: empty, and {root} holds no sources of the standard library; name files to read"
        )
    return sorted(found)
