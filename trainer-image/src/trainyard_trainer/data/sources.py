"""spec.trainer.data.sources, opened."""

from __future__ import annotations

from trainyard.api.trainer import TrainerConfig
from trainyard.api.trainer_data import SourceConfig

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data import mapped, synthetic, table, text
from trainyard_trainer.data.corpus import FIELD, Corpus, Source


def corpus_of(config: TrainerConfig) -> Corpus:
    """What a configuration learns from. Raises BadConfiguration, with the field's path, for what is not there or not whole."""
    data = config.data
    reading = text.Reading.of(config)
    if not data.sources:
        sources: tuple[Source, ...] = (text.read(data.files, reading, f"{FIELD}.files"),)
    else:
        sources = tuple(
            _open(source, f"{FIELD}.sources[{n}]", reading, config) for n, source in enumerate(data.sources)
        )
    separator = data.separator if data.separator is not None or not data.has_bytes else reading.separator
    corpus = Corpus(sources, config.model.vocabulary, separator)
    if data.packing == "masked":
        _documents_can_be_told(corpus)
    return corpus


def _open(source: SourceConfig, path: str, reading: text.Reading, config: TrainerConfig) -> Source:
    if source.text:
        return text.read(source.text, reading, f"{path}.text", source.weight)
    if source.tokens:
        return mapped.read(source.tokens, f"{path}.tokens", source.type, source.weight)
    if source.dataset is not None:
        return table.read(source.dataset, source.split, source.column, reading, path, source.weight)
    assert source.synthetic is not None  # one of them is, says the model
    return synthetic.source(source.synthetic, config.model.vocabulary, f"{path}.synthetic", source.weight)


def _documents_can_be_told(corpus: Corpus) -> None:
    """Raises BadConfiguration where neither a file nor a separator tells one document from the next."""
    for source in corpus.sources:
        for piece in source.pieces:
            if corpus.separator is None and piece.begins is not None and len(piece.begins) == 1:
                raise BadConfiguration(
                    f"{FIELD}.separator: must be given where packing is masked: nothing in {piece.where.partition(': ')[2]} "
                    "tells where a document ends; use the token that ends one"
                )
