"""history.jsonl: one line for every step that counts, kept by rank 0 beside the checkpoints.

    {"attempt": 2, "step": 41, "samples": "9f0c...", "loss": "0x1.8p+1"}

The loss is in hexadecimal, so that two runs can be compared bit for bit. A new attempt begins with a file of its own,
which holds the lines up to the step where it goes on, and takes the old one's name: an older attempt that still writes,
writes into a file that has no name any more.

In an object store, where nothing can be added to a file, each save puts the lines since the one before it:

    history/attempt-0002.00000021-00000040.jsonl

Of a step that stands in several, the line of the latest attempt counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, Protocol

from trainyard_trainer.checkpoint.folder import sync_directory
from trainyard_trainer.checkpoint.objects import Objects, Url
from trainyard_trainer.checkpoint.store import attempt_name

NAME = "history.jsonl"
FOLDER = "history"
SEGMENTS_READ = 8  # by an attempt that begins


class Lines(Protocol):
    """The history, as an attempt adds to it. missing: how many of the steps before the attempt have no line. losses: of the
    others, in order, or of the newest of them.

    Raises OSError where it cannot be written.
    """

    missing: int
    losses: list[float]

    def add(self, step: int, samples: str, loss: float) -> None:
        """A step is done."""

    def sync(self) -> None:
        """Make the lines so far durable."""

    def close(self) -> None:
        """Make them durable; there will be no more."""


def lines_at(root: PurePath, attempt: int, resumed_step: int) -> Lines:
    """The history beside the checkpoints below `root`, of an attempt that goes on after `resumed_step`."""
    return (
        Segments(root, attempt, resumed_step) if isinstance(root, Url) else History(Path(root), attempt, resumed_step)
    )


class Chronicle:
    """The history of an attempt, which is worth no training: a volume that is full or gone ends it, and `warn` says so.

    Nothing is written before it is open, and by other ranks than the first it never is.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._lines: Lines | None = None
        self.losses: list[float] = []

    def open(self, root: PurePath, attempt: int, step: int) -> None:
        """Of an attempt that goes on after `step`, beside the checkpoints below `root`."""
        self._lines = lines_at(root, attempt, step)
        self.losses = self._lines.losses
        if self._lines.missing:
            self._warn(
                "HistoryGap", f"history.jsonl lacks {self._lines.missing} of the {step} steps before this attempt"
            )

    def add(self, step: int, samples: str, loss: float) -> None:
        """A step is done."""
        self._do(lambda lines: lines.add(step, samples, loss))

    def sync(self) -> None:
        """Make the lines so far durable."""
        self._do(lambda lines: lines.sync())

    def close(self) -> None:
        """Make them durable; there will be no more."""
        self._do(lambda lines: lines.close())
        self._lines = None

    def _do(self, work: Callable[[Lines], None]) -> None:
        if self._lines is not None:
            try:
                work(self._lines)
            except OSError as error:
                self._lines = None
                self._warn(
                    "HistoryNotWritten", f"history.jsonl: {error.strerror}; the steps from now on will be missing"
                )


class History:
    """The file, open at its end. Lines are flushed at every step, and synced when a checkpoint is committed."""

    def __init__(self, folder: Path, attempt: int, resumed_step: int) -> None:
        """missing: how many of the steps up to `resumed_step` have no line. losses: of the others, in order."""
        kept = [line for line in _lines(folder / NAME) if line["step"] <= resumed_step]
        self.missing = len(set(range(1, resumed_step + 1)) - {line["step"] for line in kept})
        self.losses = [float.fromhex(line["loss"]) for line in kept]
        self._attempt = attempt
        temporary = folder / f".{NAME}.attempt-{attempt}"
        self._stream = temporary.open("w", encoding="utf-8")
        for line in kept:
            self._write(line)
        self.sync()
        temporary.rename(folder / NAME)
        sync_directory(folder)

    def add(self, step: int, samples: str, loss: float) -> None:
        self._write(_line(self._attempt, step, samples, loss))
        self._stream.flush()

    def sync(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self.sync()
        self._stream.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")


class Segments:
    """Lines that are put as an object of their own whenever they are to be durable."""

    def __init__(self, root: Url, attempt: int, resumed_step: int) -> None:
        self._objects, self._folder = Objects(root), root / FOLDER
        self._attempt = attempt
        self._lines: list[dict[str, Any]] = []
        steps = {name: _steps(name) for name in self._objects.sizes(self._folder)}
        had = {step for some in steps.values() for step in some if step <= resumed_step}
        self.missing = resumed_step - len(had)
        known: dict[int, float] = {}
        newest = sorted(steps, key=lambda name: steps[name][-1])[-SEGMENTS_READ:]
        for name in sorted(newest):  # of a step that stands in several, the latest attempt's comes last
            rows = self._objects.get(self._folder / name).decode().splitlines()
            known |= {one["step"]: float.fromhex(one["loss"]) for one in map(json.loads, rows)}
        self.losses = [known[step] for step in sorted(known) if step <= resumed_step]

    def add(self, step: int, samples: str, loss: float) -> None:
        self._lines.append(_line(self._attempt, step, samples, loss))

    def sync(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            name = f"{attempt_name(self._attempt)}.{lines[0]['step']:08d}-{lines[-1]['step']:08d}.jsonl"
            self._objects.put(self._folder / name, "".join(json.dumps(one) + "\n" for one in lines).encode())

    def close(self) -> None:
        self.sync()


def _steps(name: str) -> range:
    """That a segment has lines of."""
    first, _, last = name.removesuffix(".jsonl").rpartition(".")[2].partition("-")
    return range(int(first), int(last) + 1)


def _line(attempt: int, step: int, samples: str, loss: float) -> dict[str, Any]:
    """What stands in the history of a step."""
    return {"attempt": attempt, "step": step, "samples": samples, "loss": loss.hex()}


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read; a line cut off by a crash is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = []
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines
