"""Somebody's own image on real kubelets: Python in it, torch that the nodes have, and nothing of Trainyard."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.api import Api
from support.site import Site
from trainyard_lab import images
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.layout import Lab

pytestmark = pytest.mark.timeout(600)

STEPS = 40
SCRIPT = Path(__file__).resolve().parents[2] / "trainer-image" / "examples" / "ddp.py"


async def test_a_torchrun_job_in_an_image_without_trainyard_trains_reports_and_saves(
    lab: Lab, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    site = await Site.made(lab, control_plane, api, namespace)
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script", "namespace": namespace}}
    text = SCRIPT.read_text().replace("STEPS = 1000", f"STEPS = {STEPS}")
    await api.create({**script, "data": {"train.py": text}})
    container = {
        "name": "trainer",
        "image": images.BARE_IMAGE,
        "command": ["python3", "-m", "torch.distributed.run", "--nnodes=2", "/script/train.py"],
        "volumeMounts": [
            {"name": "checkpoints", "mountPath": "/checkpoints"},
            {"name": "script", "mountPath": "/script"},
        ],
    }
    volumes = [
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        {"name": "script", "configMap": {"name": "script"}},
    ]
    await site.apply(
        {
            "apiVersion": "trainyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "foreign"},
            "spec": {
                "nodes": 2,
                "checkpoint": {"volume": "checkpoints"},
                "network": {"preflight": False},  # how fast the emulated links are on a busy machine is not its subject
                "template": {"spec": {"containers": [container], "volumes": volumes}},
            },
        }
    )
    status = await site.until("foreign", lambda s: s.get("phase") in ("Succeeded", "Failed"))
    assert status["phase"] == "Succeeded", (
        status,
        [site.log(pod["metadata"]["name"]) for pod in await site.members("foreign", 1)],
    )
    assert (status["progress"]["step"], status["checkpoint"]["step"]) == (STEPS, STEPS)
    (pod, _) = await site.members("foreign", 1)
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["trainyard-launcher"]
