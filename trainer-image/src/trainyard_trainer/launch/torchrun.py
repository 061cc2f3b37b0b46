"""A command that begins with torchrun, as what torchrun would start once for each process.

The launcher does torchrun's work: it starts the processes, says who they are and where they meet. Under it torchrun would
start them once more, each time, and turn every exit code into 1. So its script is started instead, by the interpreter that
torchrun itself runs on. Options that say who meets where, how often to try again or where to log are the plan's and the
launcher's business: they are ignored, and named in a warning.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard.contract.torchrun import MODULE, Untranslatable, asked

from trainyard_trainer.report import Reporter

HEAD_BYTES: Final = 4096
"""Of a script, to learn what runs it."""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """command: what each process runs. ignored: the options of torchrun that have no say here."""

    command: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def unwrap(
    command: Sequence[str], processes: int, environment: Mapping[str, str], beside: str | None = None
) -> Unwrapped:
    """What each process of a command runs: torchrun's script where it begins with torchrun, else the command itself.

    processes: of the plan, on each node. beside: a folder of the search path in which no torchrun is looked for.
    Raises Untranslatable where the launcher cannot do what is asked.
    """
    found = asked(command, processes)
    if found is None:
        return Unwrapped(tuple(command))
    if found.bare:
        return Unwrapped(found.program, found.ignored)
    python = environment.get("PYTHON_EXEC") or found.interpreter
    interpreter = [python] if python else _interpreter(command[0], environment, beside)
    return Unwrapped((*interpreter, "-u", *(["-m"] if found.module else []), *found.program), found.ignored)


def _interpreter(torchrun: str, environment: Mapping[str, str], beside: str | None) -> list[str]:
    """What runs the torchrun that the search path leads to: the Python that has torch."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    path = shutil.which(
        torchrun, path=os.pathsep.join(folder for folder in folders if os.path.realpath(folder) != beside)
    )
    if path is None:
        raise Untranslatable(f"{torchrun} is not on the image's search path; install torch, or name its path")
    with open(path, "rb") as file:
        lines = file.read(HEAD_BYTES).decode("utf-8", "replace").splitlines()
    first = shlex.split(lines[0][2:]) if lines and lines[0].startswith("#!") else []
    if first and PurePath(first[0]).name == "sh" and len(lines) > 1:
        # A path too long for the kernel: '''exec' "/a/long/path/python" "$0" "$@"
        first = shlex.split(lines[1].replace("'''exec'", "", 1))[:1]
    if not first:
        raise Untranslatable(f"{path} does not say what runs it; write python3 and the script instead")
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
        print(f"command: {problem}", file=sys.stderr)
        Reporter.from_environment(int(environment.get("RANK", "0"))).failed(problem, configuration=True)
        return Exit.CONFIGURATION
    if found.ignored and environment.get("LOCAL_RANK") == "0":
        print(ignored(found.ignored), file=sys.stderr, flush=True)
    os.execvp(found.command[0], found.command)
    return 0  # never: the process is the script now


def ignored(options: Sequence[str]) -> str:
    """What to say of options that have no say."""
    return f"torchrun {' '.join(options)}: ignored; the plan says who meets where, and the launcher does the rest"
