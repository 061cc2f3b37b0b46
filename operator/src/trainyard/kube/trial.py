"""Have the API server judge a job's pod before anything is made, and say whose turn it is then.

A refusal that the template deserves is the user's to mend: the sentence names the field as the user wrote it. Everything else may
pass by itself (quota, webhooks, throttling, a server in trouble, a volume that is not there yet): the job waits, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainyard.api.conditions import Reason
from trainyard.cycle.actions import TryPod
from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.world.records import Trial, Verdict

_MOST_CAUSES: Final = 8
_WEBHOOK: Final = re.compile(r"admission webhook|failed calling webhook")
_POD_SECURITY: Final = "violates PodSecurity"
_NO_NAMESPACE: Final = re.compile(r'^namespaces? "[^"]*" not found')
_NO_PRIORITY_CLASS: Final = "no PriorityClass with name"
_FORBIDDEN: Final = re.compile(r'^pods "[^"]*" is forbidden: ')
_WRONG_TYPE: Final = re.compile(r"Go struct field \w+\.(?P<path>[\w.]+) of type")
_UNKNOWN_FIELD: Final = re.compile(r'unknown field "(?P<path>[^"]+)"')
_NAMED_ITEM: Final = re.compile(r"(?P<list>.*(?:env|volumes|volumeMounts))\[(?P<index>\d+)\]")


async def try_pod(client: KubeClient, action: TryPod, now: float) -> Trial:
    """Try the pod, and look for the claims that it mounts. Never raises ApiError: what cannot be tried has to wait."""
    try:
        await client.create(resources.PODS, action.pod, dry_run=True, attempts=1)
    except ApiError as error:
        if not error.already_exists:  # the name is taken, which is looked at last: the pod itself passed
            return judge(error, action, now)
    for volume in action.pod["spec"].get("volumes") or ():
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        missing = await _missing(client, action, claim, now, volume["name"]) if claim else None
        if missing is not None:
            return missing
    return Trial(action.generation, Verdict.ACCEPTED, now, Reason.VALID)


def judge(error: ApiError, action: TryPod, now: float) -> Trial:
    """Whether a refusal is the user's mistake, and what to say."""

    def refused(reason: Reason, message: str) -> Trial:
        return Trial(action.generation, Verdict.REFUSED, now, reason, message)

    def wait(reason: Reason, message: str) -> Trial:
        return Trial(action.generation, Verdict.WAIT, now, reason, message)

    said = _FORBIDDEN.sub("", error.message)
    if error.namespace_leaving or (error.not_found and _NO_NAMESPACE.search(error.message)):
        return wait(Reason.NAMESPACE_TERMINATING, "the namespace is being deleted: nothing starts in it any more")
    if error.temporary or _WEBHOOK.search(error.message):
        return wait(Reason.API_REFUSES, f"the API server does not take the pods now: {said or error}")
    if error.code in (400, 422):
        return refused(Reason.TEMPLATE_REFUSED, "; ".join(_blamed(error, action.pod)))
    if error.code == 403 and _POD_SECURITY in error.message:
        return refused(Reason.TEMPLATE_REFUSED, f"spec.template.spec: the namespace does not allow it: {said}")
    if error.code == 403 and _NO_PRIORITY_CLASS in error.message:
        named = action.pod["spec"].get("priorityClassName", "")
        message = f"spec.priorityClassName: there is no PriorityClass {named}; name one that exists, or create it"
        return refused(Reason.PRIORITY_CLASS_NOT_FOUND, message)
    return wait(Reason.API_REFUSES, f"the API server does not take the pods: {said or error}")


def template_path(path: str, pod: Mapping[str, Any]) -> str:
    """A field of the pod as a field of the TrainingJob. Items of lists that the operator adds to are called by name, since
    their index is another in the template."""
    named = _NAMED_ITEM.match(path)
    if named is not None:
        item = _at(pod, named["list"], int(named["index"]))
        if item is not None:
            path = f"{named['list']}[{item}]{path[named.end() :]}"
    return f"spec.template.{path}"


def _blamed(error: ApiError, pod: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each field."""
    causes = [cause for cause in error.causes if cause.field]
    for cause in causes[:_MOST_CAUSES]:
        yield f"{template_path(cause.field, pod)}: {cause.message}"
    if len(causes) > _MOST_CAUSES:
        yield f"and {len(causes) - _MOST_CAUSES} more"
    if causes:
        return
    unknown = [found["path"] for found in _UNKNOWN_FIELD.finditer(error.message)]
    for path in unknown[:_MOST_CAUSES]:
        yield f"{template_path(path, pod)}: there is no such field; look for a typing error, or leave it out"
    if not unknown:
        wrong = _WRONG_TYPE.search(error.message)
        yield f"{template_path(wrong['path'], pod) if wrong else 'spec.template'}: {error.message}"


async def _missing(client: KubeClient, action: TryPod, claim: str, now: float, volume: str) -> Trial | None:
    """The trial that ends with a claim that is not there."""
    namespace = action.pod["metadata"]["namespace"]
    try:
        await client.get(resources.CLAIMS, namespace, claim, attempts=1)
    except ApiError as error:
        if error.not_found:
            where = f"spec.template.spec.volumes[{volume}].persistentVolumeClaim.claimName"
            message = f"{where}: there is no PersistentVolumeClaim {claim} in namespace {namespace}; create it"
            return Trial(action.generation, Verdict.WAIT, now, Reason.VOLUME_NOT_FOUND, message)
        if error.temporary:
            return judge(error, action, now)
    return None


def _at(pod: Mapping[str, Any], path: str, index: int) -> str | None:
    """The name of an item of a list in the pod."""
    at: Any = pod
    for key, position in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        at = at.get(key) if isinstance(at, Mapping) else None
        if position:
            at = at[int(position)] if isinstance(at, list) and int(position) < len(at) else None
    item = at[index] if isinstance(at, list) and index < len(at) else None
    name = item.get("name") if isinstance(item, Mapping) else None
    return str(name) if name else None
