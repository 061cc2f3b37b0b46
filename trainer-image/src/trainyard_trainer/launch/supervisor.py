"""The launcher itself: one thread that owns the workers and everything known of them, and decides what comes next.

Signals, reports, requests and time limits all arrive in the same loop, so there is nothing to lock. The order of events: the
workers run; a stop is asked (they save and leave by themselves until its deadline), or one of them fails, or falls silent;
then whoever is left is told to end (SIGTERM), and soon after made to (SIGKILL). After a failure the launcher says what its last
words are and stays for a while: a later plan begins the next attempt in the same pod, without its image, its volumes and its
imports being fetched again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trainyard.contract.network import PodNetwork
from trainyard.contract.plan import Plan, encode
from trainyard.contract.status import LastWords

from trainyard_trainer.launch import workers
from trainyard_trainer.launch.attempt import Attempt, End, Settings
from trainyard_trainer.launch.ending import Hang, Notice, ending, first_fault, may_go_on
from trainyard_trainer.launch.endpoint import Endpoint
from trainyard_trainer.launch.guard import Guard
from trainyard_trainer.launch.hang import furthest_behind, sentence
from trainyard_trainer.launch.loop import Loop
from trainyard_trainer.launch.output import Console, Voice, join_all
from trainyard_trainer.launch.progress import heard
from trainyard_trainer.launch.starting import Start
from trainyard_trainer.launch.workers import Worker
from trainyard_trainer.launch.zygote import Zygote
from trainyard_trainer.report import Report, StopAcknowledged

TICK_SECONDS: Final = 1.0
"""The longest the loop sleeps: how late a deadline may be noticed."""
FREEZE_SECONDS: Final = 5.0
"""A loop that slept this much longer than it wanted to was frozen (SIGSTOP, a suspended machine)."""
TERM_SECONDS: Final = 5.0
"""From SIGTERM to SIGKILL: workers that wait in a collective for a dead peer have nothing to finish."""
REPLACED_SECONDS: Final = 1.0
"""The same where a later plan has come: the gang has given this attempt up, and nothing that a worker still does counts."""
KILL_SECONDS: Final = 10.0
"""From SIGKILL until a process is given up: one in uninterruptible sleep (a dead volume) may never end."""
REAP_SECONDS: Final = 0.02
"""Between two looks at what was killed."""
FLUSH_SECONDS: Final = 3.0
"""For the last lines of the workers to reach the log."""
PLAN_SECONDS: Final = 60.0
"""How long a launcher whose workers have failed stays for a later plan. The operator hears of a failure within a few seconds; a
new leader takes over within 15 s of the old one's end; restarts that bring no step are held back by 5, 10 and 20 s first. A
longer wait would cost more of the node's time than a new pod does."""
REASON_CHARACTERS: Final = 500


