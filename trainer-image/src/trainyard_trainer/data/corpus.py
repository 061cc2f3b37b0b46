"""Text files as one array of tokens, equal on every rank and on every machine that holds the same files.

A token is a byte; one more separates the files. The order of the files is that of their names, never the file system's.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.configuration import BadConfiguration

SEPARATOR = 256
"""The token that ends a file: the first after the 256 bytes."""
VOCABULARY = 260
"""256 bytes, the separator, and 3 tokens without a meaning yet: a multiple of 4 keeps the output layer's rows aligned.
"""

_NOT_LIBRARY = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "config-")


class EmptyCorpus(BadConfiguration):
    """There is no text to learn from. The message names the pattern or the field that would have to change."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """tokens: all files one after the other. digest: hex blake2b of the tokens; files: how many were read."""

    tokens: NDArray[np.uint16]
    digest: str
    files: int


def read(patterns: Sequence[str]) -> Corpus:
    """The files that match any of the patterns, each once; with no pattern, the Python standard library's sources.

    Raises EmptyCorpus where a pattern matches nothing: a typing error would otherwise change the data unseen.
    """
    paths: set[str] = set()
    for pattern in patterns:
        matched = {path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)}
        if not matched:
            raise EmptyCorpus(f"data.files: {pattern} matches no file in this container")
        paths |= matched
    if not patterns:
        paths = _standard_library()
    pieces: list[NDArray[np.uint16]] = []
    for path in sorted(paths):
        text = np.frombuffer(Path(path).read_bytes(), dtype=np.uint8).astype(np.uint16)
        pieces += [text, np.array([SEPARATOR], dtype=np.uint16)]
    tokens = np.concatenate(pieces)
    if len(tokens) <= len(paths):
        raise EmptyCorpus(f"data.files: the {len(paths)} files that match are all empty")
    digest = hashlib.blake2b(tokens.astype("<u2").tobytes(), digest_size=16).hexdigest()
    return Corpus(tokens, digest, len(paths))


def _standard_library() -> set[str]:
    """Sources of the interpreter that runs this, without its tests (which distributions leave out) and what was added."""
    root = sysconfig.get_path("stdlib")
    found: set[str] = set()
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(_NOT_LIBRARY)]
        found |= {os.path.join(folder, file) for file in files if file.endswith(".py")}
    if not found:
        raise EmptyCorpus(f"data.files: empty, and {root} holds no sources of the standard library; name files to read")
    return found
