"""Carry out what a cycle wants of one job: in order, and each step such that doing it twice does no harm.

Names are deterministic, deletes name a uid, the status names the resourceVersion that it was computed from. So a second leader,
or this one after a restart in the middle, ends in the same state. What the API server answers goes into the mirror at once: the
next cycle sees its predecessor's writes, whenever the watch tells of them.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from trainyard.api import names
from trainyard.api.model import rfc3339
from trainyard.cycle.actions import (
    Action,
    Announce,
    AskStop,
    Create,
    CreateControl,
    DeletePlan,
    DeletePod,
    HandPlan,
    HoldJob,
    MarkNode,
    Relabel,
    ReleaseJob,
    ReleasePod,
    TryPod,
    Turn,
    WriteObserved,
    WriteStatus,
)
from trainyard.kube import resources
from trainyard.kube.client import KubeClient, Object
from trainyard.kube.errors import ApiError
from trainyard.kube.events import Recorder
from trainyard.kube.launchers import LauncherClient, Unanswered
from trainyard.kube.mirror import Mirror
from trainyard.kube.observations import write_observed
from trainyard.kube.resources import Resource, resource_of
from trainyard.kube.trial import try_pod
from trainyard.world.records import Answer, Manifest

log = logging.getLogger(__name__)

CONCURRENCY: Final = 48
"""Requests of all turns together: a gang's pods are made side by side, and a burst of gangs does not starve the watches."""
TELLING: Final = 4
"""Requests, beside these, of turns that only tell: so few stand before an urgent one where the rate is used up."""

