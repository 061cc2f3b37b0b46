"""The launcher itself: one thread that owns the workers and everything known of them, and decides what comes next.

Signals, reports, requests and time limits all arrive in the same loop, so there is nothing to lock. The order of events: the
workers run; a stop is asked (they save and leave by themselves until its deadline), or one of them fails, or falls silent;
then whoever is left is told to end (SIGTERM), and soon after made to (SIGKILL).
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
from http import HTTPStatus
from pathlib import Path
from typing import Final

from trainyard.contract import requests
from trainyard.contract.network import PodNetwork
from trainyard.contract.plan import Plan, encode
from trainyard.contract.status import LastWords, Status, encode_status

from trainyard_trainer.launch import control, workers
from trainyard_trainer.launch.attempt import Attempt, Settings
from trainyard_trainer.launch.control import Answer, Control, Get, Mailbox, Question
from trainyard_trainer.launch.ending import Hang, Notice, ending, first_fault
from trainyard_trainer.launch.hang import furthest_behind, sentence
from trainyard_trainer.launch.loop import Loop
from trainyard_trainer.launch.output import Console, Voice, join_all
from trainyard_trainer.launch.progress import heard
from trainyard_trainer.launch.starting import Start
from trainyard_trainer.launch.workers import Worker
from trainyard_trainer.report import Report, StopAcknowledged

TICK_SECONDS: Final = 1.0
"""The longest the loop sleeps: how late a deadline may be noticed."""
FREEZE_SECONDS: Final = 5.0
"""A loop that slept this much longer than it wanted to was frozen (SIGSTOP, a suspended machine)."""
TERM_SECONDS: Final = 5.0
"""From SIGTERM to SIGKILL: workers that wait in a collective for a dead peer have nothing to finish."""
KILL_SECONDS: Final = 10.0
"""From SIGKILL until a process is given up: one in uninterruptible sleep (a dead volume) may never end."""
REAP_SECONDS: Final = 0.02
"""Between two looks at what was killed."""
FLUSH_SECONDS: Final = 3.0
"""For the last lines of the workers to reach the log."""
BIND_SECONDS: Final = 5.0
"""Between two tries to listen where the port is taken."""
REASON_CHARACTERS: Final = 500


class Supervisor:
    """Runs an attempt, and the next one in its place where the operator hands over a later plan."""

    def __init__(self, settings: Settings, loop: Loop, voice: Voice, leave_words: Callable[[LastWords], None]) -> None:
        self._folder = workers.private_folder()
        self._attempt = Attempt(settings, self._folder)
        self._next: Settings | None = None
        self._loop = loop
        self._voice = voice
        self._leave_words = leave_words
        self._console = Console(1)
        self._start: Start | None = None
        self._mailbox = Mailbox(loop.wake)
        self._control: Control | None = None
        self._bind_at = 0.0
        self._warnings: list[str] = []
        self._network_before: PodNetwork | None = None
        self._awake_since = time.monotonic()

    def run(self) -> LastWords:
        """Start the workers, see them to their end, and say how it was. Leaves no process and no file behind."""
        try:
            self._listen()
            self._run_attempt()
            while self._next is not None:
                self._network_before = self._attempt.network
                self._attempt, self._next = Attempt(self._next, self._folder), None
                self._voice.say(
                    f"attempt {self._attempt.number} begins, as node rank {self._attempt.settings.node_rank}"
                )
                self._run_attempt()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return ending(self._attempt.happened())

    def _run_attempt(self) -> None:
        try:
            self._start = Start(
                self._attempt,
                self._loop,
                self._voice,
                self._console,
                started=self._started,
                failed=lambda why: self._end_all(time.monotonic(), why),
                warn=self._warn,
                before=self._network_before,
            )
            while self._running():
                self._turn()
        finally:
            self._clear_away()

    def _clear_away(self) -> None:
        """End whatever is left of the workers and of what they started, and let their last lines out."""
        until = time.monotonic() + KILL_SECONDS
        while (left := workers.children()) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(REAP_SECONDS)
            workers.reap()
        for worker in self._attempt.workers:
            self._loop.forget(worker.reports.fd)
            worker.reports.close()
        join_all([s for w in self._attempt.workers for s in (w.out, w.err)], FLUSH_SECONDS)

    # The loop

    def _turn(self) -> None:
        wanted = self._seconds_to_next()
        before = time.monotonic()
        signals = self._loop.wait(wanted)
        now = time.monotonic()
        if now - before > wanted + FREEZE_SECONDS:
            self._awake_since = now
        for number in signals - {signal.SIGCHLD}:
            self._stop(number.name, now + self._attempt.settings.grace_seconds)
        self._reap()
        self._mailbox.serve(self._answer)
        if self._start is not None:
            self._start.turn(now)
        self._judge(time.monotonic())
        if self._control is None and now >= self._bind_at:
            self._listen()

    def _seconds_to_next(self) -> float:
        until = [at - time.monotonic() for at in (self._attempt.deadline, self._attempt.kill_at) if at is not None]
        return min([TICK_SECONDS, *(seconds for seconds in until if seconds > 0)])

    def _running(self) -> bool:
        if self._attempt.kill_at is not None and time.monotonic() > self._attempt.kill_at + KILL_SECONDS:
            self._give_up()
        return self._attempt.preparing or any(worker.alive for worker in self._attempt.workers)

    # Workers

    def _started(self, worker: Worker) -> None:
        self._loop.watch(worker.reports.fd, lambda: self._listen_to(worker))

    def _listen_to(self, worker: Worker) -> None:
        reports, more = worker.reports.read()
        for report in reports:
            self._hear(worker, report)
        if not more:
            self._loop.forget(worker.reports.fd)

    def _hear(self, worker: Worker, report: Report) -> None:
        commit = worker.progress.commit
        worker.progress = heard(worker.progress, report, self._attempt.number, time.monotonic())
        if isinstance(report, StopAcknowledged) and self._attempt.notice is None and self._next is None:
            self._stop("the gang agreed to stop", time.monotonic() + self._attempt.settings.grace_seconds)
        if worker.progress.commit != commit:
            self._leave_provisional_words()

    def _reap(self) -> None:
        by_pid = {worker.pid: worker for worker in self._attempt.workers if worker.alive}
        for pid, code in workers.reap().items():
            if pid in by_pid:
                worker = by_pid[pid]
                for report in worker.reports.drain():
                    self._hear(worker, report)
                worker.code, worker.ended_time = code, time.time()

    def _give_up(self) -> None:
        for worker in self._attempt.workers:
            if worker.alive:
                self._warn(f"rank {worker.rank} does not end after SIGKILL (uninterruptible sleep); given up")
                worker.code, worker.ended_time = -signal.SIGKILL, time.time()

    # Decisions

    def _judge(self, now: float) -> None:
        running = self._attempt.running()
        if self._attempt.kill_at is not None:
            if now >= self._attempt.kill_at:
                for worker in running:
                    worker.signal(signal.SIGKILL)
            return
        fault = first_fault(self._attempt.ended(), self._attempt.notice)
        if fault is not None:
            self._end_all(now, f"rank {fault.rank} failed: {fault.message}")
        elif (
            self._attempt.deadline is not None
            and now >= self._attempt.deadline
            and (running or self._attempt.preparing)
        ):
            self._attempt.overdue = True
            self._end_all(now, "the deadline of the stop has passed")
        elif self._attempt.notice is None:
            speakers = [(worker.rank, worker.progress) for worker in running]
            silent = furthest_behind(
                speakers, self._attempt.settings.plan.process_group_timeout_seconds, now, self._awake_since
            )
            if silent is not None:
                self._attempt.hang = Hang(silent, time.time())
                self._end_all(now, sentence(silent))

    def _end_all(self, now: float, why: str) -> None:
        running = self._attempt.running()
        self._voice.say(f"{why}; ending {len(running)} other worker(s)" if running else why)
        self._attempt.kill_at = now + TERM_SECONDS
        if self._start is not None:
            self._start.end()
        for worker in running:
            worker.signal(signal.SIGTERM)

    def _stop(self, reason: str, deadline: float) -> None:
        """A stop was asked; deadline: by the monotonic clock. Asked again, the first notice and the earliest deadline count."""
        self._next = None  # whoever was to start anew leaves instead
        first = self._attempt.notice is None
        if self._attempt.notice is None:
            self._attempt.notice = Notice(time.time(), reason[:REASON_CHARACTERS])
            seconds = deadline - time.monotonic()
            self._voice.say(f"asked to stop ({self._attempt.notice.reason}); {seconds:.0f} s to save and leave")
        if self._attempt.deadline is None or deadline < self._attempt.deadline:
            self._attempt.deadline = deadline
            epoch = time.time() + deadline - time.monotonic()
            _replace(self._attempt.stop_file, {"reason": self._attempt.notice.reason, "deadline": round(epoch, 3)})
        if first:
            for worker in self._attempt.workers:
                if not self._attempt.settings.speaks and worker.progress.heard is None:
                    worker.signal(signal.SIGTERM)
            self._leave_provisional_words()

    # The endpoint

    def _listen(self) -> None:
        settings = self._attempt.settings
        try:
            self._control = Control(settings.port, settings.key, settings.pod_uid, self._mailbox.ask)
        except OSError as problem:
            self._bind_at = time.monotonic() + BIND_SECONDS
            self._warn(f"port {settings.port}: {problem.strerror}; the operator cannot reach this pod until it is free")
            return
        if settings.key is None:
            self._warn("no control key: requests to stop or to save are refused")

    def _answer(self, question: Question) -> Answer:
        latest = (self._next or self._attempt.settings).plan.attempt
        match question:
            case Get(path=control.PATH_METRICS):
                return Answer(HTTPStatus.OK, self._attempt.metrics_text(), control.METRICS_TEXT)
            case Get(path=control.PATH_HEALTH):
                return Answer(HTTPStatus.OK, "ok\n", "text/plain")
            case Get():
                return Answer(HTTPStatus.OK, encode_status(self._status()))
            case requests.Stop() | requests.Checkpoint() if question.attempt != latest:
                why = f"attempt: {question.attempt} was meant, but this is attempt {latest}"
                return control.error(HTTPStatus.CONFLICT, why)
            case Plan():
                return self._answer_plan(question)
            case requests.Stop():
                return self._answer_stop(question)
            case requests.Checkpoint():
                self._attempt.saves_asked += 1
                _replace(
                    self._attempt.checkpoint_file, {"number": self._attempt.saves_asked, "reason": question.reason}
                )
                return Answer(HTTPStatus.ACCEPTED, encode_status(self._status()))

    def _answer_plan(self, plan: Plan) -> Answer:
        """Take the part that a later plan gives this pod: end the workers, and start again as who it says."""
        settings = self._next or self._attempt.settings
        refused = _unacceptable(plan, settings, leaving=self._attempt.notice is not None)
        if refused:
            return control.error(HTTPStatus.CONFLICT, refused)
        path = self._folder / f"plan-{plan.attempt}.json"
        path.write_text(encode(plan), encoding="utf-8")
        rank = plan.node_rank(settings.pod)
        self._next = dataclasses.replace(settings, plan=plan, plan_path=str(path), node_rank=rank)
        self._end_all(time.monotonic(), f"the plan of attempt {plan.attempt} has come")
        return Answer(HTTPStatus.ACCEPTED, encode_status(self._status()))

    def _answer_stop(self, stop: requests.Stop) -> Answer:
        left = stop.deadline - time.time()
        if left <= 0 and self._attempt.notice is None:
            return control.error(
                HTTPStatus.BAD_REQUEST,
                f"deadline: passed {-left:.0f} s ago; it must lie ahead, in seconds since the epoch",
            )
        self._stop(stop.reason, time.monotonic() + left)
        return Answer(HTTPStatus.ACCEPTED, encode_status(self._status()))

    def _status(self) -> Status:
        return self._attempt.status(self._warnings)

    def _leave_provisional_words(self) -> None:
        """Should the whole pod be killed before it can end, what is durable is still known."""
        words = ending(self._attempt.happened())
        cause = "the container was killed before its workers had ended"
        self._leave_words(dataclasses.replace(words, exit=128 + signal.SIGKILL, cause=cause))

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)
            self._voice.say(message)


def _replace(path: Path, content: Mapping[str, object]) -> None:
    """Write a file so that a reader sees the old one or the new one, whole."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)


def _unacceptable(plan: Plan, settings: Settings, *, leaving: bool) -> str | None:
    """Why a pod that runs by `settings` does not go over to a plan."""
    now = settings.plan
    if (plan.namespace, plan.job, plan.uid) != (now.namespace, now.job, now.uid):
        return f"uid: the plan is of job {plan.namespace}/{plan.job} ({plan.uid}), and this pod is not"
    if plan.attempt <= now.attempt:
        return f"attempt: {plan.attempt} is not after {now.attempt}, which is known here"
    if leaving:
        return "this pod was asked to stop, and leaves"
    try:
        plan.node_rank(settings.pod)
    except KeyError as problem:
        return f"members: {problem.args[0]}"
    return None
