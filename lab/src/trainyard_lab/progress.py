"""Long steps that say what they are, that they still run, and how long they took.

One line when a step begins, one every `REPEAT_SECONDS` while it runs, one when it ends. Nothing is drawn over:
the same lines read well in a terminal and in the log of a build machine.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REPEAT_SECONDS = 20


def say(line: str) -> None:
    """One line, visible at once, also where standard output is a pipe."""
    print(line, flush=True)


def duration(seconds: float) -> str:
    """``8 s``, ``2 min 5 s``: as short as it reads well."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def step(name: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Report on what happens inside the block.

    detail: asked at every report for what the step can say of itself ("812 packages"); it may be empty.
    A block that raises is reported as failed, with its time, and the exception goes on.
    """
    began = time.monotonic()
    ended = threading.Event()

    def report(verb: str) -> None:
        said = detail()
        say(f"{name}: {verb}{', ' if said else ''}{said} ({duration(time.monotonic() - began)})")

    def repeat() -> None:
        while not ended.wait(REPEAT_SECONDS):
            report("still running")

    say(f"{name} ...")
    reporter = threading.Thread(target=repeat, name=f"progress of {name}", daemon=True)
    reporter.start()
    verb = "failed"
    try:
        yield
        verb = "done"
    finally:
        ended.set()
        reporter.join()
        report(verb)
