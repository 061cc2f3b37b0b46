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
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path, PurePath
from typing import Any, Protocol

from trainyard_trainer.checkpoint.folder import sync_directory
from trainyard_trainer.checkpoint.objects import Objects, Url
from trainyard_trainer.checkpoint.store import attempt_name

NAME = "history.jsonl"
FOLDER = "history"


class Lines(Protocol):
    """The history, as an attempt adds to it. missing: how many of the steps before the attempt have no line.

    Raises OSError where it cannot be written.
    """

    missing: int

    def losses(self, most: int) -> list[float]:
        """The newest finite ones of the steps before the attempt, in order."""

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

    def open(self, root: PurePath, attempt: int, step: int) -> None:
        """Of an attempt that goes on after `step`, beside the checkpoints below `root`."""
        self._lines = lines_at(root, attempt, step)
        if self._lines.missing:
            self._warn(
                "HistoryGap", f"history.jsonl lacks {self._lines.missing} of the {step} steps before this attempt"
            )

    def losses(self, most: int) -> list[float]:
        """The newest finite ones of the steps before the attempt, in order; none where it is not open."""
        return [] if self._lines is None else self._lines.losses(most)

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
        """missing: how many of the steps up to `resumed_step` have no line."""
        kept = [line for line in _lines(folder / NAME) if line["step"] <= resumed_step]
        self.missing = len(set(range(1, resumed_step + 1)) - {line["step"] for line in kept})
        self._losses = {line["step"]: float.fromhex(line["loss"]) for line in kept}
        self._attempt = attempt
        temporary = folder / f".{NAME}.attempt-{attempt}"
        self._stream = temporary.open("w", encoding="utf-8")
        for line in kept:
            self._write(line)
        self.sync()
        temporary.rename(folder / NAME)
        sync_directory(folder)

    def losses(self, most: int) -> list[float]:
        return [self._losses[step] for step in _newest(self._losses, most)]

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
        self._resumed_step = resumed_step
        self._before = {name: _steps(name) for name in self._objects.sizes(self._folder)}
        had = {step for some in self._before.values() for step in some if step <= resumed_step}
        self.missing = resumed_step - len(had)

    def losses(self, most: int) -> list[float]:
        """Reads the newest segments, as many as it takes."""
        known: dict[int, tuple[str, float]] = {}
        for name in sorted(self._before, key=lambda name: self._before[name][-1], reverse=True):
            newest = _newest({step: loss for step, (_, loss) in known.items()}, most) if len(known) >= most else []
            if len(newest) == most and self._before[name][-1] < newest[0]:
                break
            for line in map(json.loads, self._objects.get(self._folder / name).decode().splitlines()):
                step, found = line["step"], (name, float.fromhex(line["loss"]))
                if step <= self._resumed_step and (step not in known or known[step][0] < name):  # the latest attempt's
                    known[step] = found
        return [known[step][1] for step in _newest({step: loss for step, (_, loss) in known.items()}, most)]

    def add(self, step: int, samples: str, loss: float) -> None:
        self._lines.append(_line(self._attempt, step, samples, loss))

    def sync(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            name = f"{attempt_name(self._attempt)}.{lines[0]['step']:08d}-{lines[-1]['step']:08d}.jsonl"
            self._objects.put(self._folder / name, "".join(json.dumps(one) + "\n" for one in lines).encode())

    def close(self) -> None:
        self.sync()


def _newest(losses: Mapping[int, float], most: int) -> list[int]:
    """The last steps whose loss is finite, in order."""
    return sorted(step for step, loss in losses.items() if isfinite(loss))[-most:]


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
