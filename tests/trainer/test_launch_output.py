"""Bytes of a worker reach the log as they are, and its reports are found in whatever comes through the pipe."""

import os

from hypothesis import given
from hypothesis import strategies as st
from trainyard_trainer.launch.output import PIECE_BYTES, Lines
from trainyard_trainer.launch.workers import Reports
from trainyard_trainer.report import Failed, encode

chunks = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"x\n", b"\r\n"]), max_size=12)
REPORT = Failed(at=1.0, rank=0, error="E", message="m")


@given(chunks)
def test_without_a_prefix_every_byte_is_passed_on(said):
    lines = Lines(b"")
    assert b"".join([*map(lines.feed, said), lines.end()]) == b"".join(said)


@given(chunks)
def test_with_a_prefix_it_stands_before_each_line_and_nothing_else_changes(said):
    lines = Lines(b"[rank 0] ")
    out = b"".join([*map(lines.feed, said), lines.end()])
    whole = b"".join(said)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert out == b"".join(b"[rank 0] " + line + b"\n" for line in expected)


@given(st.integers(1, 5 * PIECE_BYTES), st.integers(100, 2 * PIECE_BYTES))
def test_a_long_line_comes_in_pieces_and_whole(length, chunk):
    lines = Lines(b"> ")
    line = bytes(range(65, 91)) * (length // 26 + 1)
    out = [lines.feed(line[at : at + chunk]) for at in range(0, len(line), chunk)]
    pieces = b"".join([*out, lines.feed(b"\n")]).split(b"\n")[:-1]
    assert b"".join(piece.removeprefix(b"> ") for piece in pieces) == line
    assert max(map(len, pieces)) <= PIECE_BYTES + 2


def read_all(*written):
    reader, writer = os.pipe()
    reports = Reports(reader)
    found = []
    try:
        for data in written:
            os.write(writer, data)
            found += reports.read()[0]
        return found + reports.drain(), reports.unreadable
    finally:
        os.close(reader)
        os.close(writer)


@given(st.integers(0, 200), st.binary(max_size=30).map(lambda noise: noise.replace(b"\n", b"")))
def test_a_report_is_found_between_noise_and_however_it_is_cut(cut, noise):
    data = noise + b"\n" + encode(REPORT) + noise
    found, unreadable = read_all(data[:cut], data[cut:])
    assert found == [REPORT]
    assert unreadable == 1


def test_a_line_without_end_is_skipped_to_its_end():
    found, unreadable = read_all(b"x" * 30_000, b"y" * 30_000, encode(REPORT), encode(REPORT))
    assert found == [REPORT]
    assert unreadable == 1
