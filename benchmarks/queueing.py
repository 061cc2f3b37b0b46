"""The queue under which all policies are compared: first come, first served, with back-fill that never delays the head.

The head of the queue starts as soon as its policy finds it a place. Until then it holds a reservation: the earliest time at
which, with what has ended by then, the policy would place it, and the nodes it would get. A later job may start meanwhile if
it ends before that time, or on other nodes. How long a job runs is known, so the reservation holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from trainyard.world.supply import Supply

from benchmarks.contention import Network
from benchmarks.rivals.rival import Rival

LOOKED_AT = 100
"""How many jobs behind the head back-fill looks at."""


@dataclass(frozen=True, slots=True)
class Work:
    """A job. seconds: how long it runs where its communication is as fast as can be."""

    number: int
    submitted: float
    seconds: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Run:
    """A job that had its turn. ranks: positions of its nodes. slowdown: of its communication."""

    work: Work
    start: float
    end: float
    ranks: tuple[int, ...]
    slowdown: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the head of the queue will get, and when."""

    time: float
    nodes: tuple[int, ...]


class Yard:
    """A cluster with its queue under one policy. share: of a job's time that it communicates when that is as fast as can be."""

    def __init__(self, empty: Supply, policy: Rival, network: Network, share: float) -> None:
        self._room = empty.copy()
        self._policy = policy
        self._network = network
        self._share = share
        self._queue: list[Work] = []
        self._running: list[tuple[float, int, Run]] = []
        self._reserved: Reservation | None = None
        self.runs: list[Run] = []

    def replay(self, jobs: Sequence[Work]) -> list[Run]:
        """All of them, in the order in which they started."""
        for work in sorted(jobs, key=lambda work: (work.submitted, work.number)):
            while self._running and self._running[0][0] <= work.submitted:
                self._next_end()
            self._queue.append(work)
            if self._reserved is None:
                self._schedule(work.submitted)
            elif len(self._queue) <= 1 + LOOKED_AT:
                self._backfill(work.submitted, self._reserved, [work])  # for the others nothing is better than it was
        while self._running:
            self._next_end()
        if self._queue:
            raise ValueError(f"job {self._queue[0].number} of {self._queue[0].nodes} nodes never had a place")
        return self.runs

    def _next_end(self) -> None:
        """Let the next job end, with all that end at the same time, and look at the queue."""
        now = self._running[0][0]
        while self._running and self._running[0][0] == now:
            _, _, run = heappop(self._running)
            _release(self._room, run)
            self._network.add(run.ranks, -1)
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        while self._queue:
            head = self._queue[0]
            ranks = self._place(self._room, head)
            if ranks is None:
                break
            self._queue.pop(0)
            self._reserved = None
            self._start(head, now, ranks)
        if self._queue:
            if self._reserved is None:
                self._reserved = self._reserve(self._queue[0])
            self._backfill(now, self._reserved, self._queue[1 : 1 + LOOKED_AT])

    def _reserve(self, head: Work) -> Reservation:
        """The first end after which the policy finds a place: not before there are as many free nodes, and from there by
        halving, since more room never takes a place away."""
        ends = sorted(self._running)
        if not ends:
            raise ValueError(f"job {head.number} of {head.nodes} nodes has no place on the empty cluster")
        low, free = 0, self._room.free_in[0] + len(ends[0][2].ranks)
        while free < head.nodes and low + 1 < len(ends):
            low += 1
            free += len(ends[low][2].ranks)
        high, nodes, middle = len(ends), list[int](), low
        while low < high:
            later = self._room.copy()
            for _, _, run in ends[: middle + 1]:
                _release(later, run)
            found = self._place(later, head)
            if found is None:
                low = middle + 1
            else:
                high, nodes = middle, found
            middle = (low + high) // 2
        if not nodes:
            raise ValueError(f"job {head.number} of {head.nodes} nodes has no place once all others have ended")
        return Reservation(ends[low][0], tuple(nodes))

    def _backfill(self, now: float, reserved: Reservation, candidates: Sequence[Work]) -> None:
        beside = self._room.copy()
        for position in reserved.nodes:
            beside.put(position, 0)
        started: set[int] = set()
        for work in candidates:
            if self._room.free_in[0] == 0:
                break
            ranks = self._before(work, now, reserved.time) or self._place(beside, work)
            if ranks is None:
                continue
            started.add(work.number)
            self._start(work, now, ranks)
            for position in ranks:
                beside.put(position, min(beside.slots[position], self._room.slots[position]))
        if started:
            self._queue = [work for work in self._queue if work.number not in started]

    def _before(self, work: Work, now: float, deadline: float) -> Sequence[int] | None:
        """A place where a job ends in time."""
        if now + work.seconds > deadline:
            return None
        ranks = self._place(self._room, work)
        return ranks if ranks is not None and now + self._length(work, ranks)[0] <= deadline else None

    def _place(self, room: Supply, work: Work) -> list[int] | None:
        return self._policy.place(room, work.nodes) if room.free_in[0] >= work.nodes else None

    def _length(self, work: Work, ranks: Sequence[int]) -> tuple[float, float]:
        """How long a job runs on these nodes beside those that run, and the slowdown of its communication."""
        slowdown = self._network.slowdown(ranks)
        return work.seconds * (1 - self._share + self._share * slowdown), slowdown

    def _start(self, work: Work, now: float, ranks: Sequence[int]) -> None:
        seconds, slowdown = self._length(work, ranks)
        run = Run(work, now, now + seconds, tuple(ranks), slowdown)
        for position in ranks:
            self._room.put(position, self._room.slots[position] - 1)
        self._network.add(ranks)
        heappush(self._running, (run.end, work.number, run))
        self.runs.append(run)


def _release(room: Supply, run: Run) -> None:
    for position in run.ranks:
        room.put(position, room.slots[position] + 1)
