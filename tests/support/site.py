"""The lab of real kubelets with the chart installed, as a test of real jobs wants it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from support.api import Api, Object
from trainyard_lab import cluster, kubectl
from trainyard_lab.api import Api as LabApi
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.demo import jobs
from trainyard_lab.demo.__main__ import operator_image
from trainyard_lab.demo.install import install
from trainyard_lab.layout import Lab

PATIENCE = 240.0


@dataclass(slots=True)
class Site:
    """The lab with the chart and the Fabric, and a namespace with a claim for checkpoints."""

    lab: Lab
    plane: ControlPlane
    api: Api
    namespace: str

    @classmethod
    async def made(cls, lab: Lab, plane: ControlPlane, api: Api, namespace: str) -> Self:
        """Install what is not there yet."""
        install(plane, jobs.CHART, operator_image(lab))
        cluster.apply_fabric(lab, LabApi(plane))
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "checkpoints", "namespace": namespace},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        await api.create(claim)
        return cls(lab, plane, api, namespace)

    async def apply(self, job: Object) -> None:
        """Create a job here."""
        job["metadata"]["namespace"] = self.namespace
        await self.api.create(job)

    async def until(self, name: str, what: Callable[[Object], bool], seconds: float = PATIENCE) -> Object:
        """Wait until something holds of a job's status."""
        job = await self.api.wait_for(
            "TrainingJob", name, self.namespace, lambda job: what(job.get("status", {})), seconds=seconds
        )
        status: Object = job["status"]
        return status

    async def members(self, name: str, attempt: int) -> list[Object]:
        """The pods of an attempt in rank order."""
        labels = f"trainyard.dev/job={name},trainyard.dev/attempt={attempt}"
        pods = await self.api.list("Pod", self.namespace, labels=labels)
        return sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["trainyard.dev/node-rank"]))

    def log(self, pod: str) -> str:
        """What its trainer wrote."""
        words: list[Any] = [kubectl.program(), "--kubeconfig", self.plane.kubeconfig, "logs", "-n", self.namespace, pod]
        return subprocess.run([*words, "-c", "trainer"], check=True, capture_output=True, text=True, timeout=60).stdout
