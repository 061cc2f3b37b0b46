"""What every rule is: room in, the nodes of a gang in the order of its ranks out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from trainyard.world.supply import Supply


class Rival(Protocol):
    """A scheduler's choice. It may keep a state of its own, such as a random stream or where it looked last."""

    @property
    def name(self) -> str:
        """As figures call it."""

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """The position of each rank's node, None where the rule finds no place. A position may occur more than once where a
        node has room for more than one member."""


def with_room(supply: Supply, first: int = 0, end: int | None = None) -> Iterator[int]:
    """The positions of the nodes that have room, each once."""
    slots = supply.slots
    return (position for position in range(first, len(slots) if end is None else end) if slots[position] > 0)
