"""Hugging Face datasets that save_to_disk wrote: a column of texts, or of lists of tokens, which stay where they are mapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data.corpus import EmptyCorpus, Piece, Source, digest_of
from trainyard_trainer.data.mapped import looked_at
from trainyard_trainer.data.text import Document, Reading, of_documents


def read(
    folder: str, split: str | None, column: str, reading: Reading, path: str, weight: float | None = None
) -> Source:
    """The rows of a column, each a document. path: of the source in the configuration.

    Raises BadConfiguration where the package is missing, or the folder, split or column is not there or of another kind.
    """
    try:
        import datasets
    except ImportError:
        raise BadConfiguration(
            f"{path}.dataset: {folder} needs the package datasets, which this image does not have; add it "
            "(pip install datasets), or convert the data to a token file"
        ) from None
    try:
        found: Any = datasets.load_from_disk(folder)
    except Exception as error:  # whatever Arrow and the file system say of a folder that is none, or not whole
        raise BadConfiguration(f"{path}.dataset: {folder}: {error}; name a folder that save_to_disk wrote") from None
    if isinstance(found, datasets.DatasetDict):
        if split is None and len(found) == 1:
            split = next(iter(found))
        if split not in found:
            raise BadConfiguration(
                f"{path}.split: {split or 'left out'}, and {folder} has {', '.join(found)}; use one of them"
            )
        found = found[split]
    if column not in found.column_names:
        raise BadConfiguration(f"{path}.column: {column} is not there; {folder} has {', '.join(found.column_names)}")
    chunks = found.data.table.column(column).chunks
    if not found.num_rows:
        raise EmptyCorpus(f"{path}.dataset: {folder} has no rows")
    where = f"{path}.dataset: {folder}, column {column}"
    return _texts(chunks, reading, where, weight) if _is_text(chunks[0]) else _mapped(chunks, where, weight)


def _is_text(chunk: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(chunk.type) or types.is_large_string(chunk.type))


def _texts(chunks: list[Any], reading: Reading, where: str, weight: float | None) -> Source:
    def documents() -> Iterator[Document]:
        row = 0
        for chunk in chunks:
            for text in chunk:
                if not text.is_valid:
                    raise BadConfiguration(f"{where}: row {row} is null; leave it out")
                yield Document(text.as_py().encode(), f"{where}, row {row}")
                row += 1

    return of_documents(documents(), reading, where, weight)


def _mapped(chunks: list[Any], where: str, weight: float | None) -> Source:
    """Lists of tokens: Arrow keeps the numbers of a chunk's rows one after the other, and where each row begins."""
    from pyarrow import types

    pieces, said = [], []
    for chunk in chunks:
        kind = chunk.type
        if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_integer(kind.value_type):
            raise BadConfiguration(f"{where} is {kind}; use a column of text, or of lists of tokens")
        if chunk.null_count or chunk.values.null_count:
            raise BadConfiguration(f"{where} has rows or tokens that are null; leave them out")
        ends = chunk.offsets.to_numpy().astype(np.int64)
        tokens = chunk.values.to_numpy(zero_copy_only=True)[ends[0] : ends[-1]]
        if len(tokens):
            begins = ends[:-1] - ends[0]
            pieces.append(Piece(tokens, where, begins[np.diff(ends) > 0]))
            said.append(looked_at(tokens))
    if not pieces:
        raise EmptyCorpus(f"{where} holds no tokens")
    return Source(tuple(pieces), digest_of(said), len(chunks), weight)
