"""A command that no launcher can carry out is answered before nodes are taken."""

from __future__ import annotations

from typing import Any

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason


def template(*command: str) -> dict[str, Any]:
    sidecar = {"name": "logs", "image": "fluent/fluent-bit"}
    return {
        "spec": {"containers": [sidecar, {"name": "trainer", "image": "pytorch/pytorch", "command": list(command)}]}
    }


def submit(*command: str) -> Pretend:
    cluster = Pretend().with_nodes()
    cluster.submit("train", 2, template=template(*command), processesPerNode=8, checkpoint={})
    cluster.tick(3)
    return cluster


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            ("torchrun", "--nproc-per-node", "4", "train.py"),
            "torchrun --nproc-per-node 4, but there are 8 processes on each node",
        ),
        (("python3", "-m", "torch.distributed.launch", "train.py"), "use torchrun, and read LOCAL_RANK"),
        (("torchrun", "--standalone"), "the following arguments are required: script"),
    ],
)
def test_what_torchrun_cannot_be_asked_here_is_refused(command: tuple[str, ...], why: str) -> None:
    cluster = submit(*command)
    status = cluster.status("train")
    accepted = next(c for c in status.conditions if c.type == "Accepted")
    assert (status.phase, accepted.status, accepted.reason) == ("Failed", "False", Reason.TEMPLATE_REFUSED)
    assert accepted.message.startswith("spec.template.spec.containers[1].command: ")
    assert why in accepted.message
    assert not cluster.pods


def test_what_torchrun_can_be_asked_starts() -> None:
    cluster = submit("torchrun", "--nproc-per-node=8", "--rdzv-backend", "c10d", "train.py", "--lr", "0.1")
    assert cluster.status("train").attempt == 1
