"""A figure with its bar, and how figures are printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured.

    bar: what it must reach, None where it is only told. most: the bar is the most that holds, else the least. at_least: the other
    bar, where there are two. against: what it is compared with, in words. details: what else belongs to it, such as the single
    runs.
    """

    name: str
    value: float
    unit: str
    bar: float | None = None
    most: bool = True
    against: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the bar is reached; true where there is none."""
        if self.bar is None:
            return True
        if self.at_least is not None and self.value < self.at_least:
            return False
        return self.value <= self.bar if self.most else self.value >= self.bar


def as_json(figures: Sequence[Figure]) -> str:
    """A list of objects."""
    return json.dumps([{**asdict(figure), "holds": figure.holds} for figure in figures], indent=2)


def as_table(figures: Sequence[Figure]) -> str:
    """A line for each, with its bar and what it is compared with."""
    rows = [["name", "value", "unit", "bar", "holds", "for comparison"]]
    return aligned(rows + [[f.name, short(f.value), f.unit, _bar(f), _holds(f), f.against] for f in figures])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines of text, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def short(value: float) -> str:
    """Four significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _bar(figure: Figure) -> str:
    if figure.bar is None:
        return ""
    between = f"{short(figure.at_least)} to " if figure.at_least is not None else "<= " if figure.most else ">= "
    return f"{between}{short(figure.bar)}"


def _holds(figure: Figure) -> str:
    if figure.bar is None:
        return ""
    return "yes" if figure.holds else "NO"


def failed(figures: Sequence[Figure]) -> int:
    """The exit code: 1 where a bar does not hold."""
    return int(not all(figure.holds for figure in figures))
