"""Raw JSON to the real API server, for tests that assert the state of the world."""

import asyncio
import json
import pprint
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aiohttp

Object = dict[str, Any]
Predicate = Callable[[Object], bool]

# Between two looks: at first this, later a twentieth of what was waited already, since every look costs the API server time.
POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 0.5
POLL_SHARE = 0.05
# How long a test waits for what should happen at once; generous, since nothing is slower for it where it does.
PATIENCE_SECONDS = 30.0
FIELD_MANAGER = "test"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Resource:
    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        root = "/api" if "/" not in self.api_version else "/apis"
        where = ["namespaces", namespace] if self.namespaced and namespace else []
        return "/".join([root, self.api_version, *where, self.plural, *filter(None, (name, subresource))])


RESOURCES: Mapping[str, Resource] = {
    "ClusterRole": Resource("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False),
    "ComputeDomain": Resource("resource.nvidia.com/v1beta1", "computedomains"),
    "ConfigMap": Resource("v1", "configmaps"),
    "CustomResourceDefinition": Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False),
    "Deployment": Resource("apps/v1", "deployments"),
    "DeviceClass": Resource("resource.k8s.io/v1", "deviceclasses", namespaced=False),
    "Event": Resource("v1", "events"),
    "Fabric": Resource("trainyard.dev/v1alpha1", "fabrics", namespaced=False),
    "Job": Resource("batch/v1", "jobs"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "LimitRange": Resource("v1", "limitranges"),
    "Namespace": Resource("v1", "namespaces", namespaced=False),
    "Node": Resource("v1", "nodes", namespaced=False),
    "PersistentVolumeClaim": Resource("v1", "persistentvolumeclaims"),
    "Pod": Resource("v1", "pods"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "PriorityClass": Resource("scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
    "ResourceClaim": Resource("resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": Resource("resource.k8s.io/v1", "resourceclaimtemplates"),
    "ResourceSlice": Resource("resource.k8s.io/v1", "resourceslices", namespaced=False),
    "ResourceQuota": Resource("v1", "resourcequotas"),
    "Role": Resource("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": Resource("v1", "secrets"),
    "Service": Resource("v1", "services"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "TrainingJob": Resource("trainyard.dev/v1alpha1", "trainingjobs"),
}


class ApiError(Exception):
    """The API server refused. `code` is the HTTP status, `reason` and `body` are those of its Status object."""

    def __init__(self, method: str, path: str, code: int, body: Object) -> None:
        super().__init__(f"{method} {path}: {code} {body.get('reason', '')}: {body.get('message', body)}")
        self.code = code
        self.reason = str(body.get("reason", ""))
        self.message = str(body.get("message", ""))
        self.body = body


class Api:
    """A client of one user. Kinds are written as in manifests: ``await api.get("Pod", "train-0", namespace)``."""

    def __init__(self, server: str, context: ssl.SSLContext, *, token: str | None = None) -> None:
        self.server = server
        self._context = context
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=100), headers=headers, raise_for_status=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call. Raises ApiError, except for a 429 that is over soon: a CRD that was just applied, or whose API
        server just started, is answered with "storage is (re)initializing" for a moment."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            async with self._session.request(
                method,
                self.server + path,
                json=body,
                params=query,
                headers={"Content-Type": content_type} if body is not None else {},
            ) as answer:
                text = await answer.text()
            # A path of an API group that is not there is answered in plain text.
            content: Object = json.loads(text) if text.startswith("{") else {"message": text.strip()}
            if answer.status < 400:
                return content
            error = ApiError(method, path, answer.status, content)
            initializing = error.code == 429 and "initializing" in error.message
            if not initializing or asyncio.get_running_loop().time() > deadline:
                raise error
            await asyncio.sleep(POLL_SECONDS)

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create from a manifest; the namespace is the manifest's."""
        query = {"dryRun": "All"} if dry_run else None
        return await self.request("POST", _path_of(body, named=False), body, query=query)

    async def apply(self, body: Object, *, manager: str = FIELD_MANAGER, subresource: str | None = None) -> Object:
        """Server-side apply, taking over fields that others own."""
        query = {"fieldManager": manager, "force": "true"}
        return await self.request("PATCH", _path_of(body, subresource), body, query=query, content_type=APPLY)

    async def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        return await self.request("GET", RESOURCES[kind].path(namespace, name))

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None if there is none of that name."""
        try:
            return await self.get(kind, name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str | None = None, *, labels: str | None = None) -> list[Object]:
        query = {"labelSelector": labels} if labels else None
        items: list[Object] = (await self.request("GET", RESOURCES[kind].path(namespace), query=query))["items"]
        return items

    async def patch(
        self, kind: str, name: str, namespace: str | None, body: Object, *, subresource: str | None = None
    ) -> Object:
        """Merge these fields into the object; None takes a field away."""
        path = RESOURCES[kind].path(namespace, name, subresource)
        return await self.request("PATCH", path, body, content_type=MERGE)

    async def annotate(
        self, kind: str, name: str, namespace: str | None, annotations: Mapping[str, str | None]
    ) -> Object:
        return await self.patch(kind, name, namespace, {"metadata": {"annotations": dict(annotations)}})

    async def delete(
        self, kind: str, name: str, namespace: str | None = None, *, grace_seconds: int | None = None
    ) -> None:
        """Ask for deletion; an object that is not there is not missed."""
        query = {"gracePeriodSeconds": str(grace_seconds)} if grace_seconds is not None else None
        try:
            await self.request("DELETE", RESOURCES[kind].path(namespace, name), query=query)
        except ApiError as error:
            if error.code != 404:
                raise

    async def wait_for(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        predicate: Predicate,
        *,
        seconds: float = PATIENCE_SECONDS,
    ) -> Object:
        """Wait until the object is there and the predicate holds; returns it as it is then."""

        async def look() -> Object | None:
            return await self.find(kind, name, namespace)

        found = await wait_until(
            look, lambda seen: seen is not None and predicate(seen), what=f"{kind} {name}", seconds=seconds
        )
        assert found is not None
        return found

    async def wait_gone(
        self, kind: str, name: str, namespace: str | None = None, *, seconds: float = PATIENCE_SECONDS
    ) -> None:
        async def look() -> Object | None:
            return await self.find(kind, name, namespace)

        await wait_until(look, lambda seen: seen is None, what=f"the end of {kind} {name}", seconds=seconds)

    async def as_service_account(self, name: str, namespace: str) -> "Api":
        """A client with the rights of this service account and no others; the caller closes it."""
        answer = await self.request(
            "POST",
            RESOURCES["ServiceAccount"].path(namespace, name, "token"),
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
        )
        # Only the authority is trusted here: a client certificate would outrank the token.
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=_authorities(self._context))
        return Api(self.server, context, token=answer["status"]["token"])


T = TypeVar("T")


async def wait_until(
    look: Callable[[], Awaitable[T]],
    predicate: Callable[[T], bool],
    *,
    what: str,
    seconds: float = PATIENCE_SECONDS,
) -> T:
    """Look again and again until the predicate holds; returns what was seen then.

    Fails with what was seen last, since that is what one wants to know.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        seen = await look()
        if predicate(seen):
            return seen
        waited = clock() - began
        if waited > seconds:
            raise AssertionError(f"waited {seconds:g} s for {what}; last seen:\n{pprint.pformat(seen, width=120)}")
        await asyncio.sleep(min(max(POLL_SECONDS, waited * POLL_SHARE), LONGEST_POLL_SECONDS))


def _path_of(body: Object, subresource: str | None = None, *, named: bool = True) -> str:
    metadata = body["metadata"]
    return RESOURCES[body["kind"]].path(
        metadata.get("namespace"), metadata["name"] if named else None, subresource if named else None
    )


def _authorities(context: ssl.SSLContext) -> str:
    return "".join(ssl.DER_cert_to_PEM_cert(authority) for authority in context.get_ca_certs(binary_form=True))
