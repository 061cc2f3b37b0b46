"""Token files, mapped into memory: however large, only what a step asks for is read.

    .npy             one axis of uint16 or uint32
    .bin             with the header of llm.c: 256 numbers of 4 bytes, of which the first three are magic, version and tokens
    .bin and .idx    of Megatron-LM: documents, of one or several sequences; the .idx holds where they begin
    .bin             of tokens alone, of a type that has to be said (nanoGPT)

Numbers are little-endian. A file that is shorter than its header says has been cut off, and is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data.corpus import EmptyCorpus, Piece, Source, digest_of
from trainyard_trainer.data.text import matching

HEADER_BYTES: Final = 256 * 4
KINDS: Final[dict[tuple[int, int], np.dtype[Any]]] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
"""Type of the tokens by magic and version (llm.c, dev/data/data_common.py: those of GPT-2 and of Llama 3)."""
_MEGATRON: Final = b"MMIDIDX\x00\x00"
_MEGATRON_KINDS: Final[dict[int, np.dtype[Any]]] = {4: np.dtype("<i4"), 5: np.dtype("<i8"), 8: np.dtype("<u2")}
"""By the code in an .idx (Megatron-LM, megatron/core/datasets/indexed_dataset.py)."""
LOOKED_AT: Final = 64
BLOCK_BYTES: Final = 4096
"""A digest is of the size and of so many blocks of so many bytes, evenly spread: of all would be to read all."""


def read(
    patterns: Sequence[str], path: str, kind: Literal["uint16", "uint32"] | None, weight: float | None = None
) -> Source:
    """The files that match, by name. path: of the field; kind: of .bin files without a header.

    Raises BadConfiguration for a file that is empty, cut off, or of another form.
    """
    pieces, said = [], []
    for name in matching(patterns, path):
        piece = _piece(Path(name), f"{path}: {name}", kind)
        if not len(piece.tokens):
            raise EmptyCorpus(f"{piece.where} holds no tokens; leave it out")
        pieces.append(piece)
        said.append(looked_at(piece.tokens))
    return Source(tuple(pieces), digest_of(said), len(pieces), weight)


def _piece(path: Path, where: str, kind: Literal["uint16", "uint32"] | None) -> Piece:
    try:
        if path.suffix == ".npy":
            return _npy(path, where)
        if path.with_suffix(".idx").exists():
            return _megatron(path, where)
        return _bin(path, where, kind)
    except OSError as error:
        raise BadConfiguration(f"{where}: {error.strerror}") from None


def _npy(path: Path, where: str) -> Piece:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:  # how numpy says that a header is none, or promises more than there is
        raise BadConfiguration(f"{where} is not a whole .npy file: {error}; write it again") from None
    if tokens.ndim != 1 or tokens.dtype not in (np.dtype("<u2"), np.dtype("<u4")):
        raise BadConfiguration(
            f"{where} holds {tokens.dtype} of shape {tokens.shape}; tokens are one row of uint16 or uint32"
        )
    return Piece(tokens, where, _at_start())


def _bin(path: Path, where: str, kind: Literal["uint16", "uint32"] | None) -> Piece:
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(12)
    magic, version, tokens = struct.unpack("<3i", head) if len(head) == 12 else (0, 0, 0)
    stored = KINDS.get((magic, version))
    if stored is not None:
        _whole(where, size, HEADER_BYTES + tokens * stored.itemsize, f"its header says {tokens} tokens")
        return Piece(_map(path, stored, HEADER_BYTES, tokens), where, _at_start())
    if kind is None:
        raise BadConfiguration(
            f"{where} begins with no header that is known (llm.c's); say the type of its tokens beside it, type: uint16"
        )
    plain = np.dtype(kind).newbyteorder("<")
    if size % plain.itemsize:
        raise BadConfiguration(f"{where} has {size} bytes, which are not whole tokens of {kind}; it has been cut off")
    return Piece(_map(path, plain, 0, size // plain.itemsize), where, _at_start())


def _megatron(path: Path, where: str) -> Piece:
    index = path.with_suffix(".idx").read_bytes()
    fixed = len(_MEGATRON) + 8 + 1 + 8 + 8
    if not index.startswith(_MEGATRON) or len(index) < fixed:
        raise BadConfiguration(
            f"{where}: {path.with_suffix('.idx')} beside it is not an index of Megatron-LM, or is cut off"
        )
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, len(_MEGATRON))
    kind = _MEGATRON_KINDS.get(code)
    if version != 1 or kind is None:
        raise BadConfiguration(
            f"{where}: {path.with_suffix('.idx')} has version {version} and type {code}; read are version 1 of types "
            f"{', '.join(map(str, _MEGATRON_KINDS))}"
        )
    if len(index) < fixed + 12 * sequences + 8 * documents:
        raise BadConfiguration(
            f"{where}: {path.with_suffix('.idx')} is cut off: {sequences} sequences and {documents} document indices do not "
            "fit in it"
        )
    lengths = np.frombuffer(index, "<i4", sequences, fixed)
    tokens = int(lengths.sum(dtype=np.int64))
    _whole(where, path.stat().st_size, tokens * kind.itemsize, f"its index says {tokens} tokens")
    starts = np.append(np.cumsum(lengths, dtype=np.int64) - lengths, tokens)
    firsts = np.frombuffer(index[fixed + 12 * sequences :], "<i8", documents)[
        :-1
    ]  # the last is where the last document ends
    if len(firsts) and not 0 <= firsts.min() <= firsts.max() <= sequences:
        raise BadConfiguration(
            f"{where}: {path.with_suffix('.idx')} has documents that begin at sequence {firsts.min()} to {firsts.max()}, and "
            f"{sequences} sequences; write it again"
        )
    begins = np.unique(np.append(0, starts[firsts]))
    return Piece(_map(path, kind, 0, tokens), where, begins[begins < tokens])


def _whole(where: str, size: int, expected: int, said: str) -> None:
    if size != expected:
        raise BadConfiguration(
            f"{where} has {size} bytes, and {said}, which are {expected}; it has been cut off or is still being written"
        )


def _map(path: Path, kind: np.dtype[Any], offset: int, tokens: int) -> NDArray[Any]:
    if tokens == 0:
        return np.empty(0, kind)
    return np.memmap(path, kind, "r", offset, (tokens,))


def _at_start() -> NDArray[np.int64]:
    """Documents that begin at the first token, and at nobody knows which others."""
    return np.zeros(1, np.int64)


def looked_at(tokens: Any) -> bytes:
    """What a digest of tokens that are not to be read as a whole is of."""
    block = BLOCK_BYTES // tokens.itemsize
    starts = np.unique(np.linspace(0, max(0, len(tokens) - block), LOOKED_AT).astype(np.int64))
    parts = [np.asarray(tokens[start : start + block]).tobytes() for start in starts]
    return b"".join([f"{tokens.dtype.str}:{len(tokens)}:".encode(), *parts])
