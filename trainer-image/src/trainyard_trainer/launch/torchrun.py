"""A command that begins with torchrun, as what torchrun would start once for each process.

The launcher does torchrun's work: it starts the processes, says who they are and where they meet. Under it torchrun would
start them once more, each time, and turn every exit code into 1. So its script is started instead, by the interpreter that
torchrun itself runs on.

Options as in torch 2.15 (`torch/distributed/run.py`). Those that say who meets where, how often to try again or where to log
are the plan's and the launcher's business: they are ignored, and named in a warning.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final, NoReturn

from trainyard.contract import env
from trainyard.contract.exits import Exit

from trainyard_trainer.report import Reporter

MODULE: Final = "torch.distributed.run"
OLD_MODULE: Final = "torch.distributed.launch"
COUNTED: Final = ("auto", "gpu", "cpu", "xpu")
"""What --nproc-per-node may be besides a number: as many as there are, which the plan knows."""
VALUED: Final = (
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "log-line-prefix-template",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
)
FLAGS: Final = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
SHORT: Final = {"redirects": "-r", "tee": "-t", "module": "-m"}
HEAD_BYTES: Final = 4096
"""Of a script, to learn what runs it."""


class Untranslatable(ValueError):
    """What torchrun would be asked cannot be done by the launcher. The message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """command: what each process runs. ignored: the options of torchrun that have no say here."""

    command: tuple[str, ...]
    ignored: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Untranslatable(
            f"command: torchrun: {message}; write what torchrun starts, such as python3 train.py, instead"
        )


def unwrap(
    command: Sequence[str], processes: int, environment: Mapping[str, str], beside: str | None = None
) -> Unwrapped:
    """What each process of a command runs: torchrun's script where it begins with torchrun, else the command itself.

    processes: of the plan, on each node. beside: a folder of the search path in which no torchrun is looked for.
    Raises Untranslatable where the launcher cannot do what is asked.
    """
    interpreter, arguments = _taken_apart(command, lambda name: _interpreter(name, environment, beside))
    if interpreter is None:
        return Unwrapped(tuple(command))
    asked = vars(_parser().parse_args(arguments))
    script, rest = asked.pop("script"), asked.pop("rest")
    wanted = asked.pop("nproc-per-node", str(processes))
    if wanted not in (str(processes), *COUNTED):
        raise Untranslatable(
            f"command: torchrun --nproc-per-node {wanted}, but the plan has {processes} processes on each node; "
            "leave it out, or set spec.processesPerNode to the same"
        )
    module, bare = asked.pop("module", False), asked.pop("no-python", False)
    asked.pop("run-path", None)  # as __main__, which is how every script runs
    if bare:
        program = [script]
    else:
        python = environment.get("PYTHON_EXEC")
        program = [*([python] if python else interpreter), "-u", *(["-m"] if module else []), script]
    return Unwrapped((*program, *rest), tuple(f"--{name}" for name in asked))


def _taken_apart(
    command: Sequence[str], interpreter_of: Callable[[str], list[str]]
) -> tuple[list[str] | None, Sequence[str]]:
    """The interpreter and torchrun's arguments; None where the command is not torchrun."""
    name = PurePath(command[0]).name
    if name == "torchrun":
        return interpreter_of(command[0]), command[1:]
    if re.fullmatch(r"python[0-9.]*", name) is None or "-m" not in command:
        return None, ()
    at = command.index("-m")
    if not all(option.startswith("-") for option in command[1:at]):
        return None, ()  # it belongs to a script
    module = command[at + 1] if at + 1 < len(command) else ""
    if module == OLD_MODULE:
        raise Untranslatable(
            f"command: {OLD_MODULE} tells each process its rank by an argument of its own; use torchrun, and read LOCAL_RANK"
        )
    return ([command[0]], command[at + 2 :]) if module == MODULE else (None, ())


def _parser() -> argparse.ArgumentParser:
    """torchrun's own options. Each is in the result only where it was given."""
    parser = _Parser(prog="torchrun", add_help=False, argument_default=argparse.SUPPRESS)
    for name in (*VALUED, *FLAGS):
        spellings = dict.fromkeys((*filter(None, [SHORT.get(name)]), f"--{name}", f"--{name.replace('-', '_')}"))
        if name in FLAGS:
            parser.add_argument(*spellings, dest=name, action="store_true")
        else:
            parser.add_argument(*spellings, dest=name)
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser


def _interpreter(torchrun: str, environment: Mapping[str, str], beside: str | None) -> list[str]:
    """What runs the torchrun that the search path leads to: the Python that has torch."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    path = shutil.which(torchrun, path=os.pathsep.join(folder for folder in folders if os.path.realpath(folder) != beside))
    if path is None:
        raise Untranslatable(f"command: {torchrun} is not on the image's search path; install torch, or name its path")
    with open(path, "rb") as file:
        lines = file.read(HEAD_BYTES).decode("utf-8", "replace").splitlines()
    first = shlex.split(lines[0][2:]) if lines and lines[0].startswith("#!") else []
    if first and PurePath(first[0]).name == "sh" and len(lines) > 1:
        # A path too long for the kernel: '''exec' "/a/long/path/python" "$0" "$@"
        first = shlex.split(lines[1].replace("'''exec'", "", 1))[:1]
    if not first:
        raise Untranslatable(f"command: {path} does not say what runs it; write python3 and the script instead")
    return first


def main(arguments: Sequence[str]) -> int:
    """In place of torchrun within a worker, where a shell script calls it: become the script. Elsewhere: be torchrun."""
    ours = str(Path(sys.argv[0]).resolve().parent / "bin")
    environment = dict(os.environ)
    try:
        if env.STOP_FILE in environment:
            processes = int(environment.get("LOCAL_WORLD_SIZE", "1"))
            found = unwrap(["torchrun", *arguments], processes, environment, ours)
        else:
            interpreter = _interpreter("torchrun", environment, ours)
            found = Unwrapped((*interpreter, "-m", MODULE, *arguments))
    except Untranslatable as problem:
        print(problem, file=sys.stderr)
        Reporter.from_environment(int(environment.get("RANK", "0"))).failed(problem, configuration=True)
        return Exit.CONFIGURATION
    if found.ignored and environment.get("LOCAL_RANK") == "0":
        print(ignored(found.ignored), file=sys.stderr, flush=True)
    os.execvp(found.command[0], found.command)
    return 0  # never: the process is the script now


def ignored(options: Sequence[str]) -> str:
    """What to say of options that have no say."""
    return f"torchrun {' '.join(options)}: ignored; the plan says who meets where, and the launcher does the rest"
