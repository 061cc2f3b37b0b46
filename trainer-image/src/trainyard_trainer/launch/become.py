"""What a forked process does to be a Python program: the same arguments, search path, `__main__` and way of ending as if Python
had started it."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import runpy
import signal
import sys
from collections.abc import Collection
from types import ModuleType
from typing import Final, NoReturn

from trainyard_trainer.launch.program import Program
from trainyard_trainer.launch.workers import UNIGNORED

SUFFIXES: Final = tuple(importlib.machinery.all_suffixes())


def become(program: Program) -> int:
    """Run it as `__main__`; its exit code. SystemExit and KeyboardInterrupt are the interpreter's to answer, as always."""
    sys.orig_argv[:] = program.command
    if not getattr(sys.flags, "safe_path", False):  # of Python 3.11
        sys.path.insert(0, program.place)
        if _stands_before(program.place, sys.modules.keys()):
            start_plainly(program)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all ranks would draw the same numbers
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    try:
        if program.module:
            sys.argv = ["-m", *program.arguments]
            runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]  # what `python -m` does itself
        else:
            _run_script(program, main)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def start_plainly(program: Program) -> NoReturn:
    """Let Python start it, in this process."""
    for number in UNIGNORED:
        signal.signal(number, signal.SIG_DFL)
    os.execvp(program.command[0], program.command)


def _run_script(program: Program, main: ModuleType) -> None:
    """As pymain_run_file in CPython's Modules/main.c; runpy's run_path takes its `__main__` away before threads have ended."""
    sys.argv = [program.name, *program.arguments]
    path = os.path.join(os.getcwd(), program.name)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError:
        start_plainly(program)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader)
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _stands_before(place: str, imported: Collection[str]) -> bool:
    """Whether a module that was imported already would have been found in this place instead."""
    try:
        entries = list(os.scandir(place))
    except OSError:
        return False
    names = {entry.name.partition(".")[0] for entry in entries if entry.name.endswith(SUFFIXES)}
    names |= {entry.name for entry in entries if os.path.exists(os.path.join(entry.path, "__init__.py"))}
    return bool(names & set(imported) - {"__main__"})
