"""spec.trainer.data: what the built-in trainer learns from, and how it is cut into steps."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainyard.api.trainer_model import TrainerModel

Pattern = Annotated[str, Field(min_length=1, max_length=4096)]


class SourceConfig(TrainerModel):
    """One source of samples: exactly one of text, tokens, dataset and synthetic."""

    text: tuple[Pattern, ...] = Field(default=(), max_length=256)
    """Glob patterns of text files, each of which is a document, absolute in the pod, ** for any depth; read by data.tokenizer, or
    as bytes."""
    tokens: tuple[Pattern, ...] = Field(default=(), max_length=256)
    """Glob patterns of token files, which are mapped into memory and never read as a whole: .npy (one axis of uint16 or
    uint32), .bin with the header of llm.c, .bin with a Megatron .idx beside it, or .bin without a header, whose type is
    `type`."""
    type: Literal["uint16", "uint32"] | None = None
    """Type of the tokens in .bin files without a header."""
    dataset: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder that Hugging Face datasets' save_to_disk wrote. Needs the package datasets in the image."""
    split: str | None = Field(default=None, min_length=1, max_length=256)
    """Split of the dataset, where it has several."""
    column: str = Field(default="text", min_length=1, max_length=256)
    """Column of the dataset: text, or lists of tokens, which are mapped into memory; each row is a document."""
    synthetic: int | None = Field(default=None, ge=2, le=1 << 50)
    """Number of tokens that are made up by a fixed function of their position: for measuring, there is nothing to learn."""
    weight: float | None = Field(default=None, gt=0.0, le=1e9)
    """Share of the samples, relative to the other sources' weights. Left out for all: each sample of all sources once in an
    epoch."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("text", "tokens", "dataset", "synthetic") if getattr(self, name) not in ((), None)]
        if len(given) != 1:
            raise ValueError(
                f"has {' and '.join(given) or 'neither of text, tokens, dataset and synthetic'}; give exactly one, and "
                "another source for each other"
            )
        if self.type is not None and not self.tokens:
            raise ValueError(
                "type: is of token files without a header, and there are none in this source; leave it out"
            )
        return self


class DataConfig(TrainerModel):
    """What is learnt, and how it is cut into steps."""

    files: tuple[str, ...] = Field(default=(), max_length=256)
    """Short for one source of text. Empty, without sources: the Python standard library's sources."""
    sources: tuple[SourceConfig, ...] = Field(default=(), max_length=64)
    """Where samples come from."""
    tokenizer: str | None = Field(default=None, min_length=1, max_length=4096)
    """File in the pod (tokenizer.json of Hugging Face tokenizers) by which text becomes tokens. Left out: a byte is a token."""
    separator: int | None = Field(default=None, ge=0, lt=1 << 24)
    """Token that ends a document, such as the tokenizer's end of text: put behind each text, and looked for in token files where
    packing is masked. Of bytes it is 256."""
    packing: Literal["continuous", "masked"] = "continuous"
    """Samples are cut from documents laid end to end. masked: a token sees only its own document, positions begin anew with
    each, and the first token of a document is nobody's to predict."""
    sequence_length: int = Field(default=128, ge=1, le=1048576)
    """Tokens of a sample."""
    global_batch: int = Field(default=16, ge=1, le=1048576)
    """Samples of one step over all ranks; does not depend on how many there are."""
    micro_batch: int = Field(default=16, ge=1, le=65536)
    """Most samples that a rank puts through the network at once; more are accumulated, in the same step."""

    @property
    def has_bytes(self) -> bool:
        """Whether there is text that is read as bytes."""
        return self.tokenizer is None and (not self.sources or any(source.text for source in self.sources))

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.files and self.sources:
            raise ValueError("files: stands beside sources; make it one of them, sources[].text")
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError(
                f"sources[{weighted.index(False)}].weight: is missing, and other sources have one; give all or none"
            )
        if self.tokenizer is not None and self.separator is None:
            raise ValueError("separator: must be given with a tokenizer; use the token that ends a text")
        return self
