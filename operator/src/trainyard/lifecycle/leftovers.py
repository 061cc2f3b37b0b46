"""What is left of earlier attempts, of jobs that ended and of jobs that were deleted: let go of it, and let nothing stay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trainyard.lifecycle import deadlines
from trainyard.lifecycle.gang import Gang, abandoned
from trainyard.lifecycle.needs import (
    Decision,
    DeletePod,
    Need,
    PodNeed,
    ReleaseJob,
    ReleasePod,
    Surroundings,
    side_by_side,
)
from trainyard.world.records import Job, Pod, Terminated


def after_last_words(pods: tuple[Pod, ...], now: float) -> list[Need]:
    """Do not keep a pod that somebody deletes for longer than it takes to read its last words."""
    return [ReleasePod(pod) for pod in pods if pod.held and pod.deleted is not None and _spoke_long_ago(pod, now)]


def _spoke_long_ago(pod: Pod, now: float) -> bool:
    finished = getattr(pod.trainer, "finished", None)
    return isinstance(finished, float | int) and now - finished > deadlines.WORDS


def _lingers(pod: Pod, now: float) -> bool:
    """Its trainer ended, and its sidecars keep the pod, and with it the room on its node."""
    until = _lingers_at(pod)
    return until is not None and now >= until


def _lingers_at(pod: Pod) -> float | None:
    """From when on a pod that is there for its logs has sidecars to blame for still being live; None for any other."""
    if not pod.live or not isinstance(pod.trainer, Terminated) or pod.deleted is not None:
        return None
    return pod.trainer.finished + deadlines.LINGER


def sweep(job: Job, gang: Gang, now: float, kept: Collection[Pod] = ()) -> tuple[Need, ...]:
    """Pods of closed attempts: end those that still run, let go of those that ended, remove all but the one that failed first.

    The one that failed first stays for its logs until the next attempt fails. kept: those in which the next attempt may begin.
    """
    failure, spared = job.status.last_failure, {pod.uid for pod in kept}
    keep = failure.pod if failure is not None else None
    needs: list[PodNeed] = []
    for pod in gang.others:
        if pod.held and (pod.over or abandoned(pod, now)):
            needs.append(ReleasePod(pod))
        stays = pod.uid in spared or (pod.over and pod.name == keep and not _lingers(pod, now))
        if pod.deleted is None and not stays:
            needs.append(DeletePod(pod, deadlines.BROKEN_GRACE))
    return tuple(side_by_side(needs))


def settle(job: Job, gang: Gang, now: float) -> Decision:
    """The job has ended: its pods stay for their logs, without a hold on them; what still runs is taken down."""
    of_pods: list[PodNeed] = []
    for pod in gang.others:
        if pod.held and (pod.over or abandoned(pod, now)):
            of_pods.append(ReleasePod(pod))
        if pod.deleted is None and (not pod.over or _lingers(pod, now)):
            of_pods.append(DeletePod(pod, deadlines.BROKEN_GRACE))
    needs: list[Need] = [*side_by_side(of_pods)]
    if job.held and all(not pod.held and pod.over and _lingers_at(pod) is None for pod in gang.others):
        needs.append(ReleaseJob())
    status = (
        job.status
        if job.status.observed_generation == job.generation
        else job.status.but(observed_generation=job.generation)
    )
    return wake_for(Decision(status, tuple(needs)), gang.others, now)


def tear_down(job: Job, gang: Gang, around: Surroundings, now: float) -> Decision:
    """The job was deleted: its pods get SIGTERM and their grace, then nothing of it stays.

    A pod whose kubelet does not answer is removed by force when its grace is over: the names of its members are never used
    again, and its late writes belong to no lineage, so that nothing can come of it.
    """
    assert job.deleted is not None
    pods = (*gang.pods, *gang.others)
    of_pods: list[PodNeed] = []
    for pod in pods:
        margin = 0.0 if around.leaving else deadlines.KILLED
        late = pod.killed is not None and now > pod.killed + margin
        if pod.held and (pod.over or late):
            of_pods.append(ReleasePod(pod))
        if late and not pod.over:
            of_pods.append(DeletePod(pod, 0))
        if pod.deleted is None:
            of_pods.append(DeletePod(pod))
    needs: list[Need] = [*side_by_side(of_pods)]
    if job.held and all(not pod.held for pod in pods):
        needs.append(ReleaseJob())
    due = [pod.killed + (0.0 if around.leaving else deadlines.KILLED) + 0.001 for pod in pods if pod.killed is not None]
    return Decision(job.status, tuple(needs), wake=min((d for d in due if d > now), default=None))


def wake_for(decision: Decision, pods: tuple[Pod, ...], now: float) -> Decision:
    due = [pod.killed + deadlines.KILLED + 0.001 for pod in pods if pod.killed is not None and pod.held]
    due += [at for at in map(_lingers_at, pods) if at is not None]
    due += [decision.wake] if decision.wake is not None else []
    wake = min((d for d in due if d > now), default=None)
    return replace(decision, wake=wake)
