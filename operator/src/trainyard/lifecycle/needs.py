"""What one job may need done, and what a decision about it consists of: the words between `decide` and the cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Stop, TrainingJobStatus
from trainyard.contract.alike import Unlike
from trainyard.world.records import Pod


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a member. grace_seconds: None for its own; 0 removes the object at once, as its kubelet never will."""

    pod: Pod
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Take the finalizer off a pod whose last words were read."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class AskStop:
    """Tell a launcher of the recorded stop."""

    pod: Pod
    stop: Stop


@dataclass(frozen=True, slots=True)
class HandPlan:
    """Give a launcher that was kept the plan of the current attempt, in which it plays a rank."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Relabel:
    """Let a pod that was kept say which attempt it plays in, and as whom."""

    pod: Pod
    rank: int


@dataclass(frozen=True, slots=True)
class MakeMembers:
    """Make what is missing of the attempt that the reservation is for."""


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Put our finalizer on the job."""


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Take our finalizer off the job."""


@dataclass(frozen=True, slots=True)
class Tell:
    """An Event on the job."""

    kind: str
    reason: Reason
    message: str


PodNeed = DeletePod | ReleasePod | AskStop | HandPlan | Relabel
Need = PodNeed | MakeMembers | HoldJob | ReleaseJob | Tell


@dataclass(frozen=True, slots=True)
class Decision:
    """status: what the job's status should be. needs: what follows, in order. queue: whether the job waits for nodes. kept: pods
    of the attempt that ended, in which the next may begin.

    wake: when to look again even if nothing happens; None: only when something does.
    """

    status: TrainingJobStatus
    needs: tuple[Need, ...] = ()
    queue: bool = False
    wake: float | None = None
    kept: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's decision needs to know besides itself.

    wanted_by: the jobs whose reservations name this attempt as a victim; wanted_nodes: those that they wait for. blind: the
    operator reaches no launcher of several jobs at once, so silence is its own trouble. disrupted: most nodes fell NotReady
    together, which is more likely the API server's trouble. leaving: the job's namespace is being deleted. reserved_nodes: those
    that others wait for or hold ready. misfits: uids of pods of the last attempt that would be made otherwise now. refusal: what
    the API server said when it would not take the next member of this attempt, "" where it took it. moved: what the labels of its
    nodes tell otherwise than when it was placed, "" where they tell the same. outdated: the plan of an attempt that has not begun
    would be another now, by the specification, by the labels of its nodes, or as one is gone. unlike: in what members' networks
    differ by what all found when they started, None until all have.
    """

    wanted_by: tuple[str, ...] = ()
    wanted_nodes: frozenset[str] = frozenset()
    reserved_nodes: frozenset[str] = frozenset()
    misfits: frozenset[str] = frozenset()
    blind: bool = False
    disrupted: bool = False
    leaving: bool = False
    refusal: str = ""
    moved: str = ""
    outdated: bool = False
    unlike: Unlike | None = None


def side_by_side(needs: Iterable[PodNeed]) -> list[PodNeed]:
    """What is done to pods, kind by kind: neighbours of one kind are carried out at once, and a launcher that is slow to answer
    must not stand before the next that is to be asked."""
    kinds = (ReleasePod, AskStop, HandPlan, Relabel, DeletePod)
    return sorted(needs, key=lambda need: kinds.index(type(need)))
