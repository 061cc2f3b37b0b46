"""status.progress.sent: what one step of rank 0 sends."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.api.model import ApiModel


class SentData(ApiModel):
    """One of the five classes of data."""

    data: str
    """gradients, activations, parameter shards, training state or control."""
    bytes: int
    """Logical bytes: whole buffers of the collectives."""


class SentOver(ApiModel):
    """What crosses a level of the network."""

    level: str
    """The broadest level at which members of the group are apart; node: apart on nodes of one domain; inside the node."""
    wire_bytes: int
    """What the interface sends."""
    seconds: float | None = None
    """On their way, or on a GPU in the collectives' kernels; those of several at once are added up. Left out where they were not
    measured."""


class SentInStep(ApiModel):
    """What one step of rank 0 sends, counted at the process groups in the third step of the attempt; all steps send alike."""

    data: Annotated[tuple[SentData, ...], Field(max_length=8)] = ()
    """By class of data."""
    bytes: int = 0
    """Logical bytes of all classes."""
    predicted_bytes: int = 0
    """The same by the planner's formulas."""
    wire_bytes: int = 0
    """What the interface sends of it, by the backend's factors."""
    predicted_wire_bytes: int = 0
    """The same of what the planner predicts."""
    levels: Annotated[tuple[SentOver, ...], Field(max_length=8)] = ()
    """By level of the network that is crossed."""
    communication_seconds: float | None = None
    """Time of the step in which anything was on its way; left out on a GPU."""
    exposed_seconds: float | None = None
    """Time of the step in which training waited for that."""
    step_seconds: float | None = None
    """How long that step took."""
