"""What one step of a rank sends, in a few numbers, counted in the third step of an attempt: all steps send alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from trainyard.contract.codec import AtMost, Bytes, Seconds

MOST_NAMES: Final = 8
"""Classes of data are five; levels of a network are few."""


@dataclass(frozen=True, slots=True)
class Sent:
    """data: logical bytes by class. predicted_bytes: their sum by the planner's formulas. wire_bytes: what the interface sends by
    the backend's factors; predicted_wire_bytes: the same of what is predicted.

    level_bytes, level_seconds: on the wire and on their way, by the broadest level of the network that is crossed.
    communication_seconds: in which anything was on its way; exposed_seconds: in which training waited for it; step_seconds: of
    that step. None where they were not measured (GPU).
    """

    data: Annotated[Mapping[str, Bytes], AtMost(MOST_NAMES)] = field(default_factory=dict)
    predicted_bytes: Bytes = 0.0
    wire_bytes: Bytes = 0.0
    predicted_wire_bytes: Bytes = 0.0
    level_bytes: Annotated[Mapping[str, Bytes], AtMost(MOST_NAMES)] = field(default_factory=dict)
    level_seconds: Annotated[Mapping[str, Seconds], AtMost(MOST_NAMES)] = field(default_factory=dict)
    communication_seconds: Seconds | None = None
    exposed_seconds: Seconds | None = None
    step_seconds: Seconds | None = None

    @property
    def size_bytes(self) -> float:
        """Logical bytes of all classes."""
        return sum(self.data.values())
