"""The kinds of objects that Trainyard touches, and where the API server keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainyard.api import names


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API server's paths say it. api_version: `v1`, or `group/version`."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of an object, of a namespace's objects, or of all."""
        root = "/api" if "/" not in self.api_version else "/apis"
        where = ("namespaces", namespace) if self.namespaced and namespace else ()
        parts = (root, self.api_version, *where, self.plural, name, subresource)
        return "/".join(part for part in parts if part)


NODES: Final = Resource("v1", "nodes", namespaced=False)
NAMESPACES: Final = Resource("v1", "namespaces", namespaced=False)
PODS: Final = Resource("v1", "pods")
SERVICES: Final = Resource("v1", "services")
CONFIG_MAPS: Final = Resource("v1", "configmaps")
SECRETS: Final = Resource("v1", "secrets")
CLAIMS: Final = Resource("v1", "persistentvolumeclaims")
EVENTS: Final = Resource("events.k8s.io/v1", "events")
LEASES: Final = Resource("coordination.k8s.io/v1", "leases")
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io/v1", "priorityclasses", namespaced=False)
COMPUTE_DOMAINS: Final = Resource(names.COMPUTE_DOMAINS, "computedomains")
RESOURCE_SLICES: Final = Resource("resource.k8s.io/v1", "resourceslices", namespaced=False)
JOBS: Final = Resource(names.API_VERSION, names.JOBS)
FABRICS: Final = Resource(names.API_VERSION, names.FABRICS, namespaced=False)

_BY_KIND: Final[Mapping[tuple[str, str], Resource]] = {
    ("v1", "Pod"): PODS,
    ("v1", "Service"): SERVICES,
    ("v1", "ConfigMap"): CONFIG_MAPS,
    ("v1", "Secret"): SECRETS,
    (names.API_VERSION, names.KIND_JOB): JOBS,
    (names.COMPUTE_DOMAINS, names.KIND_COMPUTE_DOMAIN): COMPUTE_DOMAINS,
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Where a manifest's object is kept; KeyError for a kind that Trainyard never makes."""
    return _BY_KIND[str(manifest["apiVersion"]), str(manifest["kind"])]
