"""Checkpoints in Hugging Face's form: a folder with config.json and safetensors of a LlamaForCausalLM, in one file or several.

The network is the same, down to which halves of a head turn together (`transformer.rotate`), so that weights are renamed and
never reordered: what is read and written again is equal bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from trainyard.api.trainer import ModelConfig

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.model.transformer import Transformer

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
FIELD: Final = "spec.trainer.model"
_OF_BLOCK: Final = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_OF_ENDS: Final = {"embedding": "model.embed_tokens", "norm": "model.norm", "out": "lm_head"}
_FIELDS: Final = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kvHeads": "num_key_value_heads",
    "hidden": "intermediate_size",
    "tieEmbeddings": "tie_word_embeddings",
    "vocabulary": "vocab_size",
    "ropeTheta": "rope_theta",
    "normEpsilon": "rms_norm_eps",
    "maxSequenceLength": "max_position_embeddings",
}
"""What a field of spec.trainer.model is called in config.json."""
_ABSENT: Final = {
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
"""What transformers takes where config.json says nothing."""
_SCALING: Final = {
    "factor": "factor",
    "lowFrequencyFactor": "low_freq_factor",
    "highFrequencyFactor": "high_freq_factor",
    "originalLength": "original_max_position_embeddings",
}


def name_of(parameter: str) -> str:
    """What one of our parameters is called there: blocks.3.attention.query.weight is model.layers.3.self_attn.q_proj.weight."""
    module = parameter.removesuffix(".weight")
    if not module.startswith("blocks."):
        return f"{_OF_ENDS[module]}.weight"
    _, number, part = module.split(".", 2)
    return f"model.layers.{number}.{_OF_BLOCK[part]}.weight"


def written_config(architecture: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """config.json of a model. architecture: `ModelConfig.architecture`; dtype: of the weights, as torch calls it."""
    said = {theirs: architecture[ours] for ours, theirs in _FIELDS.items() if ours in architecture}
    scaling = architecture.get("ropeScaling")
    if scaling is not None:
        said["rope_scaling"] = {"rope_type": "llama3", **{theirs: scaling[ours] for ours, theirs in _SCALING.items()}}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": dtype,
        **said,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of spec.trainer.model that describe a folder's model. Raises BadConfiguration where it is of another kind."""
    path = folder / CONFIG
    try:
        said = json.loads(path.read_bytes())
        if said.get("model_type") != "llama":
            raise BadConfiguration(
                f"{FIELD}.from: {path} is of a {said.get('model_type')}; only model_type llama is read"
            )
        rope = said.get("rope_parameters") or {}
        said = {**_ABSENT, **{"num_key_value_heads": said["num_attention_heads"]}, **said}
        said["rope_theta"] = float(rope.get("rope_theta", said["rope_theta"]))
        found = {ours: said[theirs] for ours, theirs in _FIELDS.items()}
        scaling = said.get("rope_scaling") or rope
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "llama3":
            found["ropeScaling"] = {ours: scaling[theirs] for ours, theirs in _SCALING.items()}
        other = {
            "rope_type": None if kind in ("default", "llama3") else kind,
            "hidden_act": None if said.get("hidden_act", "silu") == "silu" else said["hidden_act"],
            "attention_bias": said.get("attention_bias") or None,
            "mlp_bias": said.get("mlp_bias") or None,
            "head_dim": said["head_dim"]
            if said.get("head_dim") not in (None, said["hidden_size"] // said["num_attention_heads"])
            else None,
        }
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        if isinstance(error, BadConfiguration):
            raise
        reason = f"has no {error}" if isinstance(error, KeyError) else error
        raise BadConfiguration(f"{FIELD}.from: {path}: {reason}; name a folder that save_pretrained wrote") from None
    for name, value in other.items():
        if value is not None:
            raise BadConfiguration(f"{FIELD}.from: {path}: {name} is {value}, which the built-in network does not have")
    return found


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A folder that holds a model of the configured form. files: of each tensor, by its name there, the file that has it."""

    folder: Path
    files: Mapping[str, Path]

    @classmethod
    def find(cls, config: ModelConfig) -> Pretrained | None:
        """What `spec.trainer.model.from` names, None where it is left out. Headers are read, and no weights.

        Raises BadConfiguration where something is not there or is cut off, or describes another model than the other fields do.
        """
        if config.from_ is None:
            return None
        folder = Path(config.from_)
        _same(config, folder)
        found = cls(folder, _files(folder))
        with torch.device("meta"):
            found._holds(Transformer.of(config))
        return found

    @torch.no_grad()
    def load(self, model: nn.Module) -> None:
        """Fill the parameters that this rank has, each with its own part: no more than that is read.

        Raises BadConfiguration for a weight that is not a finite number.
        """
        with ExitStack() as stack:
            opened: dict[Path, Any] = {}
            for ours, parameter in model.named_parameters():
                name = name_of(ours)
                path = self.files[name]
                if path not in opened:
                    opened[path] = stack.enter_context(_open(path))
                mine = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                if mine.numel():
                    part = opened[path].get_slice(name)[_place(parameter)]
                    if not bool(torch.isfinite(part).all()):
                        raise BadConfiguration(f"{FIELD}.from: {path}: {name} holds numbers that are not finite")
                    mine.copy_(part)

    def _holds(self, model: nn.Module) -> None:
        """Raises BadConfiguration where a parameter of the whole model is missing or of another size."""
        with ExitStack() as stack:
            opened = {path: stack.enter_context(_open(path)) for path in set(self.files.values())}
            for ours, parameter in model.named_parameters():
                name = name_of(ours)
                if name not in self.files:
                    raise BadConfiguration(
                        f"{FIELD}.from: {self.folder} has no tensor {name}; it is not the whole model"
                    )
                shape = tuple(opened[self.files[name]].get_slice(name).get_shape())
                if shape != tuple(parameter.shape):
                    raise BadConfiguration(
                        f"{FIELD}.from: {self.files[name]}: {name} is {list(shape)}, and config.json asks for "
                        f"{list(parameter.shape)}; it is not of one piece"
                    )


def _place(parameter: Tensor) -> tuple[slice, ...]:
    """Which part of the whole parameter lies on this rank."""
    if not isinstance(parameter, DTensor):
        return tuple(slice(0, size) for size in parameter.shape)
    (chunk,) = parameter.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))


def _same(config: ModelConfig, folder: Path) -> None:
    """Raises BadConfiguration, with what would have to be written, where the configuration describes another model."""
    found = read_config(folder)
    longest = found.pop("maxSequenceLength")
    said = config.architecture
    wrong = {name: value for name, value in found.items() if said.get(name) != value}
    if "ropeScaling" in said and "ropeScaling" not in found:
        wrong["ropeScaling"] = "left out"
    if wrong:
        first = next(iter(wrong))
        asks = ", ".join(f"{name}: {json.dumps(value)}" for name, value in wrong.items())
        raise BadConfiguration(
            f"{FIELD}.{first}: {json.dumps(said.get(first))}, and {folder / CONFIG} is of a model with {asks}; write these"
        )
    if config.max_sequence_length is not None and config.max_sequence_length > longest:
        raise BadConfiguration(
            f"{FIELD}.maxSequenceLength: {config.max_sequence_length}, and {folder / CONFIG} says {longest}; use at most that"
        )


def _files(folder: Path) -> dict[str, Path]:
    index = folder / INDEX
    if index.exists():
        try:
            by_name = {name: folder / file for name, file in json.loads(index.read_bytes())["weight_map"].items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadConfiguration(f"{FIELD}.from: {index}: {error}; it has to map each tensor to its file") from None
    else:
        with _open(folder / SINGLE) as opened:
            by_name = dict.fromkeys(opened.keys(), folder / SINGLE)
    for path in sorted(set(by_name.values())):
        with _open(path):
            pass
    return by_name


def _open(path: Path) -> Any:
    """A file of tensors; its header says how long it is. Raises BadConfiguration where it is missing or cut off."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise BadConfiguration(f"{FIELD}.from: {path} is not there; copy the whole checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise BadConfiguration(f"{FIELD}.from: {path} is cut off or damaged: {error}; copy it again") from None
