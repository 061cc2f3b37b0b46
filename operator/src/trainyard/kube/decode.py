"""From an object of the API server to a record of the world. Pure; raises ValueError or KeyError where an object makes no sense.

Times become seconds since the epoch. `metadata.deletionTimestamp` lies in the future by the grace period: a record's `deleted` is
when the deletion was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from trainyard.api import names
from trainyard.api.model import epoch_seconds
from trainyard.api.validate import read_fabric, read_job
from trainyard.kube.shapes import (
    ConditionShape,
    ContainerStatusShape,
    CustomShape,
    MetaShape,
    NamespaceShape,
    NodeShape,
    PodShape,
    PodSpecShape,
    PodStatusShape,
    PriorityClassShape,
    StateShape,
)
from trainyard.world.records import (
    ContainerState,
    Degraded,
    Fabric,
    Job,
    Membership,
    Node,
    Pod,
    PriorityClass,
    Running,
    Taint,
    Terminated,
    Waiting,
)
from trainyard.world.resources import parse_quantity, pod_requests

_DEFAULT_GRACE_SECONDS: Final = 30
KILLED: Final = 137
"""Exit code of a container whose own is not known: 128 + SIGKILL, as the kubelet says for one that it lost."""


def node(raw: NodeShape) -> Node:
    """A node. One without a Ready condition never reported and is not ready."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    ready = _condition(status.get("conditions"), "Ready")
    degraded = _condition(status.get("conditions"), names.CONDITION_DEGRADED)
    return Node(
        name=meta["name"],
        uid=meta["uid"],
        labels=meta.get("labels") or {},
        allocatable={name: parse_quantity(text, name) for name, text in (status.get("allocatable") or {}).items()},
        taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint.get("effect") or "")
            for taint in spec.get("taints") or ()
        ),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready is not None and ready["status"] == "True",
        ready_since=_seconds(ready.get("lastTransitionTime")) if ready is not None else 0.0,
        missed=ready is not None and ready["status"] == "Unknown",
        annotations={k: v for k, v in (meta.get("annotations") or {}).items() if k.startswith(f"{names.GROUP}/")},
        degraded=_degraded(degraded) if degraded is not None and degraded["status"] == "True" else None,
        rdma_faults=tuple(sorted(_rdma_faults(status.get("conditions") or ()))),
    )


def _rdma_faults(conditions: Iterable[ConditionShape]) -> Iterator[str]:
    """A condition of node-problem-detector is True where there is a problem: RdmaLink, RdmaLinkFlapping, RdmaWpaAuth and others
    of oracle-quickstart/oci-hpc-oke (docs/running-gpu-rdma-healthchecks-with-node-problem-detector.md)."""
    return (one["type"] for one in conditions if one["type"].startswith("Rdma") and one["status"] == "True")


def _degraded(condition: ConditionShape) -> Degraded:
    since = _seconds(condition.get("lastTransitionTime"))
    return Degraded(since, condition.get("reason") or "", condition.get("message") or "")


def pod(raw: PodShape) -> Pod | None:
    """A pod; None for one that takes no room and is not ours: it is of no interest to anybody."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    phase = status.get("phase") or "Pending"
    membership = _membership(meta)
    if membership is None and phase in ("Succeeded", "Failed"):
        return None
    conditions = status.get("conditions")
    scheduled = _condition(conditions, "PodScheduled")
    refused = scheduled is not None and scheduled["status"] == "False" and scheduled.get("reason") == "Unschedulable"
    disruption = _condition(conditions, "DisruptionTarget")
    grace = meta.get("deletionGracePeriodSeconds")
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
    return Pod(
        namespace=meta["namespace"] or "",
        name=meta["name"],
        uid=meta["uid"],
        created=_seconds(meta.get("creationTimestamp")),
        node=spec.get("nodeName") or "",
        phase=phase,
        requests=pod_requests(_mapping(spec)),
        priority=spec.get("priority") or 0,
        ip=status.get("podIP") or "",
        deleted=_deletion(meta),
        grace_seconds=float(_DEFAULT_GRACE_SECONDS if grace is None else grace),
        disrupted=disruption is not None and disruption["status"] == "True",
        unscheduled=((scheduled or {}).get("message") or "Unschedulable") if refused else "",
        held=names.FINALIZER_POD in (meta.get("finalizers") or ()),
        trainer=_trainer(meta, spec, status) if membership is not None else Waiting(),
        membership=membership,
    )


def job(raw: CustomShape) -> Job:
    """A TrainingJob. One that makes no sense is a record as well, whose errors say why."""
    meta = raw["metadata"]
    read = read_job(_mapping(raw))
    return Job(
        namespace=meta["namespace"] or "",
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation") or 0,
        resource_version=meta["resourceVersion"],
        created=_seconds(meta.get("creationTimestamp")),
        spec=read.spec,
        status=read.status,
        errors=read.errors,
        deleted=_deletion(meta),
        held=names.FINALIZER_JOB in (meta.get("finalizers") or ()),
    )


def priority_class(raw: PriorityClassShape) -> PriorityClass:
    """A PriorityClass."""
    return PriorityClass(
        name=raw["metadata"]["name"],
        value=raw["value"],
        preempts=raw.get("preemptionPolicy") != "Never",
        default=bool(raw.get("globalDefault")),
    )


def fabric(raw: CustomShape) -> Fabric:
    """A Fabric; ValueError with every field that is wrong, since half of a network's settings would be worse than none."""
    read = read_fabric(_mapping(raw))
    if read.spec is None:
        raise ValueError("; ".join(map(str, read.errors)))
    meta = raw["metadata"]
    return Fabric(meta["name"], read.spec, meta["uid"], meta["resourceVersion"], read.observed)


