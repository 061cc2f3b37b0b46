"""Random numbers without a state that would have to be saved."""

from __future__ import annotations

import hashlib


def seed_of(seed: int, step: int, part: int) -> int:
    """Of everything random within a step: a function of its arguments.

    part: which part of the step's samples; ranks that compute with the same ones draw the same numbers.
    """
    digest = hashlib.blake2b(f"{seed}:{step}:{part}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
