"""All jobs at one instant: `cycle(world, now)` is the operator's whole judgement, without I/O."""

from trainyard.cycle.cycle import cycle

__all__ = ["cycle"]
