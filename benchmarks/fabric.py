"""Jobs on the lab's emulated fabric, one after another, and what their rank 0 wrote.

The lab is one for the machine: one that is up is used and left up, else it is taken down in the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from trainyard_lab import __main__ as lab_commands
from trainyard_lab import cluster, kubectl
from trainyard_lab.api import Api
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.demo import jobs
from trainyard_lab.demo.__main__ import operator_image
from trainyard_lab.demo.install import install
from trainyard_lab.demo.observe import Pod, look
from trainyard_lab.layout import Lab

NAMESPACE: Final = "benchmark"
LOOK_SECONDS: Final = 0.5
DELETION_SECONDS: Final = 180.0


class CannotRun(Exception):
    """There is no lab here, or a job on it did not come to its end; the message says why."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that succeeded. nodes: in rank order; log: of rank 0; status: of the job, as the API server had it."""

    nodes: tuple[str, ...]
    log: str
    status: Mapping[str, Any]


class Bench:
    """The lab with the chart installed and an empty namespace."""

    def __init__(self, lab: Lab, plane: ControlPlane) -> None:
        self.lab, self.api = lab, Api(plane)
        self._plane = plane

    def run(self, job: jobs.Object, within_seconds: float) -> Ran:
        """Run a job to its good end."""
        name = job["metadata"]["name"]
        path = f"/apis/trainyard.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
        self.api.create(path, {**job, "metadata": {**job["metadata"], "namespace": NAMESPACE}})
        members, status = self._ended(name, within_seconds)
        log = self._kubectl("logs", "--namespace", NAMESPACE, members[0].name)
        self.api.delete(f"{path}/{name}")
        return Ran(tuple(pod.node for pod in members), log, status)

    def _ended(self, name: str, within_seconds: float) -> tuple[tuple[Pod, ...], Mapping[str, Any]]:
        deadline = time.monotonic() + within_seconds
        while True:
            seen = look(self.api, NAMESPACE, time.time())
            found = seen.jobs.get(name)
            if found is not None and found.phase == "Succeeded":
                return seen.members(name), found.status
            if found is not None and found.phase == "Failed":
                raise CannotRun(f"{name} failed: {found.status.get('lastFailure')}")
            if time.monotonic() > deadline:
                stands = f"{found.phase} {found.waits}" if found is not None else "not there"
                raise CannotRun(f"{name} was not done within {within_seconds:.0f} s; it is {stands}")
            time.sleep(LOOK_SECONDS)

    def fresh(self) -> None:
        """An empty namespace, whatever an earlier run left."""
        self.clear()
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.api.create("/api/v1/namespaces", namespace)
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "checkpoints", "namespace": NAMESPACE},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        self.api.create(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", claim)

    def clear(self) -> None:
        """The namespace, gone."""
        path = f"/api/v1/namespaces/{NAMESPACE}"
        self.api.delete(path)
        deadline = time.monotonic() + DELETION_SECONDS
        while self.api.find(path) is not None:
            if time.monotonic() > deadline:
                raise CannotRun(f"namespace {NAMESPACE} of an earlier run does not go away")
            time.sleep(LOOK_SECONDS)

    def _kubectl(self, *arguments: str) -> str:
        words = [str(kubectl.program()), "--kubeconfig", str(self._plane.kubeconfig), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise CannotRun(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


@contextmanager
def bench() -> Iterator[Bench]:
    """CannotRun where this machine can hold no lab."""
    if os.geteuid() != 0:
        raise CannotRun("the lab needs root: it makes network namespaces and mounts")
    lab = Lab()
    was_there = lab.run.exists()
    with _to_stderr():
        lab_commands.up(lab)
        plane = lab_commands.control_plane(lab)
        install(plane, jobs.CHART, operator_image(lab))
        cluster.apply_fabric(lab, Api(plane))
    here = Bench(lab, plane)
    here.fresh()
    try:
        yield here
    finally:
        here.clear()
        if not was_there:
            with _to_stderr():
                lab_commands.down(lab)


@contextmanager
def _to_stderr() -> Iterator[None]:
    """What the lab says of its progress is no figure."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
