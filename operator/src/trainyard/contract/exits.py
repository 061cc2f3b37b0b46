"""Exit codes of the launcher. Only the launcher emits 75 to 78; a worker's own is reported in the last words instead.

75 and 78 follow sysexits.h (EX_TEMPFAIL: try again later, EX_CONFIG: configuration error); 76 and 77 are ours.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How an attempt of a member ended."""

    DONE = 0
    FAILURE = 1
    YIELDED = 75
    """Asked to leave, and left after a durable save."""
    HANG = 76
    """No progress within the deadline, found by the launcher."""
    PREFLIGHT = 77
    """The node or its network failed a check before the first step."""
    CONFIGURATION = 78
    """The configuration cannot work; only the image or the data could show it. Never retried."""


RESERVED = frozenset({Exit.YIELDED, Exit.HANG, Exit.PREFLIGHT, Exit.CONFIGURATION})
