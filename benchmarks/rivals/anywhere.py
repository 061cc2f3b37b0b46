"""Any nodes in any order: what is left when neither the scheduler nor the operator looks at the network."""

from __future__ import annotations

from random import Random

from trainyard.world.supply import Supply

from benchmarks.rivals.rival import with_room


class Anywhere:
    """A draw without replacement among all free places."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """The order of the draw is the order of the ranks."""
        places = [position for position in with_room(supply) for _ in range(supply.slots[position])]
        return self._random.sample(places, members) if len(places) >= members else None