def leaving_namespace(raw: NamespaceShape) -> str | None:
    """The name of a namespace that is being deleted, None for any other."""
    meta = raw["metadata"]
    leaving = bool(meta.get("deletionTimestamp")) or (raw.get("status") or {}).get("phase") == "Terminating"
    return meta["name"] if leaving else None


def _membership(meta: MetaShape) -> Membership | None:
    """What a pod says of itself, if it also names the job as its controller.

    A label alone anybody may write by mistake, and a pod whose labels make no sense is a stranger: it still takes room.
    """
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    uid = labels.get(names.LABEL_JOB_UID)
    owned = any(
        owner.get("controller") and owner.get("kind") == names.KIND_JOB and owner.get("uid") == uid
        for owner in meta.get("ownerReferences") or ()
    )
    if uid is None or not owned:
        return None
    try:
        attempt, member, rank = (
            int(labels[name]) for name in (names.LABEL_ATTEMPT, names.LABEL_MEMBER, names.LABEL_RANK)
        )
    except (KeyError, ValueError):
        return None
    return Membership(
        job_uid=uid,
        attempt=attempt,
        member=member,
        rank=rank,
        node=annotations.get(names.ANNOTATION_NODE, ""),
        plan_digest=annotations.get(names.ANNOTATION_PLAN, ""),
        made=_number(annotations.get(names.ANNOTATION_MADE)),
        form=annotations.get(names.ANNOTATION_FORM, ""),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _trainer(meta: MetaShape, spec: PodSpecShape, status: PodStatusShape) -> ContainerState:
    """The state of the container that trains. A pod that has ended has ended: where its kubelet could not say how, the pod
    does."""
    state = _state_of(_trainer_name(spec), status.get("containerStatuses"))
    ended = status.get("phase") in ("Succeeded", "Failed")
    if (terminated := state.get("terminated")) is not None:
        return Terminated(
            exit_code=terminated.get("exitCode", KILLED),
            reason=terminated.get("reason") or "",
            message=terminated.get("message") or "",
            finished=_seconds(terminated.get("finishedAt")) or _last_change(meta, status),
        )
    if ended:
        return _ended_unseen(meta, status)
    if (running := state.get("running")) is not None:
        return Running(_seconds(running.get("startedAt")) or _last_change(meta, status))
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in ("", "PodInitializing"):
        for init in status.get("initContainerStatuses") or ():
            blocked = (init.get("state") or {}).get("waiting") or {}
            if blocked.get("reason") not in (None, "", "PodInitializing"):
                return Waiting(
                    blocked["reason"] or "", f"init container {init['name']}: {blocked.get('message') or ''}"
                )
    return Waiting(reason, message)


def _ended_unseen(meta: MetaShape, status: PodStatusShape) -> Terminated:
    """The end of a container of which the kubelet says nothing: evicted, lost with its node, deleted or refused before it began,
    or an init container failed."""
    finished = _last_change(meta, status)
    if status.get("phase") == "Succeeded":
        return Terminated(0, "Completed", "", finished)
    for init in status.get("initContainerStatuses") or ():
        failed = (init.get("state") or {}).get("terminated")
        if failed is not None and failed.get("exitCode", 0) != 0:
            text = f"init container {init['name']}: {failed.get('message') or failed.get('reason') or 'failed'}"
            return Terminated(failed["exitCode"], failed.get("reason") or "Error", text, finished)
    disruption = _condition(status.get("conditions"), "DisruptionTarget")
    said = disruption if disruption is not None and disruption["status"] == "True" else None
    reason = status.get("reason") or (said.get("reason") if said is not None else "") or "PodFailed"
    message = status.get("message") or (said.get("message") if said is not None else "") or ""
    return Terminated(KILLED, reason, message, finished)


def _trainer_name(spec: PodSpecShape) -> str | None:
    """The container named trainer, else the only one."""
    found = [container["name"] for container in spec.get("containers") or ()]
    if names.TRAINER_CONTAINER in found:
        return names.TRAINER_CONTAINER
    return found[0] if len(found) == 1 else None


def _state_of(container: str | None, statuses: Iterable[ContainerStatusShape] | None) -> StateShape:
    for status in statuses or ():
        if status["name"] == container:
            return status.get("state") or {}
    return {}


def _condition(conditions: Iterable[ConditionShape] | None, type: str) -> ConditionShape | None:
    return next((condition for condition in conditions or () if condition["type"] == type), None)


def _last_change(meta: MetaShape, status: PodStatusShape) -> float:
    """When a pod last changed, as far as it says: the newest of its conditions, else its creation."""
    changes = (_seconds(condition.get("lastTransitionTime")) for condition in status.get("conditions") or ())
    return max(changes, default=0.0) or _seconds(meta.get("creationTimestamp"))


def _deletion(meta: MetaShape) -> float | None:
    ends = meta.get("deletionTimestamp")
    return epoch_seconds(ends) - (meta.get("deletionGracePeriodSeconds") or 0) if ends else None


def _seconds(instant: str | None) -> float:
    """0.0 where there is no instant."""
    return epoch_seconds(instant) if instant else 0.0


def _mapping(shape: Any) -> Mapping[str, Any]:
    """A TypedDict is a mapping, though not to the type checker."""
    found: Mapping[str, Any] = shape
    return found
