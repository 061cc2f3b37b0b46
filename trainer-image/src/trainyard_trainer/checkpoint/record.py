"""The commit record of a checkpoint, which commits are history, and which may go. All pure.

A directory without a record is not a checkpoint. The record names every file with size and hash, and the commit that it
continues: so the commits of a folder form trees, and the plan's lineage says which path through them counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.contract.codec import ContractError, dumps, loads
from trainyard.contract.plan import Axis, Lineage, Mark

FORMAT = 1
LEAST_KEPT = 2
"""However few the user wants to keep: with a single commit, one bad disk block would be the end of the run."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """name: within the checkpoint's directory. sha256: hex, of the bytes as they were written."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Training:
    """What is being trained, as far as it decides what comes next: order and random numbers are functions of (seed,
    step).

    data: digest of the corpus. model: shape of the network. configuration: digest of the trainer's whole configuration.
    """

    seed: int
    data: str
    model: Mapping[str, Any]
    configuration: str


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What makes a directory of files a checkpoint.

    attempt, step: who wrote it, after which step. parent: the commit that the attempt resumed from or wrote before this
        one;
    None: the beginning. parent_path: where it lay at the time. job: uid of the job, "" outside a cluster.
    samples: digest of the sample ids of `step`, "" at step 0. time: seconds since the epoch.
    """

    attempt: int
    step: int
    files: tuple[StoredFile, ...]
    world_size: int
    mesh: tuple[Axis, ...]
    job: str
    samples: str
    training: Training
    time: float
    parent: Mark | None = None
    parent_path: str = ""
    format: int = FORMAT

    @property
    def mark(self) -> Mark:
        return Mark(self.attempt, self.step)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


def encode(record: CommitRecord) -> str:
    """The text of a commit record."""
    return dumps(record)


def decode(text: str | bytes) -> CommitRecord:
    """Read a commit record; ContractError says what is wrong with it, a file outside the directory included."""
    record = loads(CommitRecord, text)
    if record.format > FORMAT:
        raise ContractError(
            f"CommitRecord.format: {record.format} is newer than {FORMAT}, the newest that this image reads"
        )
    for file in record.files:
        if not file.name or "/" in file.name or file.name in (".", ".."):
            raise ContractError(f"CommitRecord.files: {file.name!r} is not a name within the directory")
    return record


def history(commits: Collection[CommitRecord], lineage: Lineage) -> tuple[CommitRecord, ...]:
    """The commits that count, newest first: the first one that verifies is where to go on.

    A commit counts if its attempt is in the lineage, at or before its mark, and no later attempt of the lineage went on
    from something earlier. A commit to resume from, where the lineage names one, bounds them all.
    """
    position = {mark.attempt: n for n, mark in enumerate(lineage.history)}
    limit = {mark.attempt: mark.step for mark in lineage.history}
    resume = lineage.resume
    if resume is not None and resume.attempt not in position:
        position[resume.attempt], limit[resume.attempt] = len(position), resume.step
    bound = (len(position), 0) if resume is None else (position[resume.attempt], resume.step)
    line: list[CommitRecord] = []
    candidates = {c.mark: c for c in commits if c.attempt in position and _within(c.step, limit[c.attempt])}
    for commit in sorted(candidates.values(), key=lambda c: (position[c.attempt], c.step), reverse=True):
        if (position[commit.attempt], commit.step) > bound:
            continue
        line.append(commit)
        if commit.parent is None:
            break
        bound = (position.get(commit.parent.attempt, -1), commit.parent.step)
    return tuple(line)


def expendable(line: Sequence[Mark], good: Collection[Mark], keep: int, named: Mark | None) -> tuple[Mark, ...]:
    """Which commits of a history may be deleted: those older than the `keep` newest good ones, at least LEAST_KEPT.

    line: newest first, only what this attempt wrote or inherited. good: those that it wrote or saw verify. What was
        never
    verified does not count as kept, so doubt keeps more. named: the commit that the plan names; it stays.
    """
    wanted = max(keep, LEAST_KEPT)
    kept = 0
    for n, mark in enumerate(line):
        kept += mark in good
        if kept == wanted:
            return tuple(older for older in line[n + 1 :] if older != named)
    return ()


def _within(step: int, limit: int) -> bool:
    """A mark of -1 has no limit: nobody could ask the attempt how far it had come."""
    return limit < 0 or step <= limit
