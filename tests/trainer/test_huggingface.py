"""Weights of Hugging Face's form are the same network here, whoever holds which part, and come out as they went in."""

import gc
import json
import os
import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.processes import TINY, plan_file, run
from torch.distributed.tensor import DTensor
from trainyard.api.trainer import ModelConfig, ParallelConfig
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard_trainer import export
from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.export import NothingToExport, main, newest
from trainyard_trainer.model.huggingface import Pretrained, name_of
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.train import main as train
from transformers import LlamaConfig, LlamaForCausalLM

SCALING = {"factor": 8.0, "lowFrequencyFactor": 1.0, "highFrequencyFactor": 4.0, "originalLength": 16}
MODEL = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "kvHeads": 2,
    "hidden": 64,
    "tieEmbeddings": False,
    "vocabulary": 300,
    "ropeTheta": 500.0,
    "normEpsilon": 1e-5,
    "ropeScaling": SCALING,
}


def theirs(folder, tied=False, scaled=True, seed=1, **saving):
    """A model that transformers made and saved, with norms that are not all ones."""
    torch.manual_seed(seed)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            rope_theta=500.0,
            rope_scaling={**scaling, "original_max_position_embeddings": 16} if scaled else None,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, **saving)
    return model


def ours(folder, **changes):
    return ModelConfig.model_validate({**MODEL, "from": str(folder), **changes})


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs") / "llama"
    return folder, theirs(folder, max_shard_size="30KB")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["scaled", "tied", "plain"])
def test_logits_are_those_of_transformers(tmp_path, form, dtype):
    model = theirs(tmp_path / "llama", tied=form == "tied", scaled=form == "scaled").to(dtype)
    config = ours(
        tmp_path / "llama", tieEmbeddings=form == "tied", **({} if form == "scaled" else {"ropeScaling": None})
    )
    network = Transformer.of(config).to(dtype)
    Pretrained.find(config).load(network)
    tokens = torch.randint(0, 300, (2, 64))
    with torch.no_grad():
        expected = model(tokens).logits
        assert float((network(tokens) - expected).abs().max() / expected.abs().max()) < 1e-6


MESHES = (
    (Axis("shard", 4),),
    (Axis("pipeline", 2), Axis("shard", 2)),
    (Axis("shard", 2), Axis("tensor", 2)),
    (Axis("replicate", 4),),
)


def test_every_rank_fills_what_it_has_whatever_the_mesh(tmp_path, pretrained):
    folder, model = pretrained
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert len(list(folder.glob("*.safetensors"))) > 1

    def work(rank):
        meet(Place.of(os.environ, rank, 4), torch.device("cpu"), 60.0, lambda: False)
        seen = set()
        for axes in MESHES:
            with torch.device("meta"):
                network = Transformer.of(ours(folder))
            Spread(network, build(axes, 4, "cpu"), torch.device("cpu"), ParallelConfig())
            Pretrained.find(ours(folder)).load(network)
            for name, parameter in network.named_parameters():
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                assert torch.equal(whole.detach(), expected[name_of(name)]), (axes, name)
                seen.add((axes, name_of(name)))
        return seen

    ended = run(work, 4, tmp_path / "gang")
    assert [end.code for end in ended] == [0] * 4, ended[0].output
    assert set().union(*(end.result for end in ended)) == {(axes, name) for axes in MESHES for name in expected}


def attempt(tmp_path, folder, steps, **model):
    """A training of one process that begins with what the folder holds; its end."""
    trainer = {
        **TINY,
        "model": {**MODEL, "from": str(folder), **model},
        "steps": steps,
        "optimizer": {"learningRate": 1e-30, "warmupSteps": 0, "weightDecay": 0.0},
    }
    environment = plan_file(tmp_path / "plan.json", tmp_path / "run", ranks=1, trainer=trainer)
    (ended,) = run(lambda rank: train([]), 1, tmp_path / "gang", environments={0: environment})
    return ended


def test_what_is_trained_from_there_goes_back_bit_for_bit(tmp_path, pretrained, capsys):
    """At a learning rate that moves no weight; what a step changes is tested elsewhere."""
    folder, model = pretrained
    ended = attempt(tmp_path, folder, steps=1)
    assert ended.code == Exit.DONE, ended.output
    assert main([str(tmp_path / "run"), str(tmp_path / "out"), "--shard-bytes", "30000"]) == 0
    assert "step 1 of attempt 1" in capsys.readouterr().out
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert all(file.stat().st_size < 60_000 for file in files)
    out = {name: tensor for file in files for name, tensor in load_file(file).items()}
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert out.keys() == expected.keys()
    assert all(torch.equal(out[name], expected[name]) for name in expected)
    again = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.randint(0, 300, (1, 40))
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)
    Pretrained.find(ours(tmp_path / "out"))


