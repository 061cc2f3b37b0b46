"""What all ranks of the saves do together besides writing tensors: tell each other a value, and let one act for all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import torch.distributed as dist

from trainyard_trainer.parallel import timeouts

T = TypeVar("T")

MEETING: Final = timedelta(minutes=2)
"""How long the ranks of the saves' own group may take to find each other; they have met before."""
PATIENCE: Final = timedelta(minutes=30)
"""How long a rank waits for one that writes or verifies more slowly. A peer that died is seen at once, by its connection."""


class Agreement:
    """All ranks, over a process group that only saves use. Each method is collective, and so is making one."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=MEETING))
        timeouts.limit([self.group], PATIENCE)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank, by rank."""
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        return values

    def on_first_rank(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 alone; all ranks get its result, or its error."""
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = work()
            except Exception as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result