_NO_COMPUTE_DOMAINS: Final = (
    "its nodes have NVLink channels to give, and the API server knows no ComputeDomain to claim them from; install the "
    "CustomResourceDefinitions of NVIDIA's DRA driver"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """The action that ended a turn. error.conflict: the object is not as the cycle saw it; the next cycle sees it as it is."""

    action: Action
    error: ApiError


@dataclass(frozen=True, slots=True)
class Performed:
    """What became of a turn. done: the actions that were carried out; failure: None where all were."""

    job_uid: str
    done: tuple[Action, ...]
    failure: Failure | None = None


class Writer:
    """Performs turns. leading: asked before every action, so that a leader that was frozen writes nothing when it thaws."""

    def __init__(
        self,
        client: KubeClient,
        mirror: Mirror,
        launchers: LauncherClient,
        recorder: Recorder,
        *,
        leading: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._mirror = mirror
        self._launchers = launchers
        self._recorder = recorder
        self._leading = leading
        self._clock = clock
        self._turns = asyncio.Semaphore(CONCURRENCY)
        self._telling = asyncio.Semaphore(TELLING)

    async def perform(self, turn: Turn) -> Performed:
        """Carry out a job's actions until one fails. Never raises ApiError. Neighbours of one kind are done side by side.

        What else an action raises is a bug of ours: it is raised when all of its neighbours are done, so that nothing of a turn
        goes on when the turn is over.
        """
        done: list[Action] = []
        for batch in _batches(turn.actions):
            asked = (self._attempt(turn, action) for action in batch)
            found = await asyncio.gather(*asked, return_exceptions=True)
            failures: list[Failure | None] = []
            for one in found:
                if isinstance(one, BaseException):
                    raise one
                failures.append(one)
            done += [action for action, failure in zip(batch, failures, strict=True) if failure is None]
            failed = next((failure for failure in failures if failure is not None), None)
            if failed is not None:
                return Performed(turn.job_uid, tuple(done), failed)
        return Performed(turn.job_uid, tuple(done))

    async def _attempt(self, turn: Turn, action: Action) -> Failure | None:
        # Launchers have their own limit: slow ones must not keep the API server waiting.
        room = self._telling if turn.tells else self._turns
        async with nullcontext() if isinstance(action, AskStop | HandPlan) else room:
            try:
                if not self._leading():
                    raise ApiError(
                        "write", 0, "NotLeading", "this process does not hold the lease, or may not any more"
                    )
                await self._do(turn.job_uid, action)
            except ApiError as error:
                # What is made needs nothing that the cycle saw: a namespace or a kind is missing, and stays so.
                gone = error.not_found and not isinstance(action, Create | CreateControl)
                return Failure(action, _as_conflict(error) if gone else error)
        return None

    async def _do(self, job_uid: str, action: Action) -> None:
        match action:
            case TryPod():
                self._mirror.trial(action.job_uid, await try_pod(self._client, action, self._clock()))
            case Create(manifest):
                await self._create(job_uid, manifest)
            case CreateControl():
                await self._create_control(action)
            case DeletePod():
                await self._delete_pod(action)
            case DeletePlan(namespace, name):
                await self._delete_plan(job_uid, namespace, name)
            case ReleasePod(namespace, name, uid):
                await self._release(resources.PODS, namespace, name, uid, names.FINALIZER_POD)
            case HoldJob():
                await self._hold(action)
            case ReleaseJob(namespace, name, uid):
                await self._release(resources.JOBS, namespace, name, uid, names.FINALIZER_JOB)
            case WriteStatus():
                await self._write_status(action)
            case MarkNode():
                self._mirror.observe(await self._mark(action))
            case WriteObserved():
                self._mirror.observe(await write_observed(self._client, action))
            case AskStop():
                await self._ask_stop(action)
            case HandPlan():
                await self._hand_plan(action)
            case Relabel():
                await self._relabel(action)
            case Announce():
                self._recorder.announce(action)

    async def _create(self, job_uid: str, manifest: Manifest) -> None:
        """An object of the same job that is there already was made by us, before a restart or beside us."""
        resource = resource_of(manifest)
        try:
            made = await self._client.create(resource, manifest)
        except ApiError as error:
            if error.not_found and resource == resources.COMPUTE_DOMAINS:
                # Nothing is gone that the next cycle would see gone: it would try for ever, and say nothing.
                raise ApiError(error.request, 501, "NotImplemented", _NO_COMPUTE_DOMAINS) from None
            if not error.already_exists:
                raise
            metadata = manifest["metadata"]
            made = await self._client.get(resource, metadata["namespace"], metadata["name"])
            if not _owned(made, job_uid):
                what = f"{manifest['kind']} {metadata['name']}"
                message = f"{what} exists and is not this job's; delete it, or give the job another name"
                raise ApiError(error.request, 409, "AlreadyExists", message) from None
        self._mirror.observe(made)

    async def _create_control(self, action: CreateControl) -> None:
        """Secrets cannot be read back, on purpose: one of that name is taken for ours. If it is not, launchers refuse us."""
        key = base64.b64encode(self._launchers.job_key(action.job_uid)).decode()
        try:
            await self._client.create(resources.SECRETS, {**action.manifest, "data": {names.CONTROL_KEY: key}})
        except ApiError as error:
            if not error.already_exists:
                raise

    async def _delete_pod(self, action: DeletePod) -> None:
        """A pod that is gone, or another under its name, is what was wanted."""
        try:
            answer = await self._client.delete(
                resources.PODS, action.namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds
            )
        except ApiError as error:
            if error.not_found or error.conflict:
                return
            raise
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionTimestamp"):
            self._mirror.observe(answer)

    async def _delete_plan(self, job_uid: str, namespace: str, name: str) -> None:
        """Only if it is this job's: a user may have a ConfigMap of that name."""
        try:
            found = await self._client.get(resources.CONFIG_MAPS, namespace, name)
            if _owned(found, job_uid):
                await self._client.delete(resources.CONFIG_MAPS, namespace, name, uid=found["metadata"]["uid"])
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    async def _hold(self, action: HoldJob) -> None:
        found = await self._client.get(resources.JOBS, action.namespace, action.name)
        metadata = found["metadata"]
        if metadata["uid"] != action.uid or metadata["resourceVersion"] != action.resource_version:
            raise ApiError(f"hold {action.namespace}/{action.name}", 409, "Conflict", "the job changed")
        finalizers = metadata.get("finalizers") or []
        if names.FINALIZER_JOB not in finalizers:
            await self._patch_finalizers(resources.JOBS, found, [*finalizers, names.FINALIZER_JOB])

    async def _release(self, resource: Resource, namespace: str, name: str, uid: str, finalizer: str) -> None:
        """Take a finalizer off. An object that is gone, or another under its name, needs no release."""
        try:
            found = await self._client.get(resource, namespace, name)
            finalizers = found["metadata"].get("finalizers") or []
            if found["metadata"]["uid"] == uid and finalizer in finalizers:
                await self._patch_finalizers(resource, found, [kept for kept in finalizers if kept != finalizer])
        except ApiError as error:
            if not error.not_found:
                raise

    async def _patch_finalizers(self, resource: Resource, found: Object, finalizers: Sequence[str]) -> None:
        """Replace the finalizers if nobody else changed them meanwhile; what else changed does not matter."""
        metadata = found["metadata"]
        before = metadata.get("finalizers")
        tests: list[Object] = [{"op": "test", "path": "/metadata/uid", "value": metadata["uid"]}]
        if before:
            tests.append({"op": "test", "path": "/metadata/finalizers", "value": before})
        else:
            tests.append({"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]})
        change = {"op": "add", "path": "/metadata/finalizers", "value": list(finalizers)}
        where = metadata.get("namespace"), metadata["name"]
        try:
            self._mirror.observe(await self._client.patch(resource, *where, [*tests, change]))
        except ApiError as error:
            if error.code != 422:
                raise
            raise _as_conflict(error) from None  # a test failed

    async def _write_status(self, action: WriteStatus) -> None:
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND_JOB,
            "metadata": {
                "namespace": action.namespace,
                "name": action.name,
                "uid": action.uid,
                "resourceVersion": action.resource_version,
            },
            "status": action.status.to_manifest(),
        }
        self._mirror.observe(await self._client.replace(resources.JOBS, manifest, subresource="status"))

    async def _mark(self, action: MarkNode) -> Object:
        """Of conditions each type is one item; those of others stay as they are."""
        condition = {
            "type": names.CONDITION_DEGRADED,
            "status": "True" if action.degraded else "False",
            "reason": action.reason,
            "message": action.message,
            "lastTransitionTime": rfc3339(round(action.time)),
            "lastHeartbeatTime": rfc3339(round(self._clock())),
        }
        patch = {"metadata": {"uid": action.uid}, "status": {"conditions": [condition]}}
        try:
            return await self._client.patch(
                resources.NODES, None, action.name, patch, subresource="status", by_key=True
            )
        except ApiError as error:
            if error.code != 422:
                raise
            raise _as_conflict(error) from None  # another node has the name

    async def _ask_stop(self, action: AskStop) -> None:
        """A launcher that does not answer is no reason not to ask its neighbour; the cycle sees it in the answer."""
        pod = self._mirror.members.get(action.pod_uid)
        if pod is None:
            return
        said = await self._launchers.stop(pod, action.stop)
        now = self._clock()
        known = self._mirror.answers.get(action.pod_uid) or Answer(asked=now)
        if isinstance(said, Unanswered):
            log.warning("%s/%s was asked to stop: %s", pod.namespace, pod.name, said.error)
            self._mirror.answer(action.pod_uid, replace(known, stop_sent=now, error=said.error))
        else:
            self._mirror.answer(action.pod_uid, replace(known, stop_sent=now, status=said, time=now, error=""))

    async def _hand_plan(self, action: HandPlan) -> None:
        """As with a stop: what becomes of it the cycle sees in the answer."""
        pod = self._mirror.members.get(action.pod_uid)
        if pod is None:
            return
        said = await self._launchers.plan(pod, action.plan)
        now = self._clock()
        known = replace(self._mirror.answers.get(action.pod_uid) or Answer(asked=now), plan_sent=now, plan_refused="")
        if isinstance(said, Unanswered):
            log.warning("%s/%s was given a later plan: %s", pod.namespace, pod.name, said.error)
            refused = said.error if said.refused else ""
            error = known.error if said.refused else said.error  # a refusal is an answer
            self._mirror.answer(action.pod_uid, replace(known, plan_refused=refused, error=error))
        else:
            self._mirror.answer(action.pod_uid, replace(known, status=said, time=now, error=""))

    async def _relabel(self, action: Relabel) -> None:
        """A pod that is gone, or another under its name, says nothing any more."""
        says = {
            "uid": action.uid,
            "labels": {names.LABEL_ATTEMPT: str(action.attempt), names.LABEL_RANK: str(action.rank)},
            "annotations": {names.ANNOTATION_PLAN: action.plan_digest},
        }
        where = resources.PODS, action.namespace, action.name
        try:
            self._mirror.observe(await self._client.patch(*where, {"metadata": says}))
        except ApiError as error:
            other = error.code == 422  # of another uid, which is immutable; all else of it is always valid
            if not (error.not_found or error.conflict or other):
                raise


def _batches(actions: Sequence[Action]) -> Iterator[tuple[Action, ...]]:
    """Runs of neighbours that do not depend on each other."""
    for _, run in groupby(enumerate(actions), key=lambda item: _lane(*item)):
        yield tuple(action for _, action in run)


def _lane(position: int, action: Action) -> Hashable:
    """Neighbours with the same lane are independent; the position, where an action is independent of nothing."""
    match action:
        case Create(manifest):
            return manifest["kind"] if manifest["kind"] == "Pod" else position
        case DeletePod() | DeletePlan() | ReleasePod() | AskStop() | HandPlan() | Relabel() | Announce():
            return type(action).__name__
        case _:
            return position


def _owned(found: Mapping[str, Any], job_uid: str) -> bool:
    return any(owner.get("uid") == job_uid for owner in found["metadata"].get("ownerReferences") or ())


def _as_conflict(error: ApiError) -> ApiError:
    """What the cycle saw is there no more."""
    return ApiError(error.request, 409, "Conflict", error.message)
