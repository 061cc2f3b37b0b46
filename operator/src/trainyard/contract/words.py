"""Enumerations of words, also for Python 3.10: the launcher runs on whatever interpreter an image has."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """What Python 3.11 has: a member is its own text, in a sentence too."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]
