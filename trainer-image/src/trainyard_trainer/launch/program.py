"""Which commands are Python programs that can be forked instead of started.

A fork has imported torch before the program's first line. Where that could be noticed, the program is started plainly: by another
interpreter or with options that change it, where the program sets variables that torch reads when it is imported, and where it
imports no torch at all. What a program does is read from its own files, of which none is run here.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import re
import shutil
import sys
import zipimport
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

TRAINER_MODULE: Final = "trainyard_trainer.train"
UNBUFFERED: Final = "-u"
"""The one option of Python that a program may be given: its parent is given it too."""
USES_TORCH: Final = re.compile(
    r"(torch|torchvision|lightning|pytorch_lightning|transformers|accelerate|trainyard_trainer\.(session|lightning))(\.|$)"
)
"""What imports torch at once, or will."""
READ_WHEN_IMPORTED: Final = re.compile(
    r"(AT(EN)?_|C10_|CUDA|DNNL|GOMP|HIP|KINETO|KMP|LD_|MALLOC|MKL|NPY_|NUMPY|NVIDIA|OMP|ONEDNN|OPENBLAS|PYTHON|PYTORCH|ROC|TORCH"
    r"|TRITON)"
)
"""Variables that torch, or a library that comes with it, may look at when it is imported begin like this."""
CHANGES: Final = frozenset({"setdefault", "update", "pop", "popitem", "clear"})
"""Methods of os.environ."""
CALLS: Final = frozenset({"putenv", "unsetenv", "load_dotenv"})
READ_BYTES: Final = 2_000_000
"""Of a program's own files, until it is left alone: parsing takes a second."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command that runs Python. options: of Python. name: of the module, or the script's path. arguments: the program's."""

    command: tuple[str, ...]
    options: tuple[str, ...]
    name: str
    module: bool
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, command: Sequence[str]) -> Program | None:
        """None for what is no Python, or is asked for with other options."""
        if re.fullmatch(r"python[0-9.]*", PurePath(command[0]).name) is None:
            return None
        options, rest = (command[1:2], command[2:]) if command[1:2] == [UNBUFFERED] else ([], command[1:])
        module = rest[:1] == ["-m"]
        name, *arguments = rest[1:] if module else rest or [""]
        if not name or name.startswith("-"):
            return None
        return cls(tuple(command), tuple(options), name, module, tuple(arguments))

    @property
    def is_trainer(self) -> bool:
        """Whether it is the built-in one."""
        return self.module and self.name == TRAINER_MODULE

    @property
    def place(self) -> str:
        """What Python puts first into the search path of modules."""
        return os.getcwd() if self.module else os.path.dirname(os.path.realpath(self.name))


def forkable(command: Sequence[str], environment: Mapping[str, str]) -> Program | None:
    """The program that a command runs, where a fork of a parent that has imported torch is as good as its start."""
    program = Program.of(list(command))
    if program is None or program.is_trainer:
        return program
    if isinstance(getattr(__spec__, "loader", None), zipimport.zipimporter):
        return None  # the launcher is a file beside an image that has no Trainyard
    others = sys.path[1:]
    if (
        not _is_this_python(command[0], environment)
        or importlib.machinery.PathFinder.find_spec("torch", others) is None
    ):
        return None
    files = _files(program, others)
    return program if files and _Sources(program, files).allow_it() else None


def _is_this_python(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a command finds the interpreter that runs here, which has Trainyard. A link to it from another folder may be that
    of another virtual environment."""
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    if path is None or not sys.executable:
        return False
    return all(
        os.path.realpath(of(path)) == os.path.realpath(of(sys.executable)) for of in (os.path.abspath, os.path.dirname)
    )


def _files(program: Program, others: Sequence[str]) -> list[Path]:
    """Where the program is: of a module, its packages first. Empty where it is not found as plain source."""
    if not program.module:
        path = Path(program.name)
        return [path] if path.suffix == ".py" and path.is_file() else []
    found, within, name = [], [program.place, *others], ""
    for part in (*program.name.split("."), "__main__"):
        name = f"{name}.{part}" if name else part
        spec = importlib.machinery.PathFinder.find_spec(name, within)
        if spec is None or not (spec.origin or spec.submodule_search_locations):
            return []
        if spec.origin is not None and not spec.origin.endswith(".py"):
            return []
        found += (
            [Path(spec.origin)] if spec.origin is not None else []
        )  # none: a folder that is a package without saying so
        if spec.submodule_search_locations is None:
            break
        within = list(spec.submodule_search_locations)
    return found if name in (program.name, f"{program.name}.__main__") else []


class _Sources:
    """A program's own files: those that it is found in, and what they import from beside them."""

    def __init__(self, program: Program, files: Sequence[Path]) -> None:
        top = files[0].parent if program.module and files[0].name == "__init__.py" else None
        self._places = [Path(program.place)]
        self._package = (top.name, top.parent) if top is not None else None  # which may be among all that is installed
        self._waiting = list(files)
        self._seen = set(files)
        self._left = READ_BYTES

    def allow_it(self) -> bool:
        """Whether it imports torch, and finds it as it would have been."""
        uses_torch = False
        while self._waiting:
            path = self._waiting.pop()
            try:
                source = path.read_bytes()
                self._left -= len(source)
                if self._left < 0:
                    return False
                tree = ast.parse(source)
            except (OSError, SyntaxError, ValueError, RecursionError):
                return False
            for name in _imported(tree, path):
                if isinstance(name, str):
                    uses_torch = uses_torch or USES_TORCH.match(name) is not None
                self._look_at(name)
            if any(map(_changes_what_torch_reads, ast.walk(tree))):
                return False
        return uses_torch

    def _look_at(self, name: str | Path) -> None:
        """A name that is imported, or a path without its ending where that is relative: if it is one of the program's own, it
        and the packages that it is in are to be looked at too."""
        if isinstance(name, Path):
            self._add(name)
            return
        parts = name.split(".")
        places = list(self._places)
        if self._package is not None and parts[0] == self._package[0]:
            places.append(self._package[1])
        for place in places:
            for n in range(len(parts)):
                self._add(place.joinpath(*parts[: n + 1]))

    def _add(self, stem: Path) -> None:
        for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if path not in self._seen and path.is_file():
                self._seen.add(path)
                self._waiting.append(path)


def _imported(tree: ast.AST, path: Path) -> Iterator[str | Path]:
    """What a file may import: names, and paths without their ending where it says so relatively."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.absolute().parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield from (base, *(base / alias.name for alias in node.names if alias.name != "*"))


def _changes_what_torch_reads(node: ast.AST) -> bool:
    """Whether it sets or removes a variable of the environment that torch may read when it is imported."""
    match node:
        case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del()) if _is_environ(value):
            return _may_be_read(key)
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=given) if attr in CHANGES and _is_environ(value):
            return _may_be_read(given[0] if given and attr != "update" else None)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=given) if name in CALLS:
            return _may_be_read(given[0] if given else None)
        case ast.AugAssign(target=target):
            return _is_environ(target)
        case ast.Assign(value=value):
            return _is_environ(value)  # by another name nobody knows what becomes of it
    return False


def _is_environ(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="environ") | ast.Name(id="environ"):
            return True
    return False


def _may_be_read(key: ast.AST | None) -> bool:
    named = isinstance(key, ast.Constant) and isinstance(key.value, str)
    return not named or READ_WHEN_IMPORTED.match(key.value) is not None  # type: ignore[union-attr]
