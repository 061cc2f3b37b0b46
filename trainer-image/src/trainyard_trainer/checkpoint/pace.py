"""When to save, and what to do with a save that is under way when a stop is asked. All pure."""

from __future__ import annotations

from typing import Final

MARGIN: Final = 1.25
"""How much longer than usual a save may take: its figure is a moving average."""


def gives_up(usual_seconds: float | None, elapsed_seconds: float, left_seconds: float) -> bool:
    """Whether a save of an earlier step is to be given up when all are to leave in `left_seconds`.

    usual_seconds: how long a save takes; None: none has ended yet. elapsed_seconds: of the one under way.

    The newest step is durable soonest where the older save is given up, and what was committed before stands meanwhile.
    But where there is time for the rest of the older save and not for a whole one, the older one is what can be had.
    """
    if usual_seconds is None:
        return False
    rest = max(usual_seconds - elapsed_seconds, 0.0)
    fits = usual_seconds * MARGIN <= left_seconds
    return fits or rest * MARGIN > left_seconds
