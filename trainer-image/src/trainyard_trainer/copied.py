"""What is sent of the training state: the fifth class of data, which belongs to no step but to every save.

A save goes to where checkpoints are kept, which is no process group's business. Where a plan asks for copies in the memory of the
nodes, each rank sends what it wrote to another node after the commit (checkpoint/copies.py): of its bytes, the part is told that
falls on one of the steps since the save before. Without copies nothing is sent, and that is told as 0.
"""

from __future__ import annotations

from trainyard.contract.plan import Plan

from trainyard_trainer.checkpoint.copies import keepers
from trainyard_trainer.checkpoint.record import CommitRecord
from trainyard_trainer.report import Reporter


class Copied:
    """Tells of what one rank of the built-in trainer sends of its copies; of a script of one's own nothing is counted."""

    def __init__(self, report: Reporter, plan: Plan | None, rank: int, ranks: int) -> None:
        self._report, self._told = report, False
        self._level, self._save_bytes = "", 0.0
        if plan is None or plan.trainer is None or plan.checkpoints is None or not plan.checkpoints.copies_bytes:
            return
        # Needs pydantic, which an image of one's own may not have.
        from trainyard.api.trainer import TrainerConfig
        from trainyard.planner.model import model_of
        from trainyard.planner.traffic import STATE_BYTES

        from trainyard_trainer.parallel.places import Places

        self._level = Places(plan.places, plan.levels).crossed((rank, keepers(plan)[rank]))
        self._save_bytes = model_of(TrainerConfig.model_validate(plan.trainer)).parameters * STATE_BYTES / ranks

    def nothing(self) -> None:
        """No save was copied by the step that is counted."""
        if not self._told:
            self._tell(0.0, 0.0, 0, 0.0)

    def save(self, record: CommitRecord, size_bytes: int, seconds: float) -> None:
        """The copy of a save was sent."""
        if self._save_bytes:
            steps = max(1, record.step - (record.parent.step if record.parent is not None else 0))
            self._told = True
            self._tell(size_bytes / steps, self._save_bytes / steps, 1, seconds / steps)

    def _tell(self, size_bytes: float, predicted_bytes: float, count: int, seconds: float) -> None:
        """Of one step. The copies of a save are one send each."""
        from trainyard.planner.collectives import Collective, wire_factor
        from trainyard.planner.traffic import STORAGE, Bytes

        factor = wire_factor(Collective.SEND_RECEIVE, 2, "gloo")
        self._report.sent(
            STORAGE,
            Bytes.STATE,
            Collective.SEND_RECEIVE,
            level=self._level,
            size_bytes=round(size_bytes),
            count=count,
            predicted_bytes=predicted_bytes,
            wire_bytes=size_bytes * factor,
            predicted_wire_bytes=predicted_bytes * factor,
            seconds=seconds,
        )
