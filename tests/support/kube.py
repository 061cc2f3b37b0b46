"""The operator's own client and mirror beside the real API server, and a job to act for."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.api import Api, Object
from trainyard.api import names
from trainyard.kube.client import KubeClient
from trainyard.kube.mirror import Mirror
from trainyard.world.records import Marks

SYNC_SECONDS = 30


@asynccontextmanager
async def a_client(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_kubeconfig(kubeconfig) as made:
        yield made


@asynccontextmanager
async def a_mirror(client: KubeClient, marks: Marks | None = None) -> AsyncIterator[Mirror]:
    """A mirror that has read everything, and must not end by itself. marks: as the operator's settings have them."""
    made = Mirror(client, marks=marks)
    task = asyncio.create_task(made.run())
    try:
        await asyncio.wait_for(made.wait_synced(), SYNC_SECONDS)
        yield made
        assert not task.done(), f"the mirror ended: {task}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def a_job(api: Api, namespace: str, name: str = "train") -> Object:
    """The smallest TrainingJob; nobody acts on it but the test."""
    container = {"name": "trainer", "image": "pretended", "command": ["train"]}
    return await api.create(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND_JOB,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"nodes": 1, "template": {"spec": {"containers": [container]}}},
        }
    )


def owned_by(job: Object) -> list[Object]:
    """ownerReferences of what this job makes."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND_JOB, "controller": True}
    return [{**owner, "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}]


def as_member(pod: Object, job: Object, *, member: int = 0, rank: int = 0, attempt: int = 1) -> Object:
    """The pod as one of the job's gang."""
    labels: Mapping[str, Any] = {
        names.LABEL_JOB_UID: job["metadata"]["uid"],
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_MEMBER: str(member),
        names.LABEL_RANK: str(rank),
    }
    return {**pod, "metadata": {**pod["metadata"], "labels": labels, "ownerReferences": owned_by(job)}}
