"""What a label's or an attribute's value is called as a domain.

Values of labels are short; those of attributes of devices may be one character too long to be one, and have other characters.
A value that is too long becomes what Topograph makes of it, `x` and its FNV-64a hash in hexadecimal, so that a node that is
labelled by Topograph and one whose switch is told by an attribute lie in the same domain
(https://github.com/NVIDIA/topograph, docs/reference/node-labels.md, as of 2026-08).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

LONGEST: Final = 63
"""Bytes of a label's value at most (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/)."""

PRIVATE: Final = "?"
"""Begins the name of a private domain; no label value can begin so."""

_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3
_MASK: Final = (1 << 64) - 1


def fnv64a(data: bytes) -> int:
    """The 64-bit FNV-1a hash (draft-eastlake-fnv, parameters of section 5)."""
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME & _MASK
    return value


def name_of(value: str) -> str:
    """The domain that a value names; "" for one that names none."""
    if len(value) <= LONGEST // 4 and not value.startswith(PRIVATE):  # a character has four bytes at most
        return value.strip()
    return _name_of(value)


@lru_cache(maxsize=1 << 16)
def _name_of(value: str) -> str:
    told = value.strip()
    data = told.encode(errors="surrogatepass")
    return f"x{fnv64a(data):x}" if len(data) > LONGEST or told.startswith(PRIVATE) else told
