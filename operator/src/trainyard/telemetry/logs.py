"""Logs as one JSON object a line, each with the job and attempt that it is about.

Whose turn it is travels in a context variable: a line that is written anywhere below, in a library as well, says the job without
being told. Values that an API server or a pod sent stay values of JSON, so a newline in them makes no second line.
"""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

from trainyard.api.model import rfc3339

_ABOUT: Final[contextvars.ContextVar[About | None]] = contextvars.ContextVar("about", default=None)


@dataclass(frozen=True, slots=True)
class About:
    """job: namespace/name. attempt: the one that runs or ran last, 0 before the first."""

    job: str
    attempt: int = 0


@contextmanager
def about(job: str, attempt: int = 0) -> Iterator[None]:
    """Lines written inside, and by tasks started inside, name this job."""
    token = _ABOUT.set(About(job, attempt))
    try:
        yield
    finally:
        _ABOUT.reset(token)


class JsonFormatter(logging.Formatter):
    """time, level, logger, message; job and attempt where known; error: the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line without its end."""
        line: dict[str, str | int] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        subject = _ABOUT.get()
        if subject is not None:
            line |= {"job": subject.job, "attempt": subject.attempt}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Send all logs of this process to `stream` as JSON. level: debug, info, warning or error."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A line per probe, and kopf's greeting, say nothing that a metric does not; whoever debugs may want them.
    for talkative in ("aiohttp.access", "kopf"):
        logging.getLogger(talkative).setLevel(logging.DEBUG if root.level == logging.DEBUG else logging.WARNING)
