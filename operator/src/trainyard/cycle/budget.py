"""How much of the costly work a cycle does. Counted, not timed: what is said does not depend on how busy the machine is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FORECASTS: Final = 8
"""Of how many waiting jobs, or kinds of jobs that want the same, a cycle works out when they start."""

HINTS: Final = 4
"""For how many of them it looks for what would let them start. Each costs a few plans; `kubectl trainyard why` looks further."""


@dataclass(slots=True)
class Budget:
    """How often something may still be done."""

    left: int

    def spend(self) -> bool:
        """Whether it may be done once more; it counts."""
        self.left -= 1
        return self.left >= 0
