"""The planner's numbers of a model are those of the network that is trained."""

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from trainyard.api.trainer import PRESETS, TrainerConfig
from trainyard.planner.memory import layer_activations
from trainyard.planner.model import KEEP_GATHERED_BYTES, VOCABULARY, model_of
from trainyard_trainer.data import corpus
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel import shard


def config(preset: str, **data: int) -> TrainerConfig:
    return TrainerConfig.model_validate({"model": {"preset": preset}, "data": data})


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_counted_as_they_are(preset: str) -> None:
    with torch.device("meta"):
        network = Transformer(PRESETS[preset], corpus.VOCABULARY, 10000.0)
    assert model_of(config(preset)).parameters == sum(parameter.numel() for parameter in network.parameters())


def test_the_trainers_own_numbers_are_known() -> None:
    assert (VOCABULARY, KEEP_GATHERED_BYTES) == (corpus.VOCABULARY, shard.KEEP_GATHERED_BYTES)


@pytest.mark.parametrize(("preset", "rows", "tokens"), [("tiny", 4, 64), ("small-lm", 2, 256)])
def test_what_a_layer_keeps_for_the_backward_pass_is_within_5_percent(preset: str, rows: int, tokens: int) -> None:
    shape = PRESETS[preset]
    network = Transformer(shape, corpus.VOCABULARY, 10000.0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in weights:
            kept[storage] = tensor  # held, so that its storage is not used again
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        network(torch.zeros((rows, tokens), dtype=torch.int64))
    beside = rows * tokens * (8 + 2 * shape.width * 4)  # tokens, and the last norm's input and result
    counted = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) - beside
    model = model_of(config(preset, sequenceLength=tokens, microBatch=rows))
    assert shape.layers * layer_activations(model, rows) == pytest.approx(counted, rel=0.05)
