"""From a plan to running workers: look at the network first, import torch once for all of them, then start each.

Every stage ends in the loop, so that signals and requests are served between two of them.
"""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trainyard.contract import network
from trainyard.contract.exits import Exit
from trainyard.contract.status import Fault

from trainyard_trainer.launch import workers
from trainyard_trainer.launch.attempt import Attempt
from trainyard_trainer.launch.ending import LAUNCHER
from trainyard_trainer.launch.environment import worker_environment
from trainyard_trainer.launch.loop import Loop
from trainyard_trainer.launch.network.finding import Finding
from trainyard_trainer.launch.network.resolve import changed
from trainyard_trainer.launch.output import Console, Voice
from trainyard_trainer.launch.program import forkable
from trainyard_trainer.launch.workers import Worker
from trainyard_trainer.launch.zygote import Zygote

FIND_SECONDS: Final = 6.0
"""After this long the workers start without what was to be found of the network."""
HEARD_SECONDS: Final = 20.0
"""How long a pod whose workers could not meet the others is there to be asked why: the operator, which hears all members, tells a
fault of this node from one that all have."""
HOPELESS: Final = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC)
"""What the image does not hold will not be there next time either; a lack of memory or pids may pass."""


class Start:
    """The start of one attempt.

    started: called for each worker. failed: the attempt cannot go on, for a reason that is in `attempt.error`. warn: of what the
    operator should know. before: what the network was at the last attempt in this pod. warm: a parent of that attempt's workers,
    which can be that of these as well; warmed: called with a new one.
    """

    def __init__(
        self,
        attempt: Attempt,
        loop: Loop,
        voice: Voice,
        console: Console,
        started: Callable[[Worker], None],
        failed: Callable[[str], None],
        warn: Callable[[str], None],
        before: network.PodNetwork | None = None,
        warm: Zygote | None = None,
        warmed: Callable[[Zygote], None] = Zygote.close,
    ) -> None:
        self._attempt, self._loop, self._voice, self._console = attempt, loop, voice, console
        self._started, self._failed, self._warn, self._before = started, failed, warn, before
        self._warm, self._warmed = warm, warmed
        self._find_until = time.monotonic() + FIND_SECONDS
        self._stranded_until = self._find_until
        attempt.finding = Finding(attempt.settings.part, attempt.settings.environment)
        loop.watch(attempt.finding.fd, self._found)

    def turn(self, now: float) -> None:
        """What time alone brings."""
        if self._attempt.finding is not None and now >= self._find_until:
            self._found()
        if self._attempt.stranded and (self._attempt.notice is not None or now >= self._stranded_until):
            self._attempt.stranded = False
            found = self._attempt.network
            self._cannot("; ".join(found.faults) if found is not None else "", Exit.PREFLIGHT)

    def end(self) -> None:
        """Start nothing any more."""
        self._attempt.stranded = False
        if self._attempt.finding is not None:
            self._loop.forget(self._attempt.finding.fd)
            self._attempt.finding.result()
            self._attempt.finding = None
        if self._attempt.zygote is not None:
            self._loop.forget(self._attempt.zygote.fd)
            self._attempt.zygote.kill()
            self._attempt.zygote = None

    def _found(self) -> None:
        """What the network is, is known, or not to be had in time."""
        finding, self._attempt.finding = self._attempt.finding, None
        if finding is None:
            return
        self._loop.forget(finding.fd)
        found = finding.result()
        for message in (*found.faults, *found.warnings):
            self._voice.say(message)
        news = tuple(changed(self._before, found)) if self._before is not None else ()
        for message in news:
            self._warn(message)
        found = replace(found, warnings=(*news, *found.warnings))
        self._attempt.network = found
        self._attempt.signs.rdma = bool(found.adapters)
        self._attempt.network_file.write_text(network.encode_network(found), encoding="utf-8")
        if found.refused:
            self._cannot("; ".join(found.refused), Exit.CONFIGURATION)
        elif found.stranded:
            self._attempt.stranded, self._stranded_until = True, time.monotonic() + HEARD_SECONDS
        else:
            self._begin()

    def _begin(self) -> None:
        """Start the workers: at once, or when a zygote is ready to become them. A single one is forked too: that of the next
        attempt has nothing to import then."""
        settings = self._attempt.settings
        program = forkable(settings.command, settings.environment) if settings.adopts and self._warm is None else None
        if program is None:
            self._start_workers(self._warm)
            return
        several = {"OMP_NUM_THREADS": "1"} if settings.plan.processes_per_node > 1 else {}
        defaults = {**several, **settings.environment}
        try:
            self._attempt.zygote = Zygote(program, defaults, self._console)
        except OSError as problem:
            self._cannot_execute(settings.command[0], problem)
            return
        self._loop.watch(self._attempt.zygote.fd, self._zygote_speaks)

    def _zygote_speaks(self) -> None:
        zygote, self._attempt.zygote = self._attempt.zygote, None
        if zygote is None:
            return
        self._loop.forget(zygote.fd)
        ready = zygote.ready()
        if not ready:
            self._voice.say("importing torch once for all workers failed; each imports it itself")
        if ready:
            self._warmed(zygote)
        else:
            zygote.close()
        self._start_workers(zygote if ready else None)

    def _start_workers(self, zygote: Zygote | None) -> None:
        attempt, settings = self._attempt, self._attempt.settings
        plan, found = settings.plan, attempt.network
        for local_rank in range(plan.processes_per_node):
            rank = settings.node_rank * plan.processes_per_node + local_rank
            environment = worker_environment(
                plan,
                settings.node_rank,
                local_rank,
                settings.environment,
                plan_path=settings.plan_path,
                stop_file=str(attempt.stop_file),
                checkpoint_file=str(attempt.checkpoint_file),
                report_fd=workers.REPORT_FD,
                network_file=str(attempt.network_file),
                network={setting.name: setting.value for setting in found.settings} if found is not None else {},
            )
            prefix = f"[rank {rank}] ".encode() if plan.processes_per_node > 1 else b""
            begin = zygote.fork(environment) if zygote else workers.spawn(settings.command, environment)
            try:
                worker = workers.start(rank, local_rank, prefix, self._console, attempt.signs, begin)
            except OSError as problem:
                self._cannot_execute(settings.command[0], problem)
                return
            attempt.workers.append(worker)
            self._started(worker)
            if attempt.notice is not None and not settings.speaks:
                worker.signal(signal.SIGTERM)  # the notice came first, and the file alone may never be looked at

    def _cannot_execute(self, program: str, problem: OSError) -> None:
        message = f"command: cannot execute {program}: {problem.strerror or problem}"
        self._cannot(message, Exit.CONFIGURATION if problem.errno in HOPELESS else Exit.FAILURE)

    def _cannot(self, message: str, code: Exit) -> None:
        self._attempt.error = Fault(LAUNCHER, time.time(), message)
        self._attempt.error_exit = code
        self._failed(message)
