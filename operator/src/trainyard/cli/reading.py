"""The cluster as a world, read once with the rights of whoever calls.

What only the operator knows is missing: what launchers answered, and what the API server said of pods that were tried.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from trainyard.api import names
from trainyard.kube import decode, resources
from trainyard.kube.client import KubeClient, Object
from trainyard.kube.errors import ApiError
from trainyard.kube.shapes import CustomShape, NamespaceShape, NodeShape, PodShape, PriorityClassShape, Shape
from trainyard.kube.slices import read_places
from trainyard.world.records import Job, Pod, World

_NODE: Final = Shape(NodeShape)
_POD: Final = Shape(PodShape)
_OWN: Final = Shape(CustomShape)
_CLASS: Final = Shape(PriorityClassShape)
_NAMESPACE: Final = Shape(NamespaceShape)

T = TypeVar("T")


async def read_yard(client: KubeClient) -> World:
    """Nodes with what is on them, and their network: what places are made of."""
    nodes = [decode.node(_NODE.one.validate_python(raw)) for raw in await every(client, resources.NODES)]
    pods = [decode.pod(_POD.one.validate_python(raw)) for raw in await every(client, resources.PODS)]
    fabrics = _those_that_make_sense(await every(client, resources.FABRICS), decode.fabric)
    return World(
        nodes=await read_places(client, {node.name: node for node in nodes}),
        pods={pod.uid: pod for pod in pods if pod is not None},
        fabrics={fabric.name: fabric for fabric in fabrics},
    )


async def read_world(client: KubeClient, namespace: str) -> World:
    """All that the queue is decided by. namespace: the one that the question is about; whether others are being deleted is not
    asked. ApiError where it does not exist."""
    yard = await read_yard(client)
    jobs = [decode.job(_OWN.one.validate_python(raw)) for raw in await every(client, resources.JOBS)]
    classes = [
        decode.priority_class(_CLASS.one.validate_python(raw))
        for raw in await every(client, resources.PRIORITY_CLASSES)
    ]
    leaving = await _leaving(client, namespace)
    return World(
        nodes=yard.nodes,
        pods=yard.pods,
        fabrics=yard.fabrics,
        jobs={job.uid: job for job in jobs},
        priority_classes={one.name: one for one in classes},
        leaving=frozenset({namespace} if leaving else ()),
    )


async def read_job(client: KubeClient, namespace: str, name: str) -> tuple[Job, Sequence[Pod]]:
    """A job, and its pods of any attempt."""
    raw = await client.get(resources.JOBS, namespace, name)
    job = decode.job(_OWN.one.validate_python(raw))
    members = await every(client, resources.PODS, namespace, f"{names.LABEL_JOB_UID}={job.uid}")
    pods = (decode.pod(_POD.one.validate_python(member)) for member in members)
    return job, [pod for pod in pods if pod is not None]


async def every(
    client: KubeClient, resource: resources.Resource, namespace: str | None = None, labels: str = ""
) -> list[Object]:
    """All objects of a kind, in one namespace or in all."""
    items: list[Object] = json.loads(await client.list_page(resource, namespace=namespace, labels=labels))["items"]
    return items


def namespace_of(kubeconfig: Path | None, context: str | None = None) -> str:
    """The namespace of a context, None for the current one, as kubectl finds it: the first file that names a current context
    counts."""
    usual = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [kubeconfig] if kubeconfig else [Path(path) for path in usual.split(os.pathsep) if path]
    read = [yaml.safe_load(file.read_text()) or {} for file in files if file.exists()]
    current = context or next((config["current-context"] for config in read if config.get("current-context")), "")
    contexts = [context for config in read for context in config.get("contexts") or () if context["name"] == current]
    return next((c["context"]["namespace"] for c in contexts if c["context"].get("namespace")), "default")


async def _leaving(client: KubeClient, namespace: str) -> bool:
    """Whether a namespace is being deleted. Who may not read it is taken to ask of one that is not."""
    try:
        raw = await client.get(resources.NAMESPACES, None, namespace)
    except ApiError as error:
        if error.code == 403:
            return False
        raise
    return decode.leaving_namespace(_NAMESPACE.one.validate_python(raw)) is not None


def _those_that_make_sense(raw: Sequence[Object], decoded: Callable[[Any], T]) -> list[T]:
    """The operator passes over a Fabric that makes no sense, and so does the command."""
    found = []
    for one in raw:
        try:
            found.append(decoded(_OWN.one.validate_python(one)))
        except (KeyError, ValueError):
            continue
    return found
