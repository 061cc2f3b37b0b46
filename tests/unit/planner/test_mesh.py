"""Which mesh is chosen for a model, and why the others are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.fabric import FabricSpec
from trainyard.api.names import LABEL_GPU_PRODUCT
from trainyard.api.trainer import TrainerConfig
from trainyard.planner.links import links_of
from trainyard.planner.machines import accelerator_of
from trainyard.planner.memory import memory
from trainyard.planner.mesh import WORTH_IT, Choice, Site, choose, compute_seconds, divisors, meshes
from trainyard.planner.model import Model, model_of
from trainyard.planner.traffic import Mesh
from trainyard.topology.tree import Level, Tree

LEVELS = (Level("spine", "s"), Level("leaf", "l"))


def a_model(
    precision: str = "bfloat16",
    data: dict[str, int] | None = None,
    parallel: dict[str, object] | None = None,
    **shape: object,
) -> Model:
    numbers = {"sequenceLength": 4096, "globalBatch": 256, "microBatch": 1, **(data or {})}
    config = {"model": {"preset": "7b", **shape}, "precision": precision, "data": numbers, "parallel": parallel or {}}
    return model_of(TrainerConfig.model_validate(config))


def a_site(nodes: int = 8, processes: int = 8, product: str = "H100", per_leaf: int = 4, **node: object) -> Site:
    tree = Tree(LEVELS, {f"n{n}": (f"s{n // (4 * per_leaf)}", f"l{n // per_leaf}") for n in range(nodes)})
    levels = [{"name": "spine", "nodeLabel": "s"}, {"name": "leaf", "nodeLabel": "l"}]
    fabric = FabricSpec.model_validate({"levels": levels, "node": node})
    links = links_of(fabric, LEVELS, [{LABEL_GPU_PRODUCT: product}] * nodes)
    return Site(links, tree, tuple(tree.paths), processes, accelerator_of({LABEL_GPU_PRODUCT: product}))


SEVENTY_BILLION = a_model(layers=80, width=8192, hidden=28672, heads=64)


def of(choices: tuple[Choice, ...], **axes: int) -> Choice:
    return next(choice for choice in choices if choice.mesh == Mesh(**axes))


def test_where_everything_overlaps_the_simplest_mesh_is_best() -> None:
    best = choose(a_model(), a_site())[0]
    assert (best.mesh, best.out) == (Mesh(shard=64), "")


def test_where_the_network_is_slow_shards_stay_inside_the_nodes() -> None:
    """Four micro-batches: weights are gathered eight times a step, gradients are summed up once."""
    choices = choose(a_model(), a_site(nics=1, nicBandwidth="100Gbps"), fixed={"tensor": 1, "pipeline": 1})
    best, plain = choices[0], of(choices, shard=64)
    assert best.mesh == Mesh(replicate=8, shard=8)
    assert best.step is not None
    assert plain.step is not None
    assert best.step.seconds < 0.5 * plain.step.seconds


def test_what_does_not_fit_says_by_how_much() -> None:
    whole = of(choose(a_model(), a_site()), replicate=64)
    needed, usable = whole.memory.total / 1e9, 0.9 * 80 * 2**30 / 1e9
    assert whole.out == f"needs {needed:.1f} GB of an accelerator's {usable:.1f} usable GB"
    assert needed > 16 * 6.98
    assert (whole.step, whole.prediction) == (None, None)


def test_layers_that_are_computed_again_fit_where_others_do_not_and_take_longer() -> None:
    """From equation to equation: what each layer keeps but its input, and a third of the layers' operations."""
    usual = a_model(data={"microBatch": 4})
    again = replace(usual, recomputes=True)
    mesh, site = Mesh(shard=64), a_site()
    assert of(choose(usual, site), shard=64).out.startswith("needs ")
    assert of(choose(again, site), shard=64).out == ""
    assert memory(again, mesh).activations < 0.2 * memory(usual, mesh).activations
    layers = usual.flops_per_token - 6 * usual.vocabulary * usual.width
    assert again.computed_flops_per_token == pytest.approx(usual.flops_per_token + layers / 3)
    times = [compute_seconds(model, mesh, site.accelerator) for model in (usual, again)]
    assert times[1] == pytest.approx(times[0] * again.computed_flops_per_token / usual.flops_per_token)


def test_a_model_that_no_sharding_holds_needs_tensor_groups() -> None:
    site = a_site(nodes=64)
    assert all(choice.out for choice in choose(SEVENTY_BILLION, site, fixed={"tensor": 1, "pipeline": 1}))
    best = choose(SEVENTY_BILLION, site)[0]
    assert best.out == ""
    assert best.mesh.tensor > 1


