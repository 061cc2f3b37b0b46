"""Which commits an attempt may go on from, and which it may delete: what stands between a store and a load or a save.

Everything that touches the store is done by the first rank alone; what counts (`line`, `good`) is the same on all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath

from trainyard.contract.plan import Lineage, Mark

from trainyard_trainer.checkpoint.record import expendable, history
from trainyard_trainer.checkpoint.store import Problem, Store, Stored, owner


@dataclass(slots=True)
class Keeper:
    """The history of one attempt in its store.

    warn: where a reason and a message go. line: what counts, newest first. good: of these, what this attempt wrote or saw
    verify.
    """

    store: Store
    lineage: Lineage
    keep: int
    job: str
    warn: Callable[[str, str], None]
    line: list[Stored] = field(default_factory=list)
    good: list[Mark] = field(default_factory=list)
    _spared: frozenset[int] | None = None

    def candidates(self) -> tuple[tuple[Stored, ...], tuple[Problem, ...]]:
        """Claim the store, and inherit what may be resumed from, newest first.

        Also what of the history cannot be read or taken over, and why.
        """
        self.store.claim(self.job)
        found = self.store.find()
        earlier = {mark.attempt for mark in self.lineage.history}
        unreadable = [(path, problem) for path, problem in found.unreadable if owner(path) in earlier]
        for path, problem in unreadable:
            self.warn("CheckpointUnreadable", f"{path}: {problem}")
        ours = [stored for stored in found.commits if stored.record.job == self.job]
        line = history([stored.record for stored in ours], self.lineage)
        places = {stored.record.mark: stored for stored in ours}
        resume = self.lineage.resume
        if resume is not None and (not line or line[0].mark != resume):
            self.warn(
                "CheckpointMissing",
                f"{self.store.root}: no commit of step {resume.step} by attempt {resume.attempt} is there",
            )
        self.store.clear(found.unfinished, earlier)
        inherited = [(places[record.mark], self.store.inherit(places[record.mark])) for record in line]
        lost = [taken for _, taken in inherited if isinstance(taken, Problem)]
        for problem in lost:
            self.warn("CheckpointUnreadable", str(problem))
        # Left alone: what could not be read or inherited now and may be later, and what is another job's.
        left = [path for path, _ in found.unreadable]
        left += [stored.path for stored, taken in inherited if isinstance(taken, Problem)]
        left += [stored.path for stored in found.commits if stored.record.job != self.job]
        self._spared = frozenset(number for path in left if (number := owner(path)) is not None)
        candidates = tuple(taken for _, taken in inherited if isinstance(taken, Stored))
        problems = (*(Problem(f"{path}: {problem}", problem.lasting) for path, problem in unreadable), *lost)
        return candidates, problems

    def loaded(self, line: tuple[Stored, ...], *, verified: bool = True) -> None:
        """The first of these was loaded, the others come before it. verified: as it lies in the store."""
        self.line, self.good = list(line), [line[0].record.mark] if verified else []

    def saved(self, stored: Stored) -> None:
        """This attempt has committed."""
        self.line.insert(0, stored)
        self.good.append(stored.record.mark)

    def retain(self, *, delete: bool) -> None:
        """Forget what has become expendable. delete: on the first rank, which deletes it too."""
        gone = set(expendable([s.record.mark for s in self.line], self.good, self.keep, self.lineage.resume))
        if delete:
            for stored in self.line:
                if stored.record.mark in gone:
                    try:
                        self.store.delete(stored.path)
                    except OSError as error:
                        self.warn("CheckpointNotDeleted", f"{stored.path}: {error}")
            self._abandon()
        self.line = [stored for stored in self.line if stored.record.mark not in gone]

    def discard(self, path: PurePath) -> None:
        """Free the room that a failed save takes: all ranks have agreed that it failed, so nobody writes there."""
        try:
            self.store.discard(path)
        except OSError as error:
            self.warn("CheckpointNotDeleted", f"{path}: {error}")

    def _abandon(self) -> None:
        """After this attempt's first commit, nothing that it did not inherit can count: delete it, once."""
        spared, self._spared = self._spared, None
        if spared is not None:
            try:
                self.store.abandon(spared)
            except OSError as error:
                self.warn("CheckpointNotDeleted", f"{self.store.root}: {error}")
