"""How a rank starts, whatever it then trains: it meets the others, the nodes are proved, and the mesh of the plan is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from trainyard.contract.plan import PROCESS_GROUP_TIMEOUT_SECONDS, Plan

from trainyard_trainer.configuration import local_environment
from trainyard_trainer.parallel.mesh import build, dimensions
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.preflight.gang import prove
from trainyard_trainer.report import Reporter


def joined(
    plan: Plan | None,
    environment: Mapping[str, str],
    device: torch.device,
    stop_asked: Callable[[], bool],
    *,
    meets: bool = True,
) -> DeviceMesh:
    """The process mesh, once all ranks are there. plan: None outside a cluster. meets: False where there is a process group.

    Raises rendezvous.StoppedEarly where a stop was asked before all had come, BadConfiguration for a mesh that cannot be,
    preflight.gang.PreflightFailed where the plan asks for a preflight and these nodes fail it; no group that was made here is
    left behind then.
    """
    rank, ranks, _, _ = local_environment(environment)
    axes = plan.mesh if plan else ()
    if meets:
        dimensions(axes, ranks)  # before they meet: a rank refused afterwards would be to the others one that died
        met(plan, environment, device, stop_asked)
    try:
        if plan is not None:
            prove(plan, device, Reporter.from_environment(rank), environment)
        return build(axes, dist.get_world_size(), device.type)
    except BaseException:
        if meets:
            dist.destroy_process_group()
        raise


def met(
    plan: Plan | None, environment: Mapping[str, str], device: torch.device, stop_asked: Callable[[], bool]
) -> None:
    """Make the process group of all ranks, with the plan's timeout. Raises what `meet` does."""
    rank, ranks, _, _ = local_environment(environment)
    timeout_seconds = plan.process_group_timeout_seconds if plan else PROCESS_GROUP_TIMEOUT_SECONDS
    meet(Place.of(environment, rank, ranks), device, timeout_seconds, stop_asked)
