"""How many bytes replicas send of a gradient that they compress, and keep of it: the formulas that the trainer sends by.

Nothing here depends on how parameters are packed into buckets, so that what a step sends follows from the model's matrices alone.
The trainer (trainyard_trainer.parallel.compress) takes `kept` and `part` from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Final

from trainyard.planner.collectives import Collective

HALF_BYTES: Final = 2
SCALE_BYTES: Final = 4
"""Of the scale of a block, in float32; also of a number that topk sends, and of the place where it stands."""
BLOCK: Final = 128
"""Numbers with one scale (int8)."""
WORTH: Final = 2
"""PowerSGD sends a matrix whole unless its factors are less than the half of it (torch's min_compression_rate)."""

Form = tuple[float, float, float]
"""Rows, columns, and how many parameters are of that form."""


def kept(numbers: float, share: float) -> int:
    """How many of a parameter's numbers topk sends."""
    return max(1, ceil(numbers * share))


def part(numbers: float, members: int) -> int:
    """How many of a parameter's numbers a member adds up for the others, filled up to whole blocks (int8)."""
    return ceil(ceil(numbers / members) / BLOCK) * BLOCK


def messages(
    method: str, rank: int, share: float, forms: Iterable[Form], members: int, number_bytes: int
) -> Iterator[tuple[Collective, float]]:
    """What a step sends among so many replicas: each kind of collective, with its bytes in all.

    number_bytes: of a number that is not compressed.
    """
    found = [(rows, columns, times) for rows, columns, times in forms if times]
    numbers = sum(rows * columns * times for rows, columns, times in found)
    match method:
        case "fp16" | "bf16":
            yield Collective.ALL_REDUCE, numbers * HALF_BYTES
        case "powersgd":
            yield (
                Collective.ALL_REDUCE,
                sum(times * _factors(rows, columns, rank) for rows, columns, times in found) * number_bytes,
            )
        case "int8":
            filled = sum(times * members * part(rows * columns, members) for rows, columns, times in found)
            for collective in (Collective.ALL_TO_ALL, Collective.ALL_GATHER):
                yield collective, filled * (1 + SCALE_BYTES / BLOCK)
        case "topk":
            largest = sum(times * kept(rows * columns, share) for rows, columns, times in found)
            yield Collective.ALL_GATHER, members * largest * 2 * SCALE_BYTES
        case _:
            yield Collective.ALL_REDUCE, numbers * number_bytes


def left_out(method: str, rank: int, forms: Iterable[Form], members: int, number_bytes: int) -> float:
    """Bytes that each of so many replicas keeps from one step to the next: what it left out of the gradient, a number for each
    one; with int8 also of the part that it adds up for all, and with PowerSGD the factors, from which the next ones begin.

    number_bytes: of a number that is not compressed.
    """
    found = [(rows, columns, times) for rows, columns, times in forms if times]
    numbers = sum(rows * columns * times for rows, columns, times in found)
    match method:
        case "powersgd":
            factors = (
                times * _factors(rows, columns, rank) for rows, columns, times in found if _thin(rows, columns, rank)
            )
            return (numbers + sum(factors)) * number_bytes
        case "int8":
            parts = sum(times * part(rows * columns, members) for rows, columns, times in found)
            return (members + 1) * parts * number_bytes
        case "topk":
            return numbers * number_bytes
        case _:
            return 0.0


def _factors(rows: float, columns: float, rank: int) -> float:
    """Numbers that PowerSGD sends of a parameter: P and Q, or all."""
    return (rows + columns) * min(rows, columns, rank) if _thin(rows, columns, rank) else rows * columns


def _thin(rows: float, columns: float, rank: int) -> bool:
    """Whether it sends factors (torch, powerSGD_hook, _should_compress)."""
    return (rows + columns) * min(rows, columns, rank) * WORTH < rows * columns
