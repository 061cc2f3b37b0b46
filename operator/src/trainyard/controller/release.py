"""Let go of everything: stop the operators, then take Trainyard's finalizers off pods and jobs.

Runs before a release is uninstalled. An operator that still worked would put its finalizers on again, so the operators go first,
and only when their pods are gone is anything released. It is repeated until a pass finds nothing, since a pod may have been on
its way when the first pass looked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainyard.api import names
from trainyard.kube import resources
from trainyard.kube.client import MERGE_PATCH, KubeClient
from trainyard.kube.errors import ApiError
from trainyard.kube.resources import Resource

OPERATORS_SECONDS: Final = 60.0
"""How long the operators may take to stop. One on a node that is cut off never does, and reaches nothing either."""
_LOOK_SECONDS: Final = 0.25
_PASSES: Final = 20
_PAGE: Final = 500
_DEPLOYMENTS: Final = Resource("apps/v1", "deployments")

Object = Mapping[str, Any]
Operation = Mapping[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Operators:
    """The Deployment of the operators, and the labels of its pods as a selector."""

    namespace: str
    deployment: str
    selector: str


class StillHeld(Exception):
    """Finalizers are put on as fast as they are taken off: somebody else runs an operator."""


async def release(client: KubeClient, operators: Operators | None, *, keep_pods: bool) -> int:
    """Release all pods and jobs of the cluster; returns how many finalizers went. Raises StillHeld, ApiError.

    keep_pods: leave gangs training. Otherwise their pods are deleted with their own grace, in which trainers save.
    """
    if operators:
        await _stop(client, operators)
    released = 0
    for _ in range(_PASSES):
        found = 0
        async for pod in _objects(client, resources.PODS, names.LABEL_JOB_UID):
            if not keep_pods and "deletionTimestamp" not in pod["metadata"]:
                await _unless_gone(client.delete(resources.PODS, *_name(pod), uid=pod["metadata"]["uid"]))
            found += await _let_go(client, resources.PODS, pod, names.FINALIZER_POD)
        async for job in _objects(client, resources.JOBS):
            found += await _let_go(client, resources.JOBS, job, names.FINALIZER_JOB)
        released += found
        if not found:
            return released
    raise StillHeld(
        f"after {_PASSES} passes and {released} finalizers there are still more; is another operator running?"
    )


async def _stop(client: KubeClient, operators: Operators) -> None:
    none = {"spec": {"replicas": 0}}
    where = (_DEPLOYMENTS, operators.namespace, operators.deployment, "scale")
    if not await _unless_gone(client.request("patch", *where, body=none, content_type=MERGE_PATCH)):
        log.info("there is no Deployment %s/%s to stop", operators.namespace, operators.deployment)
    try:
        async with asyncio.timeout(OPERATORS_SECONDS):
            while left := await _running(client, operators):
                log.info("%d operators have not stopped yet", left)
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        log.warning("operators have not stopped within %.0f s; going on without", OPERATORS_SECONDS)


async def _running(client: KubeClient, operators: Operators) -> int:
    page = await client.list_page(resources.PODS, namespace=operators.namespace, labels=operators.selector)
    phases = [pod.get("status", {}).get("phase") for pod in json.loads(page)["items"]]
    return sum(phase not in ("Succeeded", "Failed") for phase in phases)


async def _objects(client: KubeClient, resource: Resource, labels: str = "") -> AsyncIterator[Object]:
    token = ""
    while True:
        page = json.loads(await client.list_page(resource, labels=labels, limit=_PAGE, token=token))
        for item in page["items"]:
            yield item
        token = page["metadata"].get("continue", "")
        if not token:
            return


async def _let_go(client: KubeClient, resource: Resource, held: Object, finalizer: str) -> bool:
    """Whether there was something to let go. What changed meanwhile is left for the next pass."""
    operations = without(finalizer, held)
    if operations:
        try:
            await client.patch(resource, *_name(held), operations)
        except ApiError as error:
            if error.code not in (404, 409, 422):
                raise
    return bool(operations)


def without(finalizer: str, held: Object) -> Sequence[Operation]:
    """The JSON patch that takes a finalizer off an object as it was read, and off no other of the same name.

    Empty where it is not on it.
    """
    finalizers = held["metadata"].get("finalizers", [])
    if finalizer not in finalizers:
        return ()
    path = f"/metadata/finalizers/{finalizers.index(finalizer)}"
    return (
        {"op": "test", "path": "/metadata/uid", "value": held["metadata"]["uid"]},
        {"op": "test", "path": path, "value": finalizer},
        {"op": "remove", "path": path},
    )


def _name(found: Object) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]


async def _unless_gone(request: Any) -> bool:
    """Await a request; whether what it meant was there."""
    try:
        await request
    except ApiError as error:
        if error.code not in (404, 409):
            raise
        return False
    return True
