"""A worker's environment is what torchrun would have given it, and the plan's word is the last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launching import a_plan
from trainyard_trainer.launch.environment import run_id, worker_environment

PATHS = {"plan_path": "/p/plan.json", "stop_file": "/s/stop", "checkpoint_file": "/s/checkpoint", "report_fd": 3}


def test_a_table_of_one_worker():
    plan = a_plan(procs=2, nodes=3, attempt=4)
    assert worker_environment(plan, 1, 1, {"HOME": "/home"}, **PATHS) == {
        "HOME": "/home",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "3",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "train-0.train",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "job-uid-4",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "TRAINYARD_PLAN": "/p/plan.json",
        "TRAINYARD_STOP_FILE": "/s/stop",
        "TRAINYARD_CHECKPOINT_FILE": "/s/checkpoint",
        "TRAINYARD_REPORT_FD": "3",
    }


def test_one_process_has_all_the_cores():
    assert "OMP_NUM_THREADS" not in worker_environment(a_plan(procs=1), 0, 0, {}, **PATHS)


@pytest.mark.parametrize(("name", "value"), [("OMP_NUM_THREADS", "7"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")])
def test_what_the_user_sets_wins(name, value):
    assert worker_environment(a_plan(procs=2), 0, 0, {name: value}, **PATHS)[name] == value


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TRAINYARD_STOP_FILE"])
def test_identity_is_the_plans_alone(name):
    assert worker_environment(a_plan(), 0, 0, {name: "mine"}, **PATHS)[name] != "mine"


@given(st.integers(1, 8), st.integers(1, 8))
def test_the_ranks_of_a_gang_are_all_and_each_once(procs, nodes):
    plan = a_plan(procs=procs, nodes=nodes)
    given_ranks = [
        int(worker_environment(plan, node, local, {}, **PATHS)["RANK"])
        for node in range(nodes)
        for local in range(procs)
    ]
    assert given_ranks == list(range(procs * nodes))


def test_attempts_never_share_a_run_id():
    assert run_id(a_plan(attempt=1)) != run_id(a_plan(attempt=2))
