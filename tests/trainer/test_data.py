"""Whatever holds the data, the same tokens come of it on every machine; what is not there or not whole is refused by name."""

import struct

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.processes import TINY, plan_file, run
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from trainyard.api.trainer import BYTE_VOCABULARY, PRESETS, InvalidTrainerConfig, parse
from trainyard.contract.exits import Exit
from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data import mapped, tokenize
from trainyard_trainer.data.batches import IGNORED, batches_of, counted
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.model import transformer, weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.train import main

SEPARATOR = 256


def corpus(*sources, vocabulary=1000, **data):
    return corpus_of(parse({"model": {"vocabulary": vocabulary}, "data": {"sources": sources, **data}}))


def refused(*sources, **data):
    with pytest.raises(BadConfiguration) as error:
        corpus(*sources, **data)
    return str(error.value)


def all_of(found):
    """Every token of every source, and where documents are known to begin."""
    tokens, begins = [], []
    for source in found.sources:
        into, marks = np.zeros(source.tokens, np.int64), np.zeros(source.tokens, np.bool_)
        source.read(0, into, marks)
        tokens, begins = [*tokens, *into.tolist()], [*begins, *np.flatnonzero(marks).tolist()]
    return tokens, begins


def bin_file(path, tokens, magic=20240520, version=1, kind="<u2", says=None):
    header = struct.pack("<3i", magic, version, len(tokens) if says is None else says).ljust(1024, b"\0")
    path.write_bytes(header + np.array(tokens, kind).tobytes())
    return str(path)


def megatron(path, documents, code=8, kind="<u2", firsts=None):
    """Sequences, each a document of its own; or documents that begin with the sequences `firsts`, whose last is the end."""
    tokens = [token for document in documents for token in document]
    path.write_bytes(np.array(tokens, kind).tobytes())
    lengths = [len(document) for document in documents]
    pointers = np.cumsum([0, *lengths[:-1]]) * np.dtype(kind).itemsize
    firsts = range(len(lengths) + 1) if firsts is None else firsts
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(firsts))
    index += np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index + np.array(firsts, "<i8").tobytes())
    return str(path)


def tokenizer_file(path):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        ["the cat sat on the mat"] * 4, trainers.BpeTrainer(special_tokens=["<unk>", "<end>"])
    )
    tokenizer.save(str(path))
    return tokenizer


# Text


