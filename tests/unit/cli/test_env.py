"""Every variable of a job's trainer container: the page, on records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import a_fabric, a_spec, annotated, fabrics, some_nodes
from trainyard.api.training_job import NetworkStatus, Reservation, TrainingJobStatus
from trainyard.cli.env import Seat, env_page, numbers, seats, settings_of
from trainyard.contract.network import PodNetwork, Resolved
from trainyard.render.env import environment
from trainyard.world.records import Job, Membership, Node, Pod, Running, World

ROCE = a_fabric(profile="roce", interface="eth0", env={"NCCL_IB_QPS_PER_CONNECTION": "4"})
UNLIKE = [
    annotated(some_nodes(1)[0], **{"trainyard.dev/hcas": "mlx5_0"}),
    *(annotated(node, **{"trainyard.dev/hcas": "mlx5_1"}) for node in some_nodes(2, first=1)),
]


def a_member(rank: int, node: str) -> Pod:
    membership = Membership("u", 2, 4 + rank, rank, node, "d")
    return Pod(
        "team", f"lm-{4 + rank}", f"p{rank}", 0.0, node, "Running", {}, trainer=Running(0.0), membership=membership
    )


def a_job(runs: bool = True, env: Mapping[str, str] | None = None, **spec: Any) -> Job:
    status = {"phase": "Running", "attempt": 2, "startedAt": "1970-01-01T00:00:00Z"} if runs else {"phase": "Pending"}
    asked = a_spec(nodes=3, env=env, **spec)
    return Job("team", "lm", "u", 1, "1", 0.0, asked, TrainingJobStatus.model_validate(status))


def a_page(job: Job, nodes: Sequence[Node] = UNLIKE, found: Mapping[int, PodNetwork] | None = None, **how: Any) -> str:
    world = World(nodes={node.name: node for node in nodes}, fabrics=fabrics(site=ROCE))
    members = [a_member(rank, node.name) for rank, node in enumerate(nodes)] if job.status.attempt else []
    seated = [Seat(s.rank, s.node, s.pod, (found or {}).get(s.rank)) for s in seats(job, members)]
    return env_page(job, settings_of(world, job, seated), seated, **how)


def test_each_variable_has_its_value_its_source_and_its_reason() -> None:
    page = a_page(a_job(env={"NCCL_ALGO": "Ring", "HF_HOME": "/hf"}, wishes={"NCCL_PROTO": "LL"}))
    assert page.startswith("team/lm: attempt 2, 3 nodes on site (roce)\n")
    assert "NCCL_IB_TC=106\n    derived: DSCP 26" in page
    assert "NCCL_IB_QPS_PER_CONNECTION=4\n    fabric: set by the Fabric object\n" in page
    assert "NCCL_PROTO=LL\n    job: set by spec.network.env\n" in page
    assert "NCCL_ALGO=Ring\n    template: set by the template's env\n" in page
    assert "HF_HOME=/hf\n    template: set by the template's env; no network library reads it\n" in page


def test_what_the_launcher_gives_as_torchrun_does_is_there_too() -> None:
    page = a_page(a_job())
    assert "  and, as torchrun gives them, GROUP_*, ROLE_* and TORCHELASTIC_*\n" in page
    assert "OMP_NUM_THREADS=1\n    pod: as torchrun sets it" in page
    assert "OMP_NUM_THREADS=4\n    template: " in a_page(a_job(env={"OMP_NUM_THREADS": "4"}))
    assert "OMP_NUM_THREADS" not in a_page(a_job(limits={"nvidia.com/gpu": 1}))


def test_what_the_network_adds_besides_variables_is_told() -> None:
    page = a_page(a_job())
    assert "\nBesides, the network adds to each pod: the capability IPC_LOCK\n" in page
    rack = [
        replace(node, nvlink_channels=True, labels={**node.labels, "nvidia.com/gpu.clique": "c"})
        for node in some_nodes(3, "gb300-4x", offers={"rdma/ib": 1, "nvidia.com/gpu": 8})
    ]
    world = World(nodes={node.name: node for node in rack})
    waits = a_job(runs=False)
    text = env_page(waits, settings_of(world, waits, []), [], width=1000)
    assert "rdma/ib: 1; the capability IPC_LOCK; a channel of the ComputeDomain lm-nvlink; the annotations " in text
    assert "Besides" not in a_page(a_job(limits={"cpu": 1}))


def test_ranks_that_differ_are_told_apart_and_one_rank_has_its_own() -> None:
    page = a_page(a_job())
    assert "NCCL_IB_HCA differs:\n  rank 0: =mlx5_0\n    derived: " in page
    assert "\n  ranks 1-2: =mlx5_1\n" in page
    assert "NCCL_IB_HCA==mlx5_1\n" in a_page(a_job(), rank=2)


def test_who_a_process_is_follows_from_its_node_rank() -> None:
    whole, one = a_page(a_job()), a_page(a_job(), rank=1)
    assert "RANK=0..23 LOCAL_RANK=0..7 WORLD_SIZE=24 LOCAL_WORLD_SIZE=8 MASTER_ADDR=lm-4.lm MASTER_PORT=29500" in whole
    assert "  RANK=8..15 LOCAL_RANK=0..7 WORLD_SIZE=24" in one
    with pytest.raises(ValueError, match="--rank 3: team/lm has node ranks 0 to 2"):
        a_page(a_job(), rank=3)


def test_what_a_pod_found_by_itself_is_among_them_with_its_warnings() -> None:
    found = PodNetwork(
        settings=(Resolved("NCCL_IB_GID_INDEX", "3", "the row of the RoCE v2 address"),), warnings=("slow",)
    )
    page = a_page(a_job(), found={0: found, 1: found})
    assert (
        "NCCL_IB_GID_INDEX differs:\n  ranks 0-1: 3\n    pod: the row of the RoCE v2 address\n  rank 2: (not set)"
        in page
    )
    assert "  - ranks 0-1: slow\n" in page


def test_what_libraries_go_on_by_is_among_the_warnings_of_a_job_that_runs() -> None:
    line = "GpuDirectOff: messages go through the host's memory (on all 3 nodes)"
    job = a_job()
    network = NetworkStatus(warnings=(line, "MTU: it is told by the pods"))
    page = a_page(job.with_status(job.status.but(network=network)))
    assert f"  - {line}\n" in page
    assert "MTU: it is" not in page


def test_warnings_stand_at_the_end_and_a_reserved_name_is_said_to_be_dropped() -> None:
    page = a_page(a_job(env={"NCCL_IB_TC": "26", "RANK": "7"}))
    assert "\nRANK=7" not in page
    warnings = page[page.index("Warnings:") :]
    assert "NCCL_IB_TC" in warnings
    assert "  - RANK is left out: who a process is" in warnings


def test_a_job_that_waits_is_shown_what_it_would_get() -> None:
    page = a_page(a_job(runs=False), some_nodes(2))
    assert page.startswith(
        "team/lm: has no nodes yet; as if it got 3 nodes of those most of which are on site (roce)\n"
    )
    assert "MASTER_ADDR=lm-0.lm" in page
    assert "NCCL_IB_TC=106" in page


def test_reserved_nodes_are_the_jobs_before_there_are_pods() -> None:
    reserved = Reservation(attempt=1, nodes=("n-1", "n-0"), deadline=0.0)
    job = a_job(runs=False)
    job = job.with_status(job.status.but(reservation=reserved))
    assert [(seat.rank, seat.node) for seat in seats(job, [])] == [(0, "n-1"), (1, "n-0")]


said = st.dictionaries(st.sampled_from(["NCCL_DEBUG", "NCCL_IB_HCA", "HOME", "RANK"]), st.sampled_from(["1", "x"]))


@given(said)
def test_the_page_of_a_rank_shows_exactly_what_its_pod_gets(env: Mapping[str, str]) -> None:
    job, world = a_job(env=env), World(nodes={n.name: n for n in UNLIKE}, fabrics=fabrics(site=ROCE))
    seated = seats(job, [a_member(rank, node.name) for rank, node in enumerate(UNLIKE)])
    settings = settings_of(world, job, seated)
    template = [{"name": name, "value": value} for name, value in env.items()]
    rendered = {f"{v['name']}={v['value']}" for v in environment(settings.on("n-1"), template) if "value" in v}
    lines = env_page(job, settings, seated, rank=1).splitlines()
    shown = {line for line in lines if "=" in line and not line.startswith(" ")}
    threads = set() if "OMP_NUM_THREADS" in env else {"OMP_NUM_THREADS=1"}  # the launcher's, when it starts processes
    assert shown == {line for line in rendered if not line.startswith("TRAINYARD_")} | threads


@given(st.sets(st.integers(0, 30), min_size=1))
def test_numbers_fold_without_loss(ranks: set[int]) -> None:
    folded: set[int] = set()
    for part in numbers(sorted(ranks)).split(","):
        first, _, last = part.partition("-")
        folded |= set(range(int(first), int(last or first) + 1))
    assert folded == ranks
