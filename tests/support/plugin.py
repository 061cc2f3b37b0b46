"""The real kubectl with `kubectl trainyard` on its path, and the jobs that its tests ask about."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from typing import Any

from support.nodes import Nodes
from trainyard.api import names
from trainyard_lab import kubectl
from trainyard_lab.controlplane import ControlPlane


def run(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl; it keeps its caches beside its configuration."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    environment = {"PATH": path, "KUBECONFIG": str(plane.kubeconfig), "HOME": str(plane.kubeconfig.parent)}
    return subprocess.run([kubectl.program(), *arguments], env=environment, capture_output=True, text=True, check=False)


def a_job(name: str, namespace: str, nodes: Nodes, count: int, **spec: Any) -> dict[str, Any]:
    """A job on so many of these nodes, a whole one for each member."""
    trainer = {
        "name": "trainer",
        "image": "pretended",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_JOB,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodes": count,
            "template": {"spec": {"nodeSelector": nodes.selector, "containers": [trainer]}},
            **spec,
        },
    }