def test_an_export_reads_into_what_it_writes_one_file_after_the_other(tmp_path, pretrained, monkeypatch):
    """Nothing of a file is left when the next one is read, and no tensor is there in a second type."""
    folder, model = pretrained
    assert attempt(tmp_path, folder, steps=1).code == Exit.DONE
    asked, load = [], export.dcp_load

    def look(state, **given):
        gc.collect()
        asked.append(({tensor.dtype for tensor in state.values()}, [ref for ref in held if ref() is not None]))
        held.extend(weakref.ref(tensor) for tensor in state.values())
        load(state, **given)

    held = []
    monkeypatch.setattr(export, "dcp_load", look)
    assert main([str(tmp_path / "run"), str(tmp_path / "out"), "--dtype", "bfloat16", "--shard-bytes", "15000"]) == 0
    assert len(asked) > 1
    assert all(each == ({torch.bfloat16}, []) for each in asked)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    out = {name: tensor for file in files for name, tensor in load_file(file).items()}
    expected = {name: parameter.detach().bfloat16() for name, parameter in model.named_parameters()}
    assert all(torch.equal(out[name], expected[name]) for name in expected)


def test_a_checkpoint_of_a_script_of_ones_own_is_not_exported(tmp_path, pretrained):
    assert attempt(tmp_path, pretrained[0], steps=1).code == Exit.DONE
    stored = newest(tmp_path / "run")
    training = replace(stored.record.training, model={"parameters": 7, "rest_bytes": 9})
    with pytest.raises(NothingToExport, match=r"was saved by a script of one's own \(session\.save\)"):
        export.export(replace(stored, record=replace(stored.record, training=training)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_needs_a_checkpoint_and_a_folder_that_is_not_there(tmp_path, pretrained):
    folder, _ = pretrained
    with pytest.raises(NothingToExport, match="holds no committed checkpoint"):
        newest(tmp_path)
    assert attempt(tmp_path, folder, steps=1).code == Exit.DONE
    assert main([str(tmp_path / "run"), str(folder)]) == 1
    (data,) = (tmp_path / "run").glob("*/*/*.distcp")
    data.write_bytes(data.read_bytes()[:-8])
    with pytest.raises(NothingToExport, match=r"__0_0\.distcp: .* bytes, but .* were written"):
        newest(tmp_path / "run")


def refused(folder, **changes):
    def begin():
        Pretrained.find(ours(folder, **changes)).load(Transformer.of(ours(folder)))

    with pytest.raises(BadConfiguration) as error:
        begin()
    return str(error.value).replace(str(folder), "F")


def test_another_model_is_refused_with_what_would_have_to_be_written(pretrained):
    assert refused(pretrained[0], layers=3, kvHeads=4) == (
        "spec.trainer.model.layers: 3, and F/config.json is of a model with layers: 2, kvHeads: 2; write these"
    )
    assert refused(pretrained[0], ropeScaling=None).startswith(
        "spec.trainer.model.ropeScaling: null, and F/config.json"
    )
    assert refused(pretrained[0], maxSequenceLength=129).startswith("spec.trainer.model.maxSequenceLength: 129, and F/")


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_that_is_missing_or_damaged_is_refused_by_name(tmp_path):
    assert refused(tmp_path / "none").startswith("spec.trainer.model.from: F/config.json: [Errno 2]")
    folder = tmp_path / "llama"
    theirs(folder)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert refused(folder).startswith("spec.trainer.model.from: F/model.safetensors is cut off or damaged: ")
    path.unlink()
    assert refused(folder) == "spec.trainer.model.from: F/model.safetensors is not there; copy the whole checkpoint"
    path.write_bytes(whole)
    state = load_file(path)
    save_file({name: tensor for name, tensor in state.items() if name != "model.norm.weight"}, path)
    assert "has no tensor model.norm.weight" in refused(folder)
    save_file({**state, "model.norm.weight": torch.ones(31)}, path)
    assert "model.norm.weight is [31], and config.json asks for [32]" in refused(folder)
    save_file({**state, "model.norm.weight": torch.full((32,), float("nan"))}, path)
    assert refused(folder).endswith("F/model.safetensors: model.norm.weight holds numbers that are not finite")
    change_config(folder, attention_bias=True)
    assert "attention_bias is True, which the built-in network does not have" in refused(folder)
    change_config(folder, model_type="qwen3")
    assert "config.json is of a qwen3; only model_type llama is read" in refused(folder)


def test_a_folder_that_is_refused_ends_a_training_with_78(tmp_path, pretrained):
    ended = attempt(tmp_path, pretrained[0], steps=1, layers=1)
    assert ended.code == Exit.CONFIGURATION, ended.output
    assert ended.reports[-1].configuration
