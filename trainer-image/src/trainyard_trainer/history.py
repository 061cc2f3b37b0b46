"""history.jsonl: one line for every step that counts, kept by rank 0 beside the checkpoints.

    {"attempt": 2, "step": 41, "samples": "9f0c...", "loss": "0x1.8p+1"}

The loss is in hexadecimal, so that two runs can be compared bit for bit. A new attempt begins with a file of its own,
which holds the lines up to the step where it goes on, and takes the old one's name: an older attempt that still writes,
writes into a file that has no name any more.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainyard_trainer.checkpoint.store import sync_directory

NAME = "history.jsonl"


class History:
    """The file, open at its end. Lines are flushed at every step, and synced when a checkpoint is committed."""

    def __init__(self, folder: Path, attempt: int, resumed_step: int) -> None:
        """missing: how many of the steps up to `resumed_step` have no line."""
        kept = [line for line in _lines(folder / NAME) if line["step"] <= resumed_step]
        self.missing = len(set(range(1, resumed_step + 1)) - {line["step"] for line in kept})
        self._attempt = attempt
        temporary = folder / f".{NAME}.attempt-{attempt}"
        self._stream = temporary.open("w", encoding="utf-8")
        for line in kept:
            self._write(line)
        self.sync()
        temporary.rename(folder / NAME)
        sync_directory(folder)

    def add(self, step: int, samples: str, loss: float) -> None:
        """A step is done."""
        self._write({"attempt": self._attempt, "step": step, "samples": samples, "loss": loss.hex()})
        self._stream.flush()

    def sync(self) -> None:
        """Make the lines so far durable."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self.sync()
        self._stream.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")


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
