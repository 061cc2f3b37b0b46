"""Single values as NCCL reads them.

Its numbers go through strtoll with base 0 (src/misc/param.cc), which takes what it can and ignores the rest: "true" is 0, "8M" is
8, "010" is 8. The newer parameters (src/include/param) refuse what they cannot read and keep their default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trainyard.network.variables import COLLECTIVES, Kind, Variable

_INT64: Final = 2**63
_NUMBER: Final = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")
_OLD_LEVELS: Final = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""Distances by the digits of NCCL before 2.4 (levelsOldToNew in src/graph/paths.cc)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a library makes of a value. value: None where it keeps its default. rest: what it took no notice of."""

    value: int | str | None
    rest: str = ""


def integer(text: str) -> Reading:
    """A number of NCCL: strtoll with base 0. Empty: the default. Out of 64 bits: the default. No digits at all: 0."""
    if not text:
        return Reading(None)
    found = _NUMBER.match(text)
    if found is None:
        return Reading(0, text)
    digits = found[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    end = found.end()
    if base == 8:  # strtoll stops at the first digit that is not octal
        octal = re.match(r"[0-7]+", digits)
        assert octal is not None
        end -= len(digits) - octal.end()
        digits = octal[0]
    value = int(digits, base) * (-1 if found[1] == "-" else 1)
    if not -_INT64 <= value < _INT64:
        return Reading(None, text)
    return Reading(value, text[end:])


def truth(text: str) -> Reading:
    """A truth of NCCL's newer parameters (ncclParamParserDefault<bool>); None keeps the default."""
    word = text.upper()
    if word in ("1", "T", "TRUE"):
        return Reading(1)
    if word in ("0", "F", "FALSE"):
        return Reading(0)
    return Reading(None, text)


def level(text: str) -> Reading:
    """A distance: one of the names in capitals, or a digit of old (ncclGetLevel in src/graph/paths.cc)."""
    names = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
    if text in names:
        return Reading(text)
    if text[:1].isdecimal():
        number = integer(text).value
        return Reading(_OLD_LEVELS[min(int(number or 0), len(_OLD_LEVELS) - 1)])
    return Reading(None, text)


def bad_elements(text: str, elements: tuple[str, ...]) -> str | None:
    """The word for which NCCL would give up on a value of NCCL_ALGO or NCCL_PROTO; None where it reads all of it.

        ring,collnetdirect;allreduce:tree      ^LL128;allreduce:LL128

    Entries are separated by semicolons, all but the first are for one collective, ^ takes all but what follows (parseList in
    src/graph/tuning.cc).
    """
    known = {element.upper() for element in elements}
    collectives = {name.upper() for name in COLLECTIVES}
    for n, entry in enumerate(part for part in text.split(";") if part):
        words = [part for part in entry.split(":") if part]
        if len(words) < 2 and n > 0:
            return entry
        if len(words) >= 2 and words[0].upper() not in collectives:
            return words[0]
        listed = (words[1] if len(words) >= 2 else words[0] if words else "").removeprefix("^")
        for word in listed.split(","):
            if word and word.upper() not in known:
                return word
    return None


def misread(variable: Variable, value: str) -> str | None:
    """What a library makes of a value that was hardly meant, in half a sentence; None where it reads what is written."""
    match variable.kind:
        case Kind.SWITCH | Kind.NUMBER | Kind.SIZE if value:
            found = integer(value)
            if found.value is None:
                return f"{value!r} does not fit into 64 bits, and the default stays"
            if found.rest:
                return f"{value!r} is read as {found.value}: only digits count, what follows them is ignored"
            if _octal(value):
                return f"{value!r} is read as {found.value}: a number that begins with 0 is octal"
        case Kind.TRUTH if truth(value).value is None:
            return f"{value!r} is ignored; write TRUE or FALSE"
        case Kind.LEVEL if level(value).value is None:
            return f"{value!r} is ignored; write one of {', '.join(variable.choices)}, in capitals"
        case Kind.FAMILY if value and value not in variable.choices:
            return f"{value!r} is ignored; write {' or '.join(variable.choices)}"
        case Kind.CHOICE if value.strip().upper() not in variable.choices:
            return f"{value!r} is ignored; write one of {', '.join(variable.choices)}"
        case Kind.ELEMENTS:
            word = bad_elements(value, variable.choices)
            if word is not None:
                return f"NCCL gives up at {word!r}; it knows {', '.join(variable.choices)}"
    return None


def _octal(value: str) -> bool:
    digits = value.strip().lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