def test_a_size_that_was_settled_is_looked_at_beside_every_other() -> None:
    """Tensor groups over two nodes, and shards of some of what is left: not proposed, and possible."""
    choices = choose(a_model(), a_site(processes=2), fixed={"tensor": 4, "shard": 2})
    assert [str(choice.mesh) for choice in choices if choice.mesh.pipeline == 1] == ["replicate 2 x shard 2 x tensor 4"]


def test_what_the_user_has_settled_stays() -> None:
    choices = choose(a_model(), a_site(), fixed={"shard": 16, "tensor": 1, "pipeline": 1})
    assert choices[0].mesh == Mesh(replicate=4, shard=16)
    assert {choice.mesh.shard for choice in choices} == {16}


def test_on_an_unknown_accelerator_the_communication_decides_and_everything_fits() -> None:
    site = a_site(nodes=4, product="unheard of", nics=1, nicBandwidth="1Gbps")
    choices = choose(SEVENTY_BILLION, site)
    assert choices[0].limit_bytes is None
    assert choices[0].step is not None
    assert choices[0].step.compute_seconds == 0.0


def test_memory_of_a_sharded_step_is_what_zero_says() -> None:
    """16 bytes a parameter over all: 4 of the weight, 4 of its gradient, 8 of AdamW."""
    model = a_model(data={"globalBatch": 64})
    parts = memory(model, Mesh(shard=64))
    assert parts.weights + parts.gradients + parts.optimizer == pytest.approx(16 * model.parameters / 64)
    accumulating = memory(a_model(data={"globalBatch": 128}), Mesh(shard=64))
    assert accumulating.gradients - parts.gradients == pytest.approx(4 * model.parameters)


def test_stages_on_their_way_keep_their_activations() -> None:
    model = a_model(data={"globalBatch": 64})
    one, four = memory(model, Mesh(shard=1)), memory(model, Mesh(pipeline=4, shard=1))
    assert four.activations == pytest.approx(one.activations, rel=0.01)  # four micro-batches of a quarter of the layers
    assert memory(model, Mesh(shard=1, tensor=4)).activations == pytest.approx(one.activations / 4)


def test_several_stages_a_rank_wait_less_and_keep_more() -> None:
    """7b's 32 layers on 4 ranks, 16 micro-batches: 3/16 of the time idle with one stage a rank, a fourth of it with four."""
    mesh = Mesh(pipeline=4, shard=1)
    plain = a_model(data={"globalBatch": 16})
    several = a_model(data={"globalBatch": 16}, parallel={"schedule": "interleaved", "stagesPerRank": 4})
    halves = a_model(data={"globalBatch": 16}, parallel={"schedule": "zero-bubble"})
    assert [model.idle(1, 4) for model in (plain, several, halves)] == [3 / 16, 3 / 64, 1 / 16]
    assert memory(several, mesh).activations == pytest.approx(memory(plain, mesh).activations * (1 + 3 / 16), rel=0.01)


def test_micro_batches_go_round_in_as_many_as_there_are_ranks() -> None:
    model = a_model(data={"globalBatch": 10}, parallel={"schedule": "zero-bubble"})
    assert model.micro_batches(1, 4) == (12, 1)
    assert model.micro_batches(1, 1) == (10, 1)


def test_stages_divide_the_layers_however_many_a_rank_has() -> None:
    model = a_model(parallel={"schedule": "interleaved", "stagesPerRank": 8})
    assert {mesh.pipeline for mesh in meshes(model, 64, 8)} == {1, 2, 4}


@given(st.sampled_from([1, 2, 3, 6, 8, 12]), st.sampled_from([1, 2, 4, 8]))
def test_every_candidate_uses_all_processes_and_divides_the_model(nodes: int, processes: int) -> None:
    model = a_model()
    found = list(meshes(model, nodes * processes, processes))
    assert len(found) == len(set(found))
    assert Mesh(shard=nodes * processes) in found
    for mesh in found:
        assert mesh.world == nodes * processes
        assert processes % mesh.tensor == 0
        assert model.kv_heads % mesh.tensor == 0
        assert model.layers % mesh.pipeline == 0


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["H100", "H200", "A100-SXM4-40GB"]), st.integers(1, 512))
def test_the_best_fits_and_none_that_fits_is_much_faster(nodes: int, product: str, batch: int) -> None:
    choices = choose(a_model(data={"globalBatch": batch}), a_site(nodes, product=product))
    possible = [choice for choice in choices if not choice.out]
    assert list(choices[: len(possible)]) == possible
    for choice in possible:
        assert choice.limit_bytes is not None
        assert choice.memory.total <= choice.limit_bytes
        assert choice.step is not None
        assert possible[0].step is not None
        assert possible[0].step.seconds <= choice.step.seconds * (1 + WORTH_IT)


@given(st.integers(1, 10**5))
def test_divisors_are_all_that_divide(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)
