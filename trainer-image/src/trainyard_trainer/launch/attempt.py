"""One attempt as this pod knows it: what it is to run, its workers, what was asked and what went wrong.

The supervisor moves it; everything that is said of it (status, metrics, verdict) is read from it here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trainyard.contract.exits import Exit
from trainyard.contract.network import PodNetwork
from trainyard.contract.plan import Plan, digest
from trainyard.contract.preflight import PreflightResult
from trainyard.contract.status import Fault, LastWords, Status, WorkerPhase

from trainyard_trainer.launch import metrics
from trainyard_trainer.launch.ending import Ended, Hang, Happened, Notice, first_fault
from trainyard_trainer.launch.network import counters
from trainyard_trainer.launch.network.finding import Finding
from trainyard_trainer.launch.network.resolve import Part
from trainyard_trainer.launch.network.signs import Signs
from trainyard_trainer.launch.program import TRAINER_MODULE
from trainyard_trainer.launch.progress import (
    Progress,
    at,
    durable_in,
    last_saved,
    newest_commit,
    phase_of,
    phase_seconds,
    step_of,
)
from trainyard_trainer.launch.sending import sent
from trainyard_trainer.launch.usage import usage
from trainyard_trainer.launch.workers import Worker
from trainyard_trainer.launch.zygote import Zygote

WARNINGS: Final = 8
WARNING_CHARACTERS: Final = 500
DEFAULT_GRACE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Who this launcher is and what it runs.

    key: None where requests cannot be verified. adopts: it is the parent of whatever its descendants leave behind.
    """

    plan: Plan
    plan_path: str
    node_rank: int
    pod: str
    pod_uid: str
    port: int
    key: bytes | None
    command: Sequence[str]
    environment: Mapping[str, str]
    adopts: bool = True

    @property
    def grace_seconds(self) -> float:
        """How long a stop without a deadline of its own may take."""
        return self.plan.checkpoints.grace_seconds if self.plan.checkpoints else DEFAULT_GRACE_SECONDS

    @property
    def speaks(self) -> bool:
        """Whether the command is known to look at the stop file, also before its first report."""
        return TRAINER_MODULE in self.command

    @property
    def part(self) -> Part:
        """Who this pod is to its network."""
        return Part(
            where=f"pod {self.pod} on {self.plan.members[self.node_rank].node}",
            nodes=len(self.plan.members),
            processes=self.plan.processes_per_node,
            rank0=self.plan.master_address,
            built_in=self.speaks,
        )


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended that another may follow in this pod. time: since the epoch."""

    words: LastWords
    time: float


@dataclass(slots=True)
class Attempt:
    """What has happened so far. Times are monotonic, but for those in records that say otherwise.

    folder: where the workers look for what they are asked. deadline: of the stop. kill_at: when whoever was told to end is
    made to. overdue: the deadline passed. error: what the launcher itself could not do; error_exit: how it then exits. finding:
    the search for what the network is; network: what it found. stranded: no worker could meet the others,
    and the operator is to hear of it first. signs: what workers complain of. ended: set when all workers have ended and a later
    plan is waited for.
    """

    settings: Settings
    folder: Path
    workers: list[Worker] = field(default_factory=list)
    zygote: Zygote | None = None
    finding: Finding | None = None
    network: PodNetwork | None = None
    stranded: bool = False
    signs: Signs = field(default_factory=Signs)
    notice: Notice | None = None
    deadline: float | None = None
    kill_at: float | None = None
    hang: Hang | None = None
    overdue: bool = False
    error: Fault | None = None
    error_exit: Exit = Exit.FAILURE
    saves_asked: int = 0
    ended: End | None = None
    plan_digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.plan_digest = digest(self.settings.plan)  # once: a large plan takes a tenth of a second

    @property
    def number(self) -> int:
        """Which attempt of the job it is."""
        return self.settings.plan.attempt

    @property
    def preparing(self) -> bool:
        """Whether workers are still to be started."""
        return self.zygote is not None or self.finding is not None or self.stranded

    @property
    def preflight(self) -> PreflightResult | None:
        """How it ended, if a worker has said so."""
        return next((progress.preflight for progress in self.known() if progress.preflight), None)

    @property
    def network_file(self) -> Path:
        """What was found of the network, for the workers."""
        return self.folder / f"network-{self.number}.json"

    @property
    def stop_file(self) -> Path:
        """Exists once a stop was asked."""
        return self.folder / f"stop-{self.number}"

    @property
    def checkpoint_file(self) -> Path:
        """Replaced whenever a save was asked."""
        return self.folder / f"checkpoint-{self.number}"

    def running(self) -> list[Worker]:
        """The workers that were not reaped yet."""
        return [worker for worker in self.workers if worker.alive]

    def ends(self) -> list[Ended]:
        """The ends of those that were."""
        return [end for worker in self.workers if (end := worker.end()) is not None]

    def known(self) -> list[Progress]:
        """What is known of each worker."""
        return [worker.progress for worker in self.workers]

    def status(self, own_warnings: Sequence[str]) -> Status:
        """What GET /v1/status says now. own_warnings: the launcher's own."""
        known = self.known()
        now, durable = time.time(), durable_in(known, time.time())
        newest = max(known, key=lambda progress: progress.last_step_time or 0.0, default=Progress())
        told = [warning for worker in self.workers for warning in worker.progress.warnings]
        return Status(
            pod_uid=self.settings.pod_uid,
            attempt=self.number,
            plan_digest=self.plan_digest,
            node_rank=self.settings.node_rank,
            phase=WorkerPhase.ENDED if self.ended else phase_of(known, stopping=self._is_stopping),
            step=step_of(known),
            loss=newest.loss,
            tokens_per_second=newest.tokens_per_second,
            step_seconds=newest.smooth_step_seconds,
            first_step_time=_first_step_time(known),
            notice_time=self.notice.time if self.notice else None,
            notice_reason=self.notice.reason if self.notice else None,
            commit=newest_commit(known),
            resumed=next((progress.resumed for progress in known if progress.resumed), None),
            durable_seconds=durable.seconds if durable else None,
            durable_basis=durable.basis if durable else "",
            ranks=tuple(at(worker.rank, worker.progress, time.monotonic()) for worker in self.workers),
            phase_seconds=phase_seconds(known[0], now) if known else {},
            grad_norm=newest.grad_norm,
            mfu=newest.mfu,
            memory_bytes=max((one.memory_bytes for one in known if one.memory_bytes is not None), default=None),
            sent=next((said for one in known if (said := sent(one)) is not None), None),
            fault=first_fault(self.ends(), self.notice),
            warnings=tuple(text[:WARNING_CHARACTERS] for text in [*own_warnings, *told][-WARNINGS:]),
            network=self.network,
            preflight=self.preflight,
            trouble=self.signs.found(),
            ended=self.ended.words if self.ended else None,
            ended_time=self.ended.time if self.ended else None,
        )

    @property
    def _is_stopping(self) -> bool:
        return self.notice is not None or self.kill_at is not None

    def metrics_text(self) -> str:
        """What GET /metrics says now."""
        used = usage({w.pid for w in self.running()})
        measured = [
            metrics.Measured(w.rank, w.alive, w.progress, w.reports.unreadable, used.get(w.pid)) for w in self.workers
        ]
        training = metrics.text(
            self.settings.plan, self.settings.node_rank, measured, self.notice, time.time(), time.process_time()
        )
        rails = self.network.adapters if self.network is not None else ()
        return training + metrics.network_text(counters.count(Path("/"), rails), self.signs.found(), self.preflight)

    def happened(self) -> Happened:
        """All that the verdict is made from."""
        known = self.known()
        return Happened(
            attempt=self.number,
            node_rank=self.settings.node_rank,
            workers=tuple(self.ends()),
            notice=self.notice,
            agreed_step=next((progress.agreed_step for progress in known if progress.agreed_step is not None), None),
            commit=newest_commit(known),
            saved=last_saved(known),
            resumed=next((progress.resumed for progress in known if progress.resumed), None),
            step=step_of(known),
            first_step_time=_first_step_time(known),
            hang=self.hang,
            overdue=self.overdue,
            error=self.error,
            error_exit=self.error_exit,
            trouble=self.signs.cause(),
            preflight=self.preflight,
        )


def _first_step_time(known: Sequence[Progress]) -> float | None:
    return min((progress.first_step_time for progress in known if progress.first_step_time is not None), default=None)
