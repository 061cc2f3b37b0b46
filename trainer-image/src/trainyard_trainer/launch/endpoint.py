"""What the launcher answers to whom: each question of the control endpoint to the part of the launcher that it is about.

It listens from the start to the end, over all attempts, and again where the port is taken for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from trainyard.contract import requests
from trainyard.contract.plan import Plan, digest
from trainyard.contract.status import encode_status

from trainyard_trainer.launch import control
from trainyard_trainer.launch.attempt import Attempt, Settings
from trainyard_trainer.launch.control import Answer, Control, Get, Mailbox, Question

BIND_SECONDS: Final = 5.0
"""Between two tries to listen where the port is taken."""
ASKED_SECONDS: Final = 30.0
"""Since the last question how it goes: an operator that reaches this pod asks every 10 s at least."""


class Supervising(Protocol):
    """The launcher as the endpoint knows it. taken: the later plan that it has taken already."""

    warnings: list[str]

    @property
    def attempt(self) -> Attempt: ...
    @property
    def taken(self) -> Settings | None: ...
    def stop(self, reason: str, deadline: float) -> None: ...
    def ask_for_save(self, reason: str) -> None: ...
    def take(self, plan: Plan, rank: int) -> None: ...
    def warn(self, message: str) -> None: ...


class Endpoint:
    """Serves requests in the launcher's own loop: `serve` is called by it. wake: lets the loop turn."""

    def __init__(self, launcher: Supervising, settings: Settings, wake: Callable[[], None]) -> None:
        self._launcher = launcher
        self._settings = settings
        self._mailbox = Mailbox(wake)
        self._control: Control | None = None
        self._bind_at = 0.0
        self._asked: float | None = None

    @property
    def can_be_told(self) -> bool:
        """Whether somebody is there who could send a request that is obeyed: where nobody asks, as behind a NetworkPolicy, nobody
        will."""
        lately = self._asked is not None and time.monotonic() - self._asked < ASKED_SECONDS
        return lately and self._settings.key is not None

    def listen(self) -> None:
        """Listen, or try again later."""
        settings, warn = self._settings, self._launcher.warn
        try:
            self._control = Control(settings.port, settings.key, settings.pod_uid, self._mailbox.ask)
        except OSError as problem:
            self._bind_at = time.monotonic() + BIND_SECONDS
            warn(f"port {settings.port}: {problem.strerror}; the operator cannot reach this pod until it is free")
            return
        if settings.key is None:
            warn("no control key: requests to stop, to save or to go over to a later plan are refused")

    def serve(self, now: float) -> None:
        """Answer what was asked."""
        self._mailbox.serve(self._answer)
        if self._control is None and now >= self._bind_at:
            self.listen()

    def _answer(self, question: Question) -> Answer:
        launcher, attempt = self._launcher, self._launcher.attempt
        latest = (launcher.taken or attempt.settings).plan.attempt
        match question:
            case Get(path=control.PATH_METRICS):
                return Answer(HTTPStatus.OK, attempt.metrics_text(), control.METRICS_TEXT)
            case Get(path=control.PATH_HEALTH):
                return Answer(HTTPStatus.OK, "ok\n", "text/plain")
            case Get():
                self._asked = time.monotonic()
                return Answer(HTTPStatus.OK, encode_status(attempt.status(launcher.warnings)))
            case Plan():
                return self._answer_plan(question)
            case _ if question.attempt != latest:
                why = f"attempt: {question.attempt} was meant, but this is attempt {latest}"
                return control.error(HTTPStatus.CONFLICT, why)
            case requests.Stop():
                return self._answer_stop(question)
            case requests.Checkpoint():
                if attempt.ended is not None:
                    return control.error(HTTPStatus.CONFLICT, f"the workers of attempt {latest} have ended")
                launcher.ask_for_save(question.reason)
                return self._taken()

    def _answer_plan(self, plan: Plan) -> Answer:
        """Take the part that a later plan gives this pod. Asked once more for what it does already, it says yes."""
        attempt = self._launcher.attempt
        settings = self._launcher.taken or attempt.settings
        if plan.attempt == settings.plan.attempt and digest(plan) == digest(settings.plan):
            return self._taken()
        refused = _unacceptable(plan, settings, leaving=attempt.notice is not None)
        if refused:
            return control.error(HTTPStatus.CONFLICT, refused)
        self._launcher.take(plan, plan.node_rank(settings.pod))
        return self._taken()

    def _answer_stop(self, stop: requests.Stop) -> Answer:
        left = stop.deadline - time.time()
        if left <= 0 and self._launcher.attempt.notice is None:
            return control.error(
                HTTPStatus.BAD_REQUEST,
                f"deadline: passed {-left:.0f} s ago; it must lie ahead, in seconds since the epoch",
            )
        self._launcher.stop(stop.reason, time.monotonic() + left)
        return self._taken()

    def _taken(self) -> Answer:
        return Answer(HTTPStatus.ACCEPTED, encode_status(self._launcher.attempt.status(self._launcher.warnings)))


def _unacceptable(plan: Plan, settings: Settings, *, leaving: bool) -> str | None:
    """Why a pod that runs by `settings` does not go over to a plan."""
    now = settings.plan
    if (plan.namespace, plan.job, plan.uid) != (now.namespace, now.job, now.uid):
        return f"uid: the plan is of job {plan.namespace}/{plan.job} ({plan.uid}), and this pod is not"
    if plan.attempt <= now.attempt:
        return f"attempt: {plan.attempt} is not after {now.attempt}, which is known here"
    if leaving:
        return "this pod was asked to stop, and leaves"
    if plan.processes_per_node != now.processes_per_node:
        return f"processes_per_node: {plan.processes_per_node}, and this pod was made for {now.processes_per_node}"
    try:
        plan.node_rank(settings.pod)
    except KeyError as problem:
        return f"members: {problem.args[0]}"
    return None
