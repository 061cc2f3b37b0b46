"""Bytes of a step by class: what the published formulas say, and sums that hold for every mesh."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.trainer import TrainerConfig
from trainyard.planner.collectives import Collective
from trainyard.planner.model import Model, model_of
from trainyard.planner.traffic import Bytes, Mesh, Traffic, traffic


def a_model(
    preset: str = "7b", precision: str = "bfloat16", parallel: dict[str, object] | None = None, **data: int
) -> Model:
    given = {"sequenceLength": 4096, "globalBatch": 64, "microBatch": 1, **data}
    config = {"model": {"preset": preset}, "precision": precision, "data": given, "parallel": parallel or {}}
    return model_of(TrainerConfig.model_validate(config))


def sent(entries: tuple[Traffic, ...], kind: Bytes, *collectives: Collective) -> float:
    """Bytes of all collectives of a class in a step, whole buffers."""
    return sum(
        e.bytes * e.count for e in entries if e.kind is kind and (not collectives or e.collective in collectives)
    )


def test_a_sharded_step_gathers_the_weights_twice_and_sums_the_gradients_once() -> None:
    model = a_model()
    step = traffic(model, Mesh(shard=64))
    filled_up = 2 * (320 - 260) * model.width  # the vocabulary's 260 rows are no multiple of 64, twice
    assert {e.axis for e in step} == {"shard", "gang"}
    assert sent(step, Bytes.PARAMETERS) == pytest.approx(2 * (model.parameters + filled_up) * 2)
    assert sent(step, Bytes.GRADIENTS) == pytest.approx((model.parameters + filled_up) * 4)


def test_a_small_model_stays_gathered_and_sends_a_third_less() -> None:
    model = a_model("small-lm", "float32")
    step = traffic(model, Mesh(shard=4))
    assert sent(step, Bytes.PARAMETERS) == pytest.approx(
        model.parameters * 4 * 16
    )  # 64 samples over 4 ranks, one at a time
    assert sent(
        traffic(a_model("small-lm", "float32", microBatch=16), Mesh(shard=4)), Bytes.PARAMETERS
    ) == pytest.approx(model.parameters * 4)


def test_replicas_sum_up_what_each_process_has_of_the_gradients() -> None:
    model = a_model()
    hybrid, plain = traffic(model, Mesh(replicate=8, shard=8)), traffic(model, Mesh(replicate=64))
    reduced = {e.axis: e.bytes * e.count for e in hybrid if e.collective is Collective.ALL_REDUCE}
    assert reduced["replicate"] == pytest.approx((model.parameters + 2 * 4 * model.width) * 4 / 8)  # 264 rows of 260
    assert sent(plain, Bytes.GRADIENTS) == pytest.approx(model.parameters * 4)
    assert sent(plain, Bytes.PARAMETERS) == 0


def test_tensor_parallel_sends_four_all_reduces_of_activations_a_layer() -> None:
    model = a_model(globalBatch=8)
    step = traffic(model, Mesh(shard=8, tensor=8))
    activations = 4096 * model.width * 2
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        assert sent(step, Bytes.ACTIVATIONS, collective) == pytest.approx((4 * model.layers + 2) * activations)


def test_a_pipeline_hands_on_activations_and_gets_their_gradients() -> None:
    model = a_model()
    step = traffic(model, Mesh(pipeline=4, shard=2, tensor=2))
    handed = [e for e in step if e.axis == "pipeline"]
    assert [(e.collective, e.size, e.stride, e.count) for e in handed] == [(Collective.SEND_RECEIVE, 4, 4, 2 * 32)]
    assert handed[0].bytes == 4096 * model.width * 2 / 2


def test_a_checkpoint_is_twelve_bytes_a_parameter_shared_by_all() -> None:
    model = a_model()
    saved = [e for e in traffic(model, Mesh(shard=64), steps_between_saves=100) if e.kind is Bytes.STATE]
    assert [(e.bytes * 64, e.count) for e in saved] == [(pytest.approx(12 * model.parameters), 0.01)]


def test_the_axes_are_row_major_with_the_busiest_last() -> None:
    mesh = Mesh(pipeline=2, replicate=3, shard=4, tensor=5)
    assert mesh.axes == (("pipeline", 2), ("replicate", 3), ("shard", 4), ("tensor", 5))
    assert [mesh.stride(axis) for axis, _ in mesh.axes] == [60, 20, 5, 1]
    assert (mesh.world, mesh.data_parallel) == (120, 12)
    assert Mesh(replicate=8).axes == (("replicate", 8), ("shard", 1))


powers = st.sampled_from([1, 2, 4, 8])
meshes = st.builds(Mesh, powers, powers, powers, powers)


@given(meshes)
def test_groups_of_every_axis_cover_the_processes_once(mesh: Mesh) -> None:
    for entry in traffic(a_model(), mesh):
        ranks = [
            block + inner + n * entry.stride
            for block in range(0, mesh.world, entry.size * entry.stride)
            for inner in range(entry.stride)
            for n in range(entry.size)
        ]
        assert sorted(ranks) == list(range(mesh.world))


@given(meshes)
def test_all_processes_together_sum_up_every_gradient(mesh: Mesh) -> None:
    """A process that is left with 1/shard of its part has all of it in its shard group, and all parts are the model, with the
    scales of norms once for each tensor rank and what fills up the rows of the vocabulary."""
    model = a_model()
    step = traffic(model, mesh)
    scattered = sent(step, Bytes.GRADIENTS, Collective.REDUCE_SCATTER)
    reduced = sum(e.bytes * e.count for e in step if e.axis == "replicate")
    parts = mesh.tensor * mesh.pipeline
    least = (model.parameters + (2 * model.layers + 1) * model.width * (mesh.tensor - 1)) * 4
    if mesh.shard > 1:
        assert least - 1 <= scattered * parts <= least * 1.001
    if mesh.replicate > 1:
        assert least - 1 <= reduced * parts * mesh.shard <= least * 1.001


def test_with_several_stages_a_rank_each_of_them_hands_on() -> None:
    model = a_model(globalBatch=8, parallel={"schedule": "interleaved", "stagesPerRank": 3})
    counts = [
        sum(e.count for e in traffic(model, Mesh(pipeline=4, shard=1), stage=stage) if e.axis == "pipeline")
        for stage in range(4)
    ]
    assert counts == [5 * 8, 6 * 8, 6 * 8, 5 * 8]


schedules = st.sampled_from([{}, {"schedule": "interleaved", "stagesPerRank": 4}, {"schedule": "zero-bubble"}])


@given(meshes, st.sampled_from(["7b", "tiny"]), schedules)
def test_the_mean_over_the_stages_is_the_mean_of_the_stages(
    mesh: Mesh, preset: str, schedule: dict[str, object]
) -> None:
    model = a_model(preset, globalBatch=512, parallel=schedule)
    stages = [traffic(model, mesh, stage=stage) for stage in range(mesh.pipeline)]
    for axis in ("shard", "replicate", "tensor"):
        each = [sum(e.bytes * e.count for e in step if e.axis == axis) for step in stages]
        mean = sum(e.bytes * e.count for e in traffic(model, mesh) if e.axis == axis)
        assert mean == pytest.approx(sum(each) / len(each))
    sends = sum(e.bytes * e.count for step in stages for e in step if e.axis == "pipeline")
    assert sum(e.bytes * e.count for e in traffic(model, mesh) if e.axis == "pipeline") * (
        mesh.pipeline - 1
    ) == pytest.approx(sends)


@given(meshes)
def test_a_class_is_there_exactly_where_its_axis_is(mesh: Mesh) -> None:
    kinds = {entry.kind for entry in traffic(a_model(), mesh, 10)}
    assert (Bytes.PARAMETERS in kinds) == (mesh.shard > 1)
    assert (Bytes.GRADIENTS in kinds) == (mesh.data_parallel > 1 or mesh.tensor > 1)
    assert (Bytes.ACTIVATIONS in kinds) == (mesh.tensor > 1 or mesh.pipeline > 1)
    assert (Bytes.CONTROL in kinds) == (mesh.world > 1)
    assert Bytes.STATE in kinds


@given(meshes, st.integers(1, 512), st.integers(1, 16))
def test_every_sample_is_in_one_micro_batch(mesh: Mesh, batch: int, micro: int) -> None:
    model = a_model(globalBatch=batch, microBatch=micro)
    count, rows = model.micro_batches(mesh.data_parallel)
    assert count * rows * mesh.data_parallel >= batch
    assert rows <= micro
    assert (count - 1) * rows < math.ceil(batch / mesh.data_parallel)
