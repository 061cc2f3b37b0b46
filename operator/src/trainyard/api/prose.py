"""Numbers in sentences, as conditions, events and pages say them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`: a number and its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def length(seconds: float) -> str:
    """A length of time as kubectl says it: two units at most, the smaller only where the larger is small."""
    whole_seconds = int(seconds)
    for unit, name, below, part in ((86400, "d", 10, "h"), (3600, "h", 10, "m"), (60, "m", 10, "s")):
        if whole_seconds >= unit:
            whole, rest = divmod(whole_seconds, unit)
            smaller = rest // {"h": 3600, "m": 60, "s": 1}[part]
            return f"{whole}{name}{smaller}{part}" if whole < below and smaller else f"{whole}{name}"
    return f"{whole_seconds}s"
