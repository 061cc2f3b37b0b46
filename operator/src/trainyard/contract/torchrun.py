"""torchrun's command line: what it would start, and what of it has no say under a launcher that does its work.

Read by the launcher, which starts what torchrun would, and by the operator, which says what cannot be before nodes are taken.
Options as in torch 2.15 (`torch/distributed/run.py`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NoReturn

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


class Untranslatable(ValueError):
    """What torchrun would be asked cannot be done by the launcher. The message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What torchrun is asked to start.

    interpreter: the Python that was named, None where it is torchrun's own. program: script or module, and its arguments.
    module: it is a module. bare: it is started without Python. ignored: options of torchrun that have no say.
    """

    interpreter: str | None
    program: tuple[str, ...]
    module: bool = False
    bare: bool = False
    ignored: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Untranslatable(f"torchrun: {message}; write what torchrun starts, such as python3 train.py, instead")


def asked(command: Sequence[str], processes: int) -> Asked | None:
    """What a command that begins with torchrun asks for; None for any other. processes: on each node, by the plan.

    Raises Untranslatable where the launcher cannot do what is asked.
    """
    interpreter, arguments = _taken_apart(command)
    if arguments is None:
        return None
    given = vars(_parser().parse_args(arguments))
    script, rest = given.pop("script"), given.pop("rest")
    wanted = given.pop("nproc-per-node", str(processes))
    if wanted not in (str(processes), *COUNTED):
        raise Untranslatable(
            f"torchrun --nproc-per-node {wanted}, but there are {processes} processes on each node; leave it out, or set "
            "spec.processesPerNode to the same"
        )
    module, bare = given.pop("module", False), given.pop("no-python", False)
    given.pop("run-path", None)  # as __main__, which is how every script runs
    return Asked(interpreter, (script, *rest), module, bare, tuple(f"--{name}" for name in given))


def _taken_apart(command: Sequence[str]) -> tuple[str | None, Sequence[str] | None]:
    """The Python that was named, and torchrun's arguments; None where the command is not torchrun."""
    name = PurePath(command[0]).name
    if name == "torchrun":
        return None, command[1:]
    if re.fullmatch(r"python[0-9.]*", name) is None or "-m" not in command:
        return None, None
    at = list(command).index("-m")
    if not all(option.startswith("-") for option in command[1:at]):
        return None, None  # it belongs to a script
    module = command[at + 1] if at + 1 < len(command) else ""
    if module == OLD_MODULE:
        raise Untranslatable(
            f"{OLD_MODULE} tells each process its rank by an argument of its own; use torchrun, and read LOCAL_RANK"
        )
    return (command[0], command[at + 2 :]) if module == MODULE else (None, None)


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
