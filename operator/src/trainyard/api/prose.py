"""Numbers in sentences, as conditions, events and pages say them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`: a number and its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
