"""What it costs when a running job has to give nodes away, in GPU-seconds.

A GPU-second is one accelerator for one second (one process, for a job that has none). The terms are times of the job's own clock,
so a small job that is asked right after a save costs little, and a large one an hour after its last save costs much:

    leaving   = accelerators x (since the last durable checkpoint + save + restart + re-queue)
    shrinking = accelerators x (save + restart)

Work since the last checkpoint counts although a job that is asked will save first: a save may fail or miss its deadline, and what
is then lost is this. A job that shrinks keeps most of its nodes and does not queue again; it stops at a step that it has just
saved. One that saves nothing loses everything since its attempt began, however it gives way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SAVE_SECONDS: Final = 30.0
"""A save, as long as none was measured."""
RESTART_SECONDS: Final = 60.0
"""From the creation of the pods to the first step, as long as none was measured."""
REQUEUE_SECONDS: Final = 60.0
"""Waiting for other nodes. Nobody knows it beforehand; the same for all, so that of two jobs with as much to lose the one with
fewer accelerators waits."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Times of one job that are lost when it gives way, in seconds.

    unsaved: since its last durable checkpoint; since its attempt began where it has none. saves: whether it can save when asked.
    """

    unsaved_seconds: float = 0.0
    save_seconds: float = 0.0
    restart_seconds: float = 0.0
    requeue_seconds: float = 0.0
    saves: bool = True

    def leaving(self, accelerators: int) -> float:
        """GPU-seconds when it leaves all of its nodes."""
        return accelerators * (self.unsaved_seconds + self.save_seconds + self.restart_seconds + self.requeue_seconds)

    def shrinking(self, accelerators: int) -> float:
        """GPU-seconds when it goes on with fewer."""
        lost = 0.0 if self.saves else self.unsaved_seconds
        return accelerators * (lost + self.save_seconds + self.restart_seconds)


NOTHING: Final = Loss()
"""Of a job of which nothing is known: it gives way for free, so only its priority, its age and its size count."""


def loss(
    started: float,
    now: float,
    *,
    saves: bool = True,
    checkpointed: float | None = None,
    save_seconds: float | None = None,
    restart_seconds: float | None = None,
    requeue_seconds: float = REQUEUE_SECONDS,
) -> Loss:
    """What a running job would lose at an instant.

    started: when its attempt began. saves: whether it writes checkpoints at all. checkpointed: when the newest one became
    durable, None before the first; one of an earlier attempt does not make the loss longer than the attempt. save_seconds,
    restart_seconds: as measured on this job; None: as stated above.
    """
    since = started if checkpointed is None or not saves else max(started, checkpointed)
    return Loss(
        unsaved_seconds=max(0.0, now - since),
        save_seconds=(SAVE_SECONDS if save_seconds is None else save_seconds) if saves else 0.0,
        restart_seconds=RESTART_SECONDS if restart_seconds is None else restart_seconds,
        requeue_seconds=requeue_seconds,
        saves=saves,
    )
