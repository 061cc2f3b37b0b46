"""A picture of a measurement: bus bandwidth over message size, both on scales of powers, as SVG."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log2, log10
from pathlib import Path
from typing import Final

from trainyard.cli.measured import Compared, series, size, speed

WIDTH: Final = 860
HEIGHT: Final = 480
LEFT: Final = 80
RIGHT: Final = 240
TOP: Final = 40
BOTTOM: Final = 50
COLOURS: Final = ("#1b6ca8", "#c8553d", "#588b3a", "#8e5aa8", "#c99700", "#3a8b8b", "#7a5c3e", "#666666")


def unwritable(file: Path) -> str:
    """Why a picture cannot be written there, as far as one can tell without trying; "" where it can."""
    if file.is_dir():
        return f"{file} is a folder; name a file in it"
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}; make it, or name a file elsewhere"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return f"{file} may not be written; name a file elsewhere"
    return ""


def draw(file: Path, found: Compared, title: str) -> str:
    """Write the picture. Returns what became of it, in a sentence: what was measured is worth more than its picture."""
    try:
        file.write_text(plot(found, title))
    except (OSError, ArithmeticError, ValueError) as error:
        return f"There is no plot: {error}."
    return f"The plot is in {file}."


def plot(found: Compared, title: str) -> str:
    """The picture: measured solid with dots, predicted dashed, the limit of the links as a line across."""
    named = series(found)
    sizes = [row.point.bytes for _, rows in named for row in rows] or [1]
    speeds = [
        s for _, rows in named for row in rows for s in (row.bus_bandwidth, row.predicted_bus_bandwidth) if s > 0.0
    ]
    scale = _Scale(min(sizes), max(sizes), min([*speeds, found.limit]), max([*speeds, found.limit]))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, title, size=15),
        *_axes(scale, sorted(set(sizes))),
        _line([(LEFT, scale.y(found.limit)), (WIDTH - RIGHT, scale.y(found.limit))], "#000000", dashes="2 4"),
        _text(WIDTH - RIGHT + 8, scale.y(found.limit) + 4, f"limit {speed(found.limit)}"),
    ]
    for number, (name, rows) in enumerate(named):
        colour = COLOURS[number % len(COLOURS)]
        measured = [(scale.x(row.point.bytes), scale.y(row.bus_bandwidth)) for row in rows if row.bus_bandwidth > 0.0]
        predicted = [
            (scale.x(row.point.bytes), scale.y(row.predicted_bus_bandwidth))
            for row in rows
            if row.predicted_bus_bandwidth > 0.0
        ]
        lines += [_line(measured, colour), _line(predicted, colour, dashes="6 4")]
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in measured]
        beside = HEIGHT - BOTTOM - 18 * (len(named) - number)
        lines += [_line([(WIDTH - RIGHT + 16, beside), (WIDTH - RIGHT + 40, beside)], colour)]
        lines += [_text(WIDTH - RIGHT + 46, beside + 4, name)]
    lines += [_text(WIDTH - RIGHT + 16, HEIGHT - BOTTOM + 4, "dashed: predicted"), "</svg>"]
    return "\n".join(lines) + "\n"


class _Scale:
    """From bytes and bytes a second to places in the picture."""

    def __init__(self, least_size: int, most_size: int, least: float, most: float) -> None:
        self.sizes = log2(least_size), max(log2(most_size), log2(least_size) + 1)
        self.decades = floor(log10(least)), max(ceil(log10(most)), floor(log10(least)) + 1)

    def x(self, amount: float) -> float:
        low, high = self.sizes
        return LEFT + (log2(amount) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, amount: float) -> float:
        low, high = self.decades
        return HEIGHT - BOTTOM - (log10(amount) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _axes(scale: _Scale, sizes: Sequence[int]) -> Iterator[str]:
    for decade in range(scale.decades[0], scale.decades[1] + 1):
        y = scale.y(10.0**decade)
        yield _line([(LEFT, y), (WIDTH - RIGHT, y)], "#dddddd")
        yield _text(LEFT - 8, y + 4, speed(10.0**decade), anchor="end")
    for amount in sizes:
        x = scale.x(amount)
        yield _line([(x, TOP), (x, HEIGHT - BOTTOM)], "#eeeeee")
        yield _text(x, HEIGHT - BOTTOM + 18, size(amount), anchor="middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "size of the message", anchor="middle")
    yield _text(LEFT, TOP - 6, "bus bandwidth", anchor="end")


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
