"""The planner's numbers of a model are those of the network that is trained."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from trainyard.api.trainer import BYTE_VOCABULARY, PRESETS, Shape, TrainerConfig
from trainyard.planner.memory import layer_activations, layer_input, mask, memory
from trainyard.planner.model import KEEP_GATHERED_BYTES, model_of
from trainyard.planner.traffic import Mesh
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel import shard


def config(preset: str, **data: int) -> TrainerConfig:
    return TrainerConfig.model_validate({"model": {"preset": preset}, "data": data})


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_counted_as_they_are(preset: str) -> None:
    with torch.device("meta"):
        network = Transformer(PRESETS[preset], BYTE_VOCABULARY, 10000.0)
    assert model_of(config(preset)).parameters == sum(parameter.numel() for parameter in network.parameters())


PUBLISHED = {
    "1b": (128_256, 1_235_814_400),  # Llama 3.2 1B
    "3b": (128_256, 3_212_749_824),  # Llama 3.2 3B
    "7b": (128_256, 8_030_261_248),  # Llama 3 8B
    "13b": (32_000, 13_015_864_320),  # Llama 2 13B
    "34b": (32_000, 33_743_970_304),  # Code Llama 34B
    "70b": (32_000, 68_976_648_192),  # Llama 2 70B
}
"""Vocabulary and parameters of the published models whose shapes the presets have."""


@pytest.mark.parametrize("preset", PUBLISHED)
def test_with_their_vocabulary_presets_are_the_published_models(preset: str) -> None:
    vocabulary, parameters = PUBLISHED[preset]
    config = TrainerConfig.model_validate({"model": {"preset": preset, "vocabulary": vocabulary}})
    with torch.device("meta"):
        network = Transformer.of(config.model)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert model_of(config).parameters == parameters


def test_the_trainers_own_numbers_are_known() -> None:
    assert shard.KEEP_GATHERED_BYTES == KEEP_GATHERED_BYTES


@pytest.mark.parametrize(("preset", "rows", "tokens"), [("tiny", 4, 64), ("small-lm", 2, 256)])
def test_what_a_layer_keeps_for_the_backward_pass_is_within_5_percent(preset: str, rows: int, tokens: int) -> None:
    shape = PRESETS[preset]
    model = model_of(config(preset, sequenceLength=tokens, microBatch=rows))
    assert shape.layers * layer_activations(model, rows) == pytest.approx(kept(shape, rows, tokens), rel=0.05)


@pytest.mark.parametrize(("preset", "rows", "tokens"), [("tiny", 4, 64), ("small-lm", 2, 256)])
def test_a_layer_that_is_computed_again_keeps_its_input_alone(preset: str, rows: int, tokens: int) -> None:
    shape = PRESETS[preset]
    model = model_of(config(preset, sequenceLength=tokens, microBatch=rows))
    more = kept(shape._replace(layers=2 * shape.layers), rows, tokens, recomputes=True)
    assert shape.layers * layer_input(model, rows) == more - kept(shape, rows, tokens, recomputes=True)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_documents_that_are_kept_apart_take_one_matrix_for_all_layers(precision: str) -> None:
    """And not one for each: of twice as many layers it is the same."""
    rows, tokens, cast = 2, 256, torch.bfloat16 if precision == "bfloat16" else None
    data = {"sequenceLength": tokens, "microBatch": rows, "globalBatch": rows, "packing": "masked"}
    given = TrainerConfig.model_validate({"model": {"preset": "tiny"}, "data": data, "precision": precision})
    model = model_of(given)
    for layers in (2, 4):
        shape = PRESETS["tiny"]._replace(layers=layers)
        more = kept(shape, rows, tokens, masked=True, cast=cast) - kept(shape, rows, tokens, cast=cast)
        positions = 2 * (rows - 1) * tokens * shape.width // shape.heads * 4  # of each sample, where one does for all
        assert more == mask(model, rows) + positions
    assert memory(model, Mesh(shard=1)).masks == rows * tokens**2 * model.value_bytes
    assert memory(model, Mesh(replicate=2)).masks == mask(model, 1)


@pytest.mark.parametrize(("rows", "tokens"), [(2, 256), (1, 1)])
def test_what_ddp_keeps_of_activations_and_cast_weights_is_within_5_percent(rows: int, tokens: int) -> None:
    """Of many tokens activations weigh most, of one the weights."""
    shape, data = PRESETS["small-lm"], {"sequenceLength": tokens, "microBatch": rows, "globalBatch": 2 * rows}
    model = model_of(
        TrainerConfig.model_validate({"model": {"preset": "small-lm"}, "data": data, "precision": "bfloat16"})
    )
    activations = shape.layers * layer_activations(model, rows, cast=True)
    copies = memory(model, Mesh(replicate=2)).gathered
    found = kept(shape, rows, tokens, cast=torch.bfloat16)
    assert activations + copies == pytest.approx(found, rel=0.05)
    assert memory(model, Mesh(replicate=2)).activations > activations


def test_ddp_has_nothing_gathered_in_float32_and_adds_up_where_it_sums() -> None:
    parts = memory(model_of(config("7b", globalBatch=64, microBatch=1)), Mesh(replicate=8))
    assert parts.gathered == 0
    assert parts.gradients == parts.weights


def kept(
    shape: Shape,
    rows: int,
    tokens: int,
    recomputes: bool = False,
    masked: bool = False,
    cast: torch.dtype | None = None,
) -> float:
    """Bytes that all layers keep for the backward pass, counted. masked: with documents; cast: by autocast, to what."""
    network = Transformer(shape, BYTE_VOCABULARY, 10000.0)
    for block in network.blocks.values():
        block.recomputes = recomputes
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in weights:
            storages[storage] = tensor  # held, so that its storage is not used again
        return tensor

    documents = torch.zeros((rows, tokens), dtype=torch.int64) if masked else None
    casting = nullcontext() if cast is None else torch.autocast("cpu", dtype=cast)
    with saved_tensors_hooks(keep, lambda tensor: tensor), casting:
        network(torch.zeros((rows, tokens), dtype=torch.int64), documents)
    beside = rows * tokens * (8 + 2 * shape.width * 4)  # tokens, and the last norm's input and result
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values()) - beside
