"""`trainyard-launch [--procs N] -- command ...`: read who we are, run the attempt, leave the last words, exit.

The last words are written before the exit on every path, also where the launcher itself fails: the operator reads them when
nothing else of the pod is left.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from trainyard.contract import env
from trainyard.contract.codec import ContractError
from trainyard.contract.exits import Exit
from trainyard.contract.plan import NewerFormat, Plan, decode
from trainyard.contract.status import Fault, LastWords, encode_last_words
from trainyard.contract.torchrun import Untranslatable

from trainyard_trainer.launch import torchrun
from trainyard_trainer.launch.attempt import Settings
from trainyard_trainer.launch.carried import carried
from trainyard_trainer.launch.ending import LAUNCHER, Happened, ending
from trainyard_trainer.launch.guard import Guard
from trainyard_trainer.launch.loop import Loop
from trainyard_trainer.launch.output import Console, Voice
from trainyard_trainer.launch.supervisor import Supervisor
from trainyard_trainer.launch.workers import adopt_orphans

TERMINATION_LOG: Final = "/dev/termination-log"
DEFAULT_PORT: Final = 9400
VOICE_SECONDS: Final = 1.0


class Unusable(Exception):
    """The launcher cannot start. exit: whether another attempt could go better."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.exit = code


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unusable(f"command line: {message}; {self.format_usage().strip()}", Exit.CONFIGURATION)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attempt; the exit code is the launcher's (`trainyard.contract.exits`)."""
    guard = Guard()
    voice = Voice(Console(2))
    with Loop() as loop:
        try:
            words = _run(sys.argv[1:] if arguments is None else arguments, os.environ, loop, voice, guard)
        except Unusable as problem:
            words = _own_failure(str(problem), problem.exit)
        except BaseException as problem:
            voice.say("".join(traceback.format_exception(problem)))
            words = _own_failure(f"the launcher failed: {type(problem).__name__}: {problem}", Exit.FAILURE)
        leave_words(words, voice)
    voice.say(f"exit {words.exit}: {words.cause}")
    voice.close(VOICE_SECONDS)
    return words.exit


def leave_words(words: LastWords, voice: Voice) -> None:
    """Write the termination message. Where there is no file for it (no kubelet), nobody would read it."""
    path = os.environ.get(env.TERMINATION_LOG, TERMINATION_LOG)
    try:
        with open(path, "r+b") as file:
            file.write(encode_last_words(words).encode("utf-8", "replace"))
            file.truncate()
    except OSError as problem:
        voice.say(f"{path}: cannot write the last words: {problem.strerror}")


def _run(arguments: Sequence[str], environment: Mapping[str, str], loop: Loop, voice: Voice, guard: Guard) -> LastWords:
    settings = _settings(arguments, environment, voice)
    if not settings.adopts:
        voice.say("cannot adopt orphans: a process that leaves its worker's process group may outlive it")
    return Supervisor(settings, loop, voice, guard, lambda words: leave_words(words, voice)).run()


def _own_failure(message: str, code: Exit) -> LastWords:
    fault = Fault(LAUNCHER, time.time(), message)
    return ending(Happened(attempt=0, node_rank=LAUNCHER, error=fault, error_exit=code))


def _settings(arguments: Sequence[str], environment: Mapping[str, str], voice: Voice) -> Settings:
    parser = _Arguments(prog="trainyard-launch", allow_abbrev=False, description="Run this pod's part of a gang.")
    parser.add_argument("--procs", type=int, help="processes to start; the plan's number where left out")
    parser.add_argument("command", nargs="+", help="what each process runs, after --")
    given = parser.parse_args(arguments)
    path = _required(environment, env.PLAN, "the path of plan.json")
    pod = _required(environment, env.POD, "the pod's name (downward API, metadata.name)")
    uid = _required(environment, env.POD_UID, "the pod's uid (downward API, metadata.uid)")
    plan = _plan(path)
    if given.procs not in (None, plan.processes_per_node):
        raise Unusable(
            f"--procs: {given.procs}, but the plan has {plan.processes_per_node} processes on each node; leave --procs out, "
            "or set spec.processesPerNode",
            Exit.CONFIGURATION,
        )
    try:
        node_rank = plan.node_rank(pod)
    except KeyError as problem:
        raise Unusable(f"{env.POD}: {problem.args[0]}", Exit.FAILURE) from None
    return Settings(
        plan=plan,
        plan_path=path,
        node_rank=node_rank,
        pod=pod,
        pod_uid=uid,
        port=_port(environment),
        key=_key(environment, voice),
        command=_command(given.command, plan, environment, voice),
        environment=carried(environment),
        adopts=adopt_orphans(),
    )


def _command(given: Sequence[str], plan: Plan, environment: Mapping[str, str], voice: Voice) -> Sequence[str]:
    """What each process runs: torchrun's script in torchrun's place."""
    try:
        found = torchrun.unwrap(given, plan.processes_per_node, environment)
    except Untranslatable as problem:
        raise Unusable(f"command: {problem}", Exit.CONFIGURATION) from None
    if found.ignored:
        voice.say(torchrun.ignored(found.ignored))
    return found.command


def _required(environment: Mapping[str, str], name: str, meaning: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise Unusable(f"{name}: not set; the operator sets it to {meaning}", Exit.FAILURE)
    return value


def _plan(path: str) -> Plan:
    """The plan. One that is newer than the image is for the user to solve; one that is broken is the operator's fault."""
    try:
        return decode(Path(path).read_bytes())
    except NewerFormat as problem:
        raise Unusable(f"{path}: {problem}", Exit.CONFIGURATION) from None
    except ContractError as problem:
        raise Unusable(f"{path}: {problem}", Exit.FAILURE) from None
    except OSError as problem:
        raise Unusable(f"{path}: cannot read the plan: {problem.strerror}", Exit.FAILURE) from None


def _port(environment: Mapping[str, str]) -> int:
    text = environment.get(env.PORT, str(DEFAULT_PORT))
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise Unusable(f"{env.PORT}: {text!r} is not a port; use 1 to 65535", Exit.FAILURE)
    return int(text)


def _key(environment: Mapping[str, str], voice: Voice) -> bytes | None:
    """The control key; a pod without one trains all the same, and is stopped by SIGTERM alone."""
    path = environment.get(env.CONTROL_KEY_FILE, "")
    try:
        return Path(path).read_bytes().strip() or None
    except OSError as problem:
        voice.say(f"{env.CONTROL_KEY_FILE}: cannot read {path!r}: {problem.strerror}")
        return None
