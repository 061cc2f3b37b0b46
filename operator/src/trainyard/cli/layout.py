"""How pages are laid out: tables, lengths of time, text that fits the width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from trainyard.api.prose import length

WIDTH: Final = 100
"""Columns of a page, where nobody says how wide the terminal is."""

_COLUMN_GAP: Final = "  "


def table(rows: Sequence[Sequence[str]], indent: str = "", right: Iterable[int] = ()) -> Iterator[str]:
    """Lines with columns of equal width. right: the columns whose text is flush right."""
    flush = frozenset(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            text.rjust(width) if n in flush else text.ljust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield (indent + _COLUMN_GAP.join(cells)).rstrip()


def ago(time: float | None, now: float) -> str:
    """How long ago something was; None means now."""
    return length(max(0.0, now - (time or now)))


def wrapped(text: str, first: str = "", then: str | None = None, width: int = WIDTH) -> list[str]:
    """Text over as many lines as it takes. first, then: what the first line and the others begin with."""
    rest = " " * len(first) if then is None else then
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def page(parts: Iterable[Iterable[str]]) -> str:
    """Parts with an empty line between them; those without lines are left out."""
    return "\n".join("\n".join(lines) + "\n" for part in parts if (lines := list(part)))
