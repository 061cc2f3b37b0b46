"""The processes of a member on this machine: the lab's pods run here, so a test can do to them what a bad night does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PodProcess:
    """pid on this machine. rank: of a worker; None for the launcher and what it keeps beside the workers."""

    pid: int
    rank: int | None


def processes_of(pod_uid: str) -> tuple[PodProcess, ...]:
    """All processes of a pod, known by the uid that Trainyard puts into their environment."""
    found = []
    mark = f"TRAINYARD_POD_UID={pod_uid}"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in environment:
            ranks = [value.partition("=")[2] for value in environment if value.startswith("RANK=")]
            rank = int(ranks[0]) if ranks else _forked_rank(entry)
            found.append(PodProcess(int(entry.name), rank))
    return tuple(found)


def _forked_rank(process: Path) -> int | None:
    """Of a worker that was forked from a parent that had no rank: its name says it."""
    with suppress(OSError):
        name, _, rank = (process / "comm").read_text().strip().partition("-")
        return int(rank) if name == "rank" and rank.isdigit() else None
    return None


def signal_all(processes: Iterable[PodProcess], number: signal.Signals) -> None:
    """Send a signal; who is gone is not missed."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def running_command(*words: str) -> tuple[int, ...]:
    """Pids of processes whose command line holds all of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if all(any(word == part or part.endswith(f"/{word}") for part in line) for word in words):
                    found.append(int(entry.name))
    return tuple(found)
