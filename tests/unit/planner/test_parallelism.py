"""What a job says of its mesh, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rendering import a_job
from trainyard.api.names import LABEL_GPU_PRODUCT
from trainyard.api.training_job import TrainingJobSpec
from trainyard.planner.links import links_of
from trainyard.planner.machines import accelerator_of
from trainyard.planner.mesh import Site
from trainyard.planner.parallelism import estimate, mesh_of, misfit, model_of_job, traffic_of
from trainyard.planner.traffic import Mesh, traffic
from trainyard.topology.tree import Tree

OWN = {"image": "mine/lm:3", "command": ["python", "mine.py"]}


def a_spec(container: dict[str, Any] | None = None, **spec: Any) -> TrainingJobSpec:
    job = a_job(container=container, processesPerNode=2, **spec)
    assert job.spec is not None
    return job.spec


def a_site(nodes: int = 4, accelerator: str = "") -> Site:
    tree = Tree((), {f"n{n}": () for n in range(nodes)})
    return Site(links_of(None, ()), tree, tuple(tree.paths), 2, accelerator_of({LABEL_GPU_PRODUCT: accelerator}))


@pytest.mark.parametrize(
    ("wanted", "mesh"),
    [
        (None, Mesh(shard=8)),
        ({"shard": 2}, Mesh(replicate=4, shard=2)),
        ({"replicate": 2}, Mesh(replicate=2, shard=4)),
        ({"replicate": 8}, Mesh(replicate=8, shard=1)),
        ({"shard": 4, "replicate": 2}, Mesh(replicate=2, shard=4)),
        ({"shard": 8, "replicate": "auto"}, Mesh(shard=8)),
        ({"tensor": 2, "shard": "auto", "replicate": 1}, Mesh(shard=4, tensor=2)),
        ({"tensor": 2, "pipeline": 2, "replicate": 2}, Mesh(pipeline=2, replicate=2, shard=1, tensor=2)),
    ],
)
def test_what_is_said_counts_and_the_other_axis_follows(wanted: dict[str, object] | None, mesh: Mesh) -> None:
    spec = a_spec(parallelism=wanted)
    assert mesh_of(spec, a_site()) == mesh
    assert traffic_of(spec, 4) == traffic(model_of_job(spec), mesh)  # type: ignore[arg-type]


def test_with_both_auto_a_slow_network_gets_copies_within_its_nodes() -> None:
    """8 processes on 4 nodes of 10 Gb/s, 8 micro-batches: weights are gathered within a node, gradients summed up across. With
    ten layers less a process has room for all of them, and gathers nothing."""
    trainer = {"model": {"preset": "large", "layers": 34}, "data": {"globalBatch": 64, "microBatch": 1}}
    spec = a_spec(parallelism={}, trainer=trainer)
    assert mesh_of(spec, a_site(accelerator="A10")) == Mesh(replicate=4, shard=2)
    whole = a_spec(parallelism={}, trainer={**trainer, "model": {"preset": "large"}})
    assert mesh_of(whole, a_site(accelerator="A10")) == Mesh(replicate=8, shard=1)
    assert mesh_of(a_spec(trainer=trainer), a_site(accelerator="A10")) == Mesh(shard=8)
    assert traffic_of(spec, 4) == ()


def test_tensor_groups_are_the_planners_where_it_is_let() -> None:
    """On 10 Gb/s between nodes of two, a model of 32 layers is no longer gathered over all of them."""
    trainer = {"model": {"preset": "7b"}, "precision": "bfloat16", "data": {"globalBatch": 64, "microBatch": 1}}
    chosen = mesh_of(
        a_spec(parallelism={"tensor": "auto", "pipeline": "auto"}, trainer=trainer), a_site(accelerator="H200")
    )
    left_out = mesh_of(a_spec(parallelism={}, trainer=trainer), a_site(accelerator="H200"))
    assert chosen.world == left_out.world == 8
    assert chosen.tensor * chosen.pipeline > 1
    assert left_out.tensor * left_out.pipeline == 1


def test_a_gang_that_runs_smaller_keeps_as_much_of_its_mesh_as_divides() -> None:
    wanted = {"tensor": 2, "pipeline": 4, "replicate": 1}
    assert mesh_of(a_spec(parallelism=wanted), a_site(nodes=4)) == Mesh(pipeline=4, shard=1, tensor=2)
    assert mesh_of(a_spec(parallelism=wanted), a_site(nodes=3)) == Mesh(pipeline=1, shard=3, tensor=2)


def test_a_model_that_does_not_fit_is_told_in_numbers_with_the_mesh_that_needs_least() -> None:
    """16 bytes a parameter over eight processes of 80 GiB: 7 billion parameters fit, 28 billion do not."""
    trainer = {"model": {"preset": "7b"}, "precision": "bfloat16", "data": {"sequenceLength": 2048, "microBatch": 1}}
    assert misfit(a_spec(trainer=trainer), a_site(nodes=4, accelerator="H100")) == ""
    larger = {**trainer, "model": {"preset": "7b", "layers": 128}}
    said = misfit(a_spec(trainer=larger), a_site(nodes=4, accelerator="H100"))
    assert said.startswith("spec.parallelism: with shard 8 a process needs ")
    assert "of an accelerator's 77.3 usable GB: weights 14 GB, gradients " in said
    assert said.endswith("; pipeline 4 x shard 1 x tensor 2 needs 87.3 GB, use more nodes or a smaller microBatch")
    assert misfit(a_spec(trainer=larger), a_site(nodes=4)) == ""


def test_a_model_that_fits_nowhere_is_spread_as_far_as_it_goes() -> None:
    spec = a_spec(parallelism={}, trainer={"model": {"preset": "7b", "layers": 512}})
    assert mesh_of(spec, a_site(accelerator="A10")) == Mesh(shard=8)


def test_of_ones_own_script_no_model_is_known() -> None:
    spec = a_spec(OWN, parallelism={})
    assert model_of_job(spec) is None
    assert mesh_of(spec, a_site()) == Mesh(shard=8)
    assert traffic_of(spec, 4) == ()
    assert mesh_of(a_spec(OWN, parallelism={"shard": 2}), a_site()) == Mesh(replicate=4, shard=2)
    found = estimate(spec, a_site())
    assert (found.compute_seconds, found.summary.communication_share) == (None, None)
    assert found.summary.bus_bandwidth > 0


def test_an_estimate_says_how_much_of_a_step_is_communication() -> None:
    found = estimate(a_spec(trainer={"model": {"preset": "large"}}), a_site(accelerator="H200"))
    assert found.mesh == Mesh(shard=8)
    assert found.compute_seconds is not None
    share = found.summary.communication_share
    assert share is not None
    assert 0.0 < share < 1.0
    assert found.summary.bottleneck == "node"


@given(st.integers(1, 12), st.integers(1, 64), st.sampled_from(["shard", "replicate"]))
def test_a_gang_that_runs_smaller_has_a_mesh_all_the_same(nodes: int, size: int, axis: str) -> None:
    mesh = mesh_of(a_spec(parallelism={axis: size}), a_site(nodes))
    assert mesh.world == 2 * nodes
    if 2 * nodes % size == 0:
        assert getattr(mesh, axis) == size
