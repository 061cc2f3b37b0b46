"""Text becomes the same tokens on every machine, and a text that is not there is the user's to put right."""

import pytest
from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.data.batches import samples
from trainyard_trainer.data.corpus import SEPARATOR, VOCABULARY, read


def test_files_are_taken_by_name_and_each_once(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xffb")
    (tmp_path / "deep" / "a.txt").write_bytes(b"a")
    corpus = read([f"{tmp_path}/**/*.txt", f"{tmp_path}/b.txt"])
    assert corpus.tokens.tolist() == [0xFF, ord("b"), SEPARATOR, ord("a"), SEPARATOR]
    assert corpus.files == 2


def test_the_digest_is_that_of_the_tokens(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("text")
    two.write_text("text")
    assert read([str(one)]).digest == read([str(two)]).digest
    two.write_text("tent")
    assert read([str(one)]).digest != read([str(two)]).digest


def test_the_standard_library_is_there_without_a_pattern():
    corpus = read([])
    assert corpus.files > 100
    assert len(corpus.tokens) > 1_000_000
    assert int(corpus.tokens.max()) < VOCABULARY


def test_a_pattern_that_matches_nothing_is_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(BadConfiguration, match=r"data\.files: .*/b\*\.txt matches no file"):
        read([f"{tmp_path}/a.txt", f"{tmp_path}/b*.txt"])


def test_empty_files_are_no_text(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(BadConfiguration, match="all empty"):
        read([f"{tmp_path}/a.txt"])


def test_a_sample_longer_than_the_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    corpus = read([f"{tmp_path}/a.txt"])
    assert samples(corpus, 4) == 1
    with pytest.raises(BadConfiguration, match=r"data\.sequenceLength: 5 is more"):
        samples(corpus, 5)