class Supervisor:
    """Runs an attempt, and the next one in its place where the operator hands over a later plan."""

    def __init__(
        self, settings: Settings, loop: Loop, voice: Voice, guard: Guard, leave_words: Callable[[LastWords], None]
    ) -> None:
        self._folder = workers.private_folder()
        self.attempt = Attempt(settings, self._folder)
        self.taken: Settings | None = None
        self.warnings: list[str] = []
        self._guard = guard
        self._loop = loop
        self._voice = voice
        self._leave_words = leave_words
        self._console = Console(1)
        self._start: Start | None = None
        self._warm: Zygote | None = None
        self._endpoint = Endpoint(self, settings, loop.wake)
        self._network_before: PodNetwork | None = None
        self._awake_since = time.monotonic()

    def run(self) -> LastWords:
        """Start the workers, see them to their end, and say how it was. Leaves no process and no file behind."""
        try:
            self._endpoint.listen()
            self._run_attempt()
            while self._goes_on():
                assert self.taken is not None
                self._network_before = self.attempt.network
                self.attempt, self.taken = Attempt(self.taken, self._folder), None
                self._voice.say(f"attempt {self.attempt.number} begins, as node rank {self.attempt.settings.node_rank}")
                self._run_attempt()
            end = self.attempt.ended
            return end.words if end is not None else ending(self.attempt.happened())
        finally:
            if self._warm is not None:
                self._warm.close()
                self._warm = None
            self._end_children()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _goes_on(self) -> bool:
        """Whether a later plan is there, or comes in time. Until then the last words stand: a pod that is killed now has said
        them."""
        happened = self.attempt.happened()
        words = ending(happened)
        clean = not workers.children(but=self._warm_pid)  # what cannot be killed holds memory, ports and devices
        if self.taken is None and clean and self._endpoint.can_be_told and may_go_on(happened, words):
            self.attempt.ended = End(words, time.time())
            self._leave_words(words)
            self._voice.say(f"{words.cause}; waiting for a later plan, for {PLAN_SECONDS:.0f} s at most")
            until = time.monotonic() + PLAN_SECONDS
            while self.taken is None and self.attempt.notice is None and time.monotonic() < until:
                self._turn()
        return self.taken is not None

    def _run_attempt(self) -> None:
        try:
            self._start = Start(
                self.attempt,
                self._loop,
                self._voice,
                self._console,
                started=self._started,
                failed=lambda why: self._end_all(time.monotonic(), why),
                warn=self.warn,
                before=self._network_before,
                warm=self._warm,
                warmed=self._warmed,
            )
            while self._running():
                self._turn()
        finally:
            self._clear_away()

    def _clear_away(self) -> None:
        """End whatever is left of the workers and of what they started, and let their last lines out."""
        self._end_children()
        for worker in self.attempt.workers:
            self._loop.forget(worker.reports.fd)
            worker.reports.close()
        join_all([s for w in self.attempt.workers for s in (w.out, w.err)], FLUSH_SECONDS)

    def _end_children(self) -> None:
        """All but the parent of workers to come."""
        until = time.monotonic() + KILL_SECONDS
        while (left := workers.children(but=self._warm_pid)) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(REAP_SECONDS)
            self._reap()

    # The loop

    def _turn(self) -> None:
        wanted = self._seconds_to_next()
        before = time.monotonic()
        signals = self._loop.wait(wanted)
        now = time.monotonic()
        if now - before > wanted + FREEZE_SECONDS:
            self._awake_since = now
        for number in signals - {signal.SIGCHLD}:
            self.stop(number.name, now + self.attempt.settings.grace_seconds)
        self._reap()
        self._endpoint.serve(now)
        if self._start is not None:
            self._start.turn(now)
        self._judge(time.monotonic())

    def _seconds_to_next(self) -> float:
        until = [at - time.monotonic() for at in (self.attempt.deadline, self.attempt.kill_at) if at is not None]
        return min([TICK_SECONDS, *(seconds for seconds in until if seconds > 0)])

    def _running(self) -> bool:
        if self.attempt.kill_at is not None and time.monotonic() > self.attempt.kill_at + KILL_SECONDS:
            self._give_up()
        return self.attempt.preparing or any(worker.alive for worker in self.attempt.workers)

    # Workers

    @property
    def _warm_pid(self) -> int | None:
        return self._warm.pid if self._warm is not None else None

    def _warmed(self, zygote: Zygote) -> None:
        self._warm = zygote

    def _started(self, worker: Worker) -> None:
        self._guard.watch(worker.pid)
        self._loop.watch(worker.reports.fd, lambda: self._listen_to(worker))

    def _listen_to(self, worker: Worker) -> None:
        reports, more = worker.reports.read()
        for report in reports:
            self._hear(worker, report)
        if not more:
            self._loop.forget(worker.reports.fd)

    def _hear(self, worker: Worker, report: Report) -> None:
        commit = worker.progress.commit
        worker.progress = heard(worker.progress, report, self.attempt.number, time.monotonic())
        if isinstance(report, StopAcknowledged) and self.attempt.notice is None and self.taken is None:
            self.stop("the gang agreed to stop", time.monotonic() + self.attempt.settings.grace_seconds)
        if worker.progress.commit != commit:
            self._leave_provisional_words()

    def _reap(self) -> None:
        by_pid = {worker.pid: worker for worker in self.attempt.workers if worker.alive}
        for pid, code in workers.reap().items():
            if pid in by_pid:
                worker = by_pid[pid]
                for report in worker.reports.drain():
                    self._hear(worker, report)
                worker.ended(code)
                self._guard.forget(pid)
            elif self._warm is not None and pid == self._warm.pid:
                self._warm.close()
                self._warm = None  # the next attempt imports anew

    def _give_up(self) -> None:
        for worker in self.attempt.workers:
            if worker.alive:
                self.warn(f"rank {worker.rank} does not end after SIGKILL (uninterruptible sleep); given up")
                worker.ended(-signal.SIGKILL)

    # Decisions

    def _judge(self, now: float) -> None:
        running = self.attempt.running()
        if self.attempt.kill_at is not None:
            if now >= self.attempt.kill_at:
                for worker in running:
                    worker.signal(signal.SIGKILL)
            return
        fault = first_fault(self.attempt.ends(), self.attempt.notice)
        if fault is not None:
            self._end_all(now, f"rank {fault.rank} failed: {fault.message}")
        elif self.attempt.deadline is not None and now >= self.attempt.deadline and (running or self.attempt.preparing):
            self.attempt.overdue = True
            self._end_all(now, "the deadline of the stop has passed")
        elif self.attempt.notice is None:
            speakers = [(worker.rank, worker.progress) for worker in running]
            silent = furthest_behind(
                speakers, self.attempt.settings.plan.process_group_timeout_seconds, now, self._awake_since
            )
            if silent is not None:
                self.attempt.hang = Hang(silent, time.time())
                self._end_all(now, sentence(silent))

    def _end_all(self, now: float, why: str, within: float = TERM_SECONDS) -> None:
        running = self.attempt.running()
        self._voice.say(f"{why}; ending {len(running)} other worker(s)" if running else why)
        self.attempt.kill_at = min(self.attempt.kill_at or now + within, now + within)
        if self._start is not None:
            self._start.end()
        for worker in running:
            worker.signal(signal.SIGTERM)

    def stop(self, reason: str, deadline: float) -> None:
        """A stop was asked; deadline: by the monotonic clock. Asked again, the first notice and the earliest deadline count."""
        self.taken = None  # whoever was to start anew leaves instead
        first = self.attempt.notice is None and self.attempt.ended is None
        if self.attempt.notice is None:
            self.attempt.notice = Notice(time.time(), reason[:REASON_CHARACTERS], time.monotonic())
            seconds = deadline - time.monotonic()
            self._voice.say(f"asked to stop ({self.attempt.notice.reason}); {seconds:.0f} s to save and leave")
        if self.attempt.ended is not None:
            return  # its last words are said
        if self.attempt.deadline is None or deadline < self.attempt.deadline:
            self.attempt.deadline = deadline
            epoch = time.time() + deadline - time.monotonic()
            _replace(self.attempt.stop_file, {"reason": self.attempt.notice.reason, "deadline": round(epoch, 3)})
        if first:
            for worker in self.attempt.workers:
                if not self.attempt.settings.speaks and worker.progress.heard is None:
                    worker.signal(signal.SIGTERM)
            self._leave_provisional_words()

    def ask_for_save(self, reason: str) -> None:
        """Let the workers save after their present step, and go on."""
        self.attempt.saves_asked += 1
        _replace(self.attempt.checkpoint_file, {"number": self.attempt.saves_asked, "reason": reason})

    def take(self, plan: Plan, rank: int) -> None:
        """Begin a later attempt, with the part that its plan gives this pod, as soon as the workers of this one have ended."""
        settings = self.taken or self.attempt.settings
        path = self._folder / f"plan-{plan.attempt}.json"
        path.write_text(encode(plan), encoding="utf-8")
        self.taken = dataclasses.replace(settings, plan=plan, plan_path=str(path), node_rank=rank)
        if self.attempt.ended is None:
            self._end_all(time.monotonic(), f"the plan of attempt {plan.attempt} has come", REPLACED_SECONDS)

    def _leave_provisional_words(self) -> None:
        """Should the whole pod be killed before it can end, what is durable is still known."""
        words = ending(self.attempt.happened())
        cause = "the container was killed before its workers had ended"
        self._leave_words(dataclasses.replace(words, exit=128 + signal.SIGKILL, cause=cause))

    def warn(self, message: str) -> None:
        """Tell the operator and the log, once."""
        if message not in self.warnings:
            self.warnings.append(message)
            self._voice.say(message)


def _replace(path: Path, content: Mapping[str, object]) -> None:
    """Write a file so that a reader sees the old one or the new one, whole."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)