def test_files_are_taken_by_name_and_each_once(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xffb")
    (tmp_path / "deep" / "a.txt").write_bytes(b"a")
    found = corpus_of(parse({"data": {"files": [f"{tmp_path}/**/*.txt", f"{tmp_path}/b.txt"]}}))
    assert all_of(found) == ([0xFF, ord("b"), SEPARATOR, ord("a"), SEPARATOR], [0, 3])
    assert (found.files, found.separator) == (2, SEPARATOR)


def test_the_digest_is_that_of_the_tokens(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("text")
    two.write_text("text")
    assert corpus({"text": [str(one)]}).digest == corpus({"text": [str(two)]}).digest
    two.write_text("tent")
    assert corpus({"text": [str(one)]}).digest != corpus({"text": [str(two)]}).digest


def test_the_standard_library_is_there_without_a_pattern():
    found = corpus_of(parse({}))
    assert found.files > 100
    assert found.tokens > 1_000_000


def test_a_tokenizer_makes_tokens_of_text_and_a_token_file_holds_the_same(tmp_path, capsys):
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_text("the cat")
    (tmp_path / "b.txt").write_text("sat on the mat")
    expected = [*tokenizer.encode("the cat").ids, 1, *tokenizer.encode("sat on the mat").ids, 1]
    text = {"text": [f"{tmp_path}/*.txt"]}
    given = {"tokenizer": str(tmp_path / "tokenizer.json"), "separator": 1}
    assert all_of(corpus(text, **given))[0] == expected
    arguments = [
        "--tokenizer",
        given["tokenizer"],
        "--separator",
        "1",
        "--out",
        str(tmp_path / "c.npy"),
        text["text"][0],
    ]
    assert tokenize.main(arguments) == 0
    assert f"{len(expected)} tokens of 2 files" in capsys.readouterr().out
    assert all_of(corpus({"tokens": [f"{tmp_path}/c.npy"]}))[0] == expected


def test_text_that_cannot_be_read_as_asked_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "none.txt").touch()
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    here, given = {"text": [f"{tmp_path}/a.txt"]}, {"tokenizer": f"{tmp_path}/tokenizer.json", "separator": 1}
    path = "spec.trainer.data"
    assert refused({"text": [f"{tmp_path}/a.txt", f"{tmp_path}/x*"]}) == (
        f"{path}.sources[0].text: {tmp_path}/x* matches no file in this container"
    )
    assert (
        refused({"text": [f"{tmp_path}/none.txt"]}) == f"{path}.sources[0].text: the 1 files that match are all empty"
    )
    assert refused(here, **given).startswith(f"{path}: {tmp_path}/a.txt: byte 3 is not UTF-8")
    assert refused(here, **{**given, "tokenizer": "/nowhere.json"}).startswith(
        f"{path}.tokenizer: /nowhere.json is not a file"
    )
    assert refused(here, **{**given, "tokenizer": f"{tmp_path}/a.txt"}).startswith(
        f"{path}.tokenizer: {tmp_path}/a.txt: "
    )
    known = tokenizer.get_vocab_size()
    assert refused(here, **given, vocabulary=known - 1).startswith(
        f"spec.trainer.model.vocabulary: {known - 1} is less than the {known} tokens of"
    )


# Token files


def test_each_form_of_token_file_is_mapped_and_not_read(tmp_path):
    rows = [5, 6, 7, 900, 9]
    np.save(tmp_path / "a.npy", np.array(rows, np.uint32))
    (tmp_path / "plain.bin").write_bytes(np.array(rows, "<u2").tobytes())
    forms = [
        {"tokens": [f"{tmp_path}/a.npy"]},
        {"tokens": [bin_file(tmp_path / "b.bin", rows)]},
        {"tokens": [bin_file(tmp_path / "c.bin", rows, 20240801, 7, "<u4")]},
        {"tokens": [f"{tmp_path}/plain.bin"], "type": "uint16"},
        {"tokens": [megatron(tmp_path / "m.bin", [[5, 6], [], [7, 900, 9]])]},
        {"tokens": [megatron(tmp_path / "n.bin", [[5, 6], [7, 900, 9]], 4, "<i4")]},
    ]
    for source in forms:
        found = corpus(source)
        assert all_of(found) == (rows, [0, 2] if "/m.bin" in str(source) or "/n.bin" in str(source) else [0]), source
        assert isinstance(found.sources[0].pieces[0].tokens, np.memmap)
    assert all_of(corpus({"tokens": [f"{tmp_path}/*.npy", f"{tmp_path}/[bc].bin"]})) == (rows * 3, [0, 5, 10])


def test_documents_of_megatron_are_of_as_many_sequences_as_its_index_says(tmp_path):
    sequences = [[1, 2], [3, 4, 5], [6, 7, 8, 9]]
    found = corpus({"tokens": [megatron(tmp_path / "m.bin", sequences, firsts=[0, 2, 3])]})
    assert all_of(found) == ([*range(1, 10)], [0, 5])


def test_a_digest_is_of_the_size_and_of_what_is_looked_at(tmp_path):
    rows = np.arange(2_000_000) % 1000
    digests = set()
    for place in (None, 0, 1_999_999):
        changed = rows.copy()
        if place is not None:
            changed[place] += 1
        digests.add(corpus({"tokens": [bin_file(tmp_path / "a.bin", changed)]}).digest)
    digests.add(corpus({"tokens": [bin_file(tmp_path / "a.bin", rows[:-1])]}).digest)
    assert len(digests) == 4
    assert 2 * len(rows) / 10 > mapped.LOOKED_AT * mapped.BLOCK_BYTES


def test_a_token_file_that_is_empty_cut_off_or_of_another_kind_is_refused_by_name(tmp_path):
    path = "spec.trainer.data.sources[0].tokens"
    whole = tmp_path / "a.npy"
    np.save(whole, np.arange(100, dtype=np.uint16))
    (tmp_path / "cut.npy").write_bytes(whole.read_bytes()[:-2])
    np.save(tmp_path / "floats.npy", np.array([1.0, float("nan")]))
    np.save(tmp_path / "none.npy", np.empty(0, np.uint16))
    (tmp_path / "plain.bin").write_bytes(b"\1\2\3")
    index = tmp_path / "m.idx"
    cases = {
        "cut.npy": "is not a whole .npy file",
        "floats.npy": "holds float64 of shape (2,); tokens are one row of uint16 or uint32",
        "none.npy": "holds no tokens; leave it out",
        "plain.bin": "begins with no header that is known",
    }
    for name, sentence in cases.items():
        assert refused({"tokens": [f"{tmp_path}/{name}"]}).startswith(f"{path}: {tmp_path}/{name} {sentence}")
    assert "has 3 bytes, which are not whole tokens of uint16" in refused(
        {"tokens": [f"{tmp_path}/plain.bin"], "type": "uint16"}
    )
    assert "has 1034 bytes, and its header says 6 tokens, which are 1036; it has been cut off" in refused(
        {"tokens": [bin_file(tmp_path / "short.bin", range(5), says=6)]}
    )
    documents = megatron(tmp_path / "m.bin", [[1, 2], [3]])
    (tmp_path / "m.bin").write_bytes(b"\0" * 4)
    assert "has 4 bytes, and its index says 3 tokens, which are 6" in refused({"tokens": [documents]})
    for size in (-8, 40):
        index.write_bytes(index.read_bytes()[:size])
        assert "m.idx is cut off: 2 sequences and 3 document indices do not fit in it" in refused(
            {"tokens": [documents]}
        )
    wrong = megatron(tmp_path / "n.bin", [[1, 2], [3]], firsts=[0, 3, 2])
    assert "n.idx has documents that begin at sequence 0 to 3, and 2 sequences" in refused({"tokens": [wrong]})
    index.write_bytes(b"other")
    assert "m.idx beside it is not an index of Megatron-LM" in refused({"tokens": [documents]})


# Datasets, and what is made up


def test_a_column_of_a_dataset_is_texts_or_tokens_that_stay_mapped(tmp_path):
    rows = datasets.Dataset.from_dict({"text": ["ab", "c"], "ids": [[7, 8, 9], [10]], "no": [1.5, 2.5]})
    folder = str(tmp_path / "rows")
    rows.save_to_disk(folder)
    assert all_of(corpus({"dataset": folder})) == ([97, 98, SEPARATOR, 99, SEPARATOR], [0, 3])
    assert all_of(corpus({"dataset": folder, "column": "ids"})) == ([7, 8, 9, 10], [0, 3])
    split = str(tmp_path / "split")
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(split)
    assert all_of(corpus({"dataset": split, "split": "test", "column": "ids"}))[0] == [10]
    path = "spec.trainer.data.sources[0]"
    assert refused({"dataset": split}) == f"{path}.split: left out, and {split} has train, test; use one of them"
    assert refused({"dataset": folder, "column": "x"}) == f"{path}.column: x is not there; {folder} has text, ids, no"
    assert "column no is double; use a column of text" in refused({"dataset": folder, "column": "no"})
    assert refused({"dataset": str(tmp_path)}).startswith(f"{path}.dataset: {tmp_path}: ")


def test_a_dataset_without_the_package_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    assert "needs the package datasets, which this image does not have" in refused({"dataset": str(tmp_path)})


def test_synthetic_tokens_are_a_function_of_their_position():
    tokens, _ = all_of(corpus({"synthetic": 10_000}, vocabulary=300))
    assert (min(tokens), max(tokens)) == (0, 299)
    part = corpus({"synthetic": 1 << 50}, vocabulary=300).sources[0].pieces[0].tokens[500:600]
    assert part.tolist() == tokens[500:600]
    assert np.bincount(tokens, minlength=300).max() < 70  # 33 in the mean


# Steps


def steps(found_or_config, count=1, rank=0, ranks=1, **data):
    config = parse({"model": {"vocabulary": 1000}, "data": data})
    batches = batches_of(config, corpus_of(config), config.data.micro_batch, rank, ranks)
    return [batch for step in range(1, count + 1) for batch in batches.step(step)]


def test_samples_go_on_from_file_to_file(tmp_path):
    names = [bin_file(tmp_path / f"{n}.bin", range(10 * n, 10 * n + 7)) for n in range(3)]
    found = steps(None, sources=[{"tokens": names}], sequenceLength=5, globalBatch=4)
    line = [*range(7), *range(10, 17), *range(20, 27)]
    expected = sorted(line[n : n + 6] for n in (0, 5, 10, 15))
    rows = zip(found[0].inputs.tolist(), found[0].targets.tolist(), strict=True)
    assert sorted([*inputs, targets[-1]] for inputs, targets in rows) == expected


def test_weights_decide_how_many_samples_a_source_gives(tmp_path):
    low, high = bin_file(tmp_path / "low.bin", [1] * 50), bin_file(tmp_path / "high.bin", [2] * 5000)
    sources = [{"tokens": [low], "weight": 3}, {"tokens": [high], "weight": 1}]
    found = steps(None, sources=sources, sequenceLength=4, globalBatch=10_000, microBatch=10_000)
    assert float((found[0].inputs[:, 0] == 1).double().mean()) == pytest.approx(0.75, abs=1e-3)


def test_a_token_that_the_model_does_not_have_is_named_with_its_file_and_place(tmp_path):
    name = bin_file(tmp_path / "a.bin", [*range(20), 1000])
    with pytest.raises(BadConfiguration) as error:
        steps(None, sources=[{"tokens": [name]}], sequenceLength=5, globalBatch=4)
    assert str(error.value) == (
        f"spec.trainer.data.sources[0].tokens: {name}: token 20 is 1000, and the model has tokens 0 to 999 "
        "(spec.trainer.model.vocabulary); use the tokenizer's number of tokens, or the files that belong to it"
    )


def test_a_sample_longer_than_a_source_is_refused(tmp_path):
    name = bin_file(tmp_path / "a.bin", range(5))
    assert len(steps(None, sources=[{"tokens": [name]}], sequenceLength=4, globalBatch=1)) == 1
    with pytest.raises(
        BadConfiguration, match=r"data\.sequenceLength: 5 is more than the 5 tokens of the 1 files; use"
    ):
        steps(None, sources=[{"tokens": [name]}], sequenceLength=5)
    with pytest.raises(BadConfiguration, match=r"5 tokens of the 1 files of sources\[1\]"):
        steps(None, sources=[{"synthetic": 100}, {"tokens": [name]}], sequenceLength=5)


@pytest.mark.parametrize("told", ["separator", "index"])
def test_a_packed_documents_loss_is_that_of_the_document_alone(tmp_path, told):
    """Whether the file or a separator tells where documents end; on float64, whose attention adds in another order."""
    documents = [[11, 12, 13, 14, 9], [21, 22, 9], [31, 32, 33, 9], [41, 42, 43, 44, 45, 9]]
    if told == "index":
        source, data = {"tokens": [megatron(tmp_path / "m.bin", documents)]}, {}
    else:
        tokens = [token for document in documents for token in document]
        source, data = {"tokens": [bin_file(tmp_path / "a.bin", tokens)]}, {"separator": 9}
    (batch,) = steps(None, sources=[source], sequenceLength=17, globalBatch=1, packing="masked", **data)
    config = parse({"model": {"vocabulary": 1000}}).model
    model = Transformer.of(config).double()
    weights.draw(model, 4, seed=1)
    packed = F.cross_entropy(
        model(batch.inputs, batch.documents)[0], batch.targets[0], ignore_index=IGNORED, reduction="none"
    )
    alone = []
    for document in documents:
        tokens = torch.tensor([document])
        alone.append(F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none"))
    assert counted([batch]) == sum(len(document) - 1 for document in documents)
    assert torch.allclose(packed[batch.targets[0] != IGNORED], torch.cat(alone), rtol=1e-12, atol=0)
    assert not torch.allclose(
        F.cross_entropy(model(batch.inputs)[0], batch.targets[0], ignore_index=IGNORED, reduction="none"), packed
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mask_that_is_added_computes_what_one_of_truth_values_does(monkeypatch, dtype):
    """Bit for bit, forward and backward."""
    shape = PRESETS["tiny"]
    documents = torch.tensor([[0] * 5 + [1] * 11 + [2] * 8])

    def learnt():
        model = Transformer(shape, BYTE_VOCABULARY, 10000.0)
        weights.draw(model, shape.layers, seed=5)
        model.to(dtype)(torch.arange(24).view(1, 24), documents).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    added, within = learnt(), transformer.within
    monkeypatch.setattr(transformer, "within", lambda *given: (within(*given)[0], within(*given)[1] == 0))
    assert all(map(torch.equal, added, learnt()))


def test_documents_that_nobody_can_tell_apart_are_not_masked(tmp_path):
    name = bin_file(tmp_path / "a.bin", range(50))
    sentence = refused({"tokens": [name]}, packing="masked")
    assert sentence.startswith(
        f"spec.trainer.data.separator: must be given where packing is masked: nothing in {name} tells"
    )


@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        (
            {"data": {"sources": [{}]}},
            "spec.trainer.data.sources[0]: has neither of text, tokens, dataset and synthetic",
        ),
        (
            {"data": {"sources": [{"text": ["a"], "synthetic": 5}]}},
            "spec.trainer.data.sources[0]: has text and synthetic; give exactly one",
        ),
        (
            {"data": {"sources": [{"text": ["a"], "type": "uint16"}]}},
            "spec.trainer.data.sources[0].type: is of token files",
        ),
        (
            {"data": {"sources": [{"text": ["a"], "weight": 1}, {"text": ["b"]}]}},
            "spec.trainer.data.sources[1].weight: is missing, and other sources have one; give all or none",
        ),
        ({"data": {"sources": [{"text": ["a"], "weight": float("nan")}]}}, "spec.trainer.data.sources[0].weight: "),
        ({"data": {"files": ["a"], "sources": [{"text": ["a"]}]}}, "spec.trainer.data.files: stands beside sources"),
        ({"data": {"tokenizer": "/t.json"}}, "spec.trainer.data.separator: must be given with a tokenizer"),
        ({"data": {"separator": 260}}, "spec.trainer.data.separator: 260 is no token of 260"),
        (
            {"model": {"vocabulary": 256}},
            "spec.trainer.model.vocabulary: 256 does not hold the 256 bytes and the separator",
        ),
        (
            {"model": {"maxSequenceLength": 64}, "data": {"sequenceLength": 65}},
            "spec.trainer.data.sequenceLength: 65 is more than the model is meant for (model.maxSequenceLength: 64)",
        ),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused_with_the_path(trainer, sentence):
    with pytest.raises(InvalidTrainerConfig) as error:
        parse(trainer)
    assert str(error.value).startswith(sentence)


def test_a_token_beyond_the_vocabulary_ends_a_training_with_78(tmp_path):
    name = bin_file(tmp_path / "a.bin", [300] * 1000)
    trainer = {**TINY, "data": {"sources": [{"tokens": [name]}], "sequenceLength": 8, "globalBatch": 4}}
    environment = plan_file(tmp_path / "plan.json", tmp_path / "run", ranks=1, trainer=trainer)
    (ended,) = run(lambda rank: main([]), 1, tmp_path / "gang", environments={0: environment})
    assert ended.code == Exit.CONFIGURATION, ended.output
    assert ended.reports[-1].configuration
    assert "is 300, and the model has tokens 0 to 259" in ended.reports[-1].message
