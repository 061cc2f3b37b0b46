"""A log line is one JSON object that says whom it is about."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from trainyard.telemetry.logs import about, configure


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    configure("info", written)
    yield written
    root.handlers[:], root.level = handlers, level


def test_a_line_names_the_job_and_attempt_of_the_turn(stream: io.StringIO) -> None:
    with about("team/small-lm", attempt=2):
        logging.getLogger("some.library").warning("slow down, %s", "please")
    logging.getLogger("some.library").warning("about nobody")
    named, unnamed = map(json.loads, stream.getvalue().splitlines())
    assert (named["job"], named["attempt"], named["message"]) == ("team/small-lm", 2, "slow down, please")
    assert "job" not in unnamed


def test_a_newline_from_outside_makes_no_second_line(stream: io.StringIO) -> None:
    logging.getLogger("x").error('first\n{"level": "info"}')
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == 'first\n{"level": "info"}'


def test_an_exception_comes_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "ValueError: no" in json.loads(stream.getvalue())["error"]
