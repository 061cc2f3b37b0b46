"""Text files as one token file, once and for all runs.

    python -m trainyard_trainer.data.tokenize --tokenizer tokenizer.json --separator 2 --out corpus.npy '/texts/**/*.txt'

Each file becomes a document, with the separator behind it; the answer is a .npy of uint16, or of uint32 where the tokenizer
has more tokens than that holds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data.text import Document, Reading, matching, read_tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """The answer is the exit code."""
    parser = argparse.ArgumentParser(
        prog="trainyard_trainer.data.tokenize", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("files", nargs="+", help="glob patterns, ** for any depth")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of Hugging Face tokenizers")
    parser.add_argument("--separator", required=True, type=int, help="token that ends a document")
    parser.add_argument("--out", required=True, type=Path, help="the .npy to write")
    given = parser.parse_args(arguments)
    try:
        tokenizer = read_tokenizer(given.tokenizer, 1 << 31)
        reading = Reading(tokenizer, given.separator)
        names = matching(given.files, "files")
        total = _write(given.out, reading, names)
    except BadConfiguration as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{total} tokens of {len(names)} files in {given.out}; vocabulary: {tokenizer.get_vocab_size()}")
    return 0


def _write(out: Path, reading: Reading, names: Sequence[str]) -> int:
    """Under another name until it is whole."""
    total, kind = 0, cast(np.dtype[Any], np.dtype("<u2"))
    partial = out.with_name(f".{out.name}.partial")
    with partial.open("wb") as stream:
        _header(stream, total, kind)  # its room: numpy leaves some for the number of tokens to grow
        for found in reading.tokens(Document(Path(name).read_bytes(), name) for name in names):
            kind = np.dtype(found.dtype).newbyteorder("<")
            stream.write(found.astype(kind, copy=False).tobytes())
            total += len(found)
        stream.seek(0)
        _header(stream, total, kind)
    partial.rename(out)
    return total


def _header(stream: BinaryIO, tokens: int, kind: np.dtype[Any]) -> None:
    said = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(stream, said)


if __name__ == "__main__":
    sys.exit(main())
