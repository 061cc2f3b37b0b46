"""The order of names in which numbers count by value."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=1 << 16)
def natural(text: str) -> tuple[tuple[str | int, ...], str]:
    """A key that orders numbers within names by value: rack-2 before rack-10."""
    pieces = re.split(r"([0-9]+)", text)  # text and digits take turns, so like is compared with like
    return tuple(int(piece) if n % 2 else piece for n, piece in enumerate(pieces)), text
