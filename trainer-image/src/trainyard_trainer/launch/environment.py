"""The environment of each worker: exactly what torchrun would give it, from the plan instead of from a rendezvous.

Names and values as in torch 2.14 (`elastic/agent/server/local_elastic_agent.py` and `run.py` in `torch/distributed`).
One difference is meant: TORCHELASTIC_USE_AGENT_STORE is False, since no agent holds a store here and rank 0 has to make it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.contract import env
from trainyard.contract.plan import Plan


def run_id(plan: Plan) -> str:
    """Unique to the attempt, so that whatever keys on it can never meet a worker of another one."""
    return f"{plan.uid}-{plan.attempt}"


def worker_environment(
    plan: Plan,
    node_rank: int,
    local_rank: int,
    inherited: Mapping[str, str],
    *,
    plan_path: str,
    stop_file: str,
    checkpoint_file: str,
    report_fd: int,
    network_file: str = "",
    network: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The whole environment of one worker: the pod's, with the worker's identity on top.

    stop_file: exists once a stop was asked. checkpoint_file: is replaced whenever a save was asked. report_fd: number of the
    pipe in the worker. network_file: what the pod found of its network. network: variables that followed from it, of which none
    is set to anything in `inherited`.
    """
    processes = plan.processes_per_node
    rank = node_rank * processes + local_rank
    ours = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": plan.world_size,
        "LOCAL_WORLD_SIZE": processes,
        "GROUP_RANK": node_rank,
        "GROUP_WORLD_SIZE": len(plan.members),
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": plan.world_size,
        "MASTER_ADDR": plan.master_address,
        "MASTER_PORT": plan.rendezvous_port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": run_id(plan),
        "TORCHELASTIC_USE_AGENT_STORE": False,
        env.PLAN: plan_path,
        env.STOP_FILE: stop_file,
        env.CHECKPOINT_FILE: checkpoint_file,
        env.REPORT_FD: report_fd,
        **({env.NETWORK_FILE: network_file} if network_file else {}),
    }
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if processes > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    return {**defaults, **inherited, **(network or {}), **{name: str(value) for name, value in ours.items()}}
