"""What the processes of a job say to each other in one step: how much, how often and along which axis of the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainyard.planner.collectives import Collective


class Bytes(StrEnum):
    """What is sent."""

    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    """And their gradients on the way back."""
    PARAMETERS = "parameter shards"
    STATE = "training state"
    """Parameters and optimizer, to where checkpoints are kept."""
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of collective along one axis of the mesh, as often as it happens in a step.

    size: members of a group; stride: how far apart in rank; the axes are row-major, so the last one has stride 1. bytes: of one
    collective, the whole buffer. count: in a step; a part of one where it does not happen in each. overlaps: whether there is
    something to compute meanwhile.
    """

    axis: str
    collective: Collective
    size: int
    stride: int
    bytes: float
    count: float = 1.0
    kind: Bytes = Bytes.GRADIENTS
    overlaps: bool = False
