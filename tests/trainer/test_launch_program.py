"""A script of one's own is forked from a parent that has imported torch, and cannot tell; what could tell is started plainly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.launching import Launched, a_plan, launched, until
from trainyard.contract import requests
from trainyard.contract.exits import Exit
from trainyard.contract.plan import encode
from trainyard_trainer.launch.program import Program, forkable

SLOW = 120.0
"""Importing torch takes seconds, and more on a machine that others use."""

PROBE = """
import json, multiprocessing, os, pickle, signal, sys
import torch

class Thing:
    pass

def double(x):
    return 2 * x

def seen():
    main = sys.modules["__main__"]
    spec = main.__spec__
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "executable": sys.executable,
        "flags": str(sys.flags), "excepthook": sys.excepthook is sys.__excepthook__,
        "main": sorted(vars(main)), "is_main": vars(main) is globals(), "builtins": str(main.__builtins__),
        "name": __name__, "file": __file__, "package": __package__, "doc": __doc__, "cached": main.__cached__,
        "loader": [type(main.__loader__).__name__, main.__loader__.name, main.__loader__.path],
        "spec": spec and [spec.name, spec.origin], "line": seen.__code__.co_filename,
        "pickled": pickle.dumps(Thing()).hex(), "unbuffered": sys.stdout.write_through,
        "environ": dict(os.environ), "torch": torch.__file__,
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)],
        "process": [multiprocessing.current_process().name, os.getpgid(0) == os.getpid()],
    }

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        # Of a package's own __main__ a spawned process imports nothing (multiprocessing/spawn.py).
        doubled = pool.map(abs if __package__ and sys.argv[-1] == "fails" else double, [21])
    with open(os.environ["SEEN"] + os.environ["RANK"], "w") as out:
        json.dump({**seen(), "spawned": doubled}, out)
    if "fails" in sys.argv:
        raise RuntimeError("as asked")
    sys.exit(int(sys.argv[-1]))
"""

STAND_IN = dict.fromkeys(
    (
        "torch/__init__",
        "torch/distributed/__init__",
        "torch/distributed/checkpoint",
        "torch/distributed/fsdp",
        "torch/_dynamo",
    ),
    "",
)
"""A torch that costs nothing to import."""


def written(folder: Path, files: Mapping[str, str]) -> Path:
    """Modules by their paths without the ending."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def own(
    folder: Path, command: Sequence[str], plainly: bool, environment: Mapping[str, str] | None = None, **changes: Any
) -> AbstractContextManager[Launched]:
    folder.mkdir(exist_ok=True)
    before = "import os, trainyard_trainer.launch.starting as starting\n"
    before += "starting.forkable = lambda *_: None\n" if plainly else ""
    return launched(folder, command=[sys.executable, *command], before=before, environment=environment, **changes)


def observed(place: Path, command: Sequence[str], code: int, plainly: bool) -> tuple[dict[str, Any], str]:
    """What the probe saw, and what it wrote. It runs in the folder `place`."""
    folder = place / ("plain" if plainly else "forked")
    torch = written(place / "installed", {**STAND_IN, "torch/__init__": "import os\nos.write(2, b'imported\\n')"})
    environment = {"SEEN": str(folder / "seen-"), "PYTHONPATH": str(torch)}
    with own(folder, command, plainly, environment, under=["env", "-C", str(place)]) as at:
        assert at.process.wait(SLOW) == code, at.err
    assert (b"[zygote] imported" in at.out) == (not plainly)
    said = json.loads((folder / "seen-0").read_text())
    environment = said["environ"]
    assert environment["RANK"] == "0"
    for name in [name for name in environment if name.startswith("TRAINYARD_") or name in ("SEEN", "_")]:
        del environment[name]  # differs from one launcher to the next
    return said, "\n".join(line for line in at.out.decode().splitlines() if "imported" not in line)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["./scripts/../scripts/probe.py", "--flag", "0"], Exit.DONE),
        (["-u", "scripts/link.py", "fails"], Exit.FAILURE),
        (["-m", "package.probe", "a b", "0"], Exit.DONE),
        (["-u", "-m", "package", "fails"], Exit.FAILURE),
    ],
)
def test_a_forked_program_sees_what_a_started_one_sees(tmp_path: Path, command: list[str], code: int) -> None:
    written(tmp_path, dict.fromkeys(("scripts/probe", "package/probe", "package/__main__", "elsewhere/real"), PROBE))
    written(tmp_path, {"package/__init__": ""})
    (tmp_path / "scripts" / "link.py").symlink_to("../elsewhere/real.py")
    plain, plain_said = observed(tmp_path, command, code, plainly=True)
    forked, forked_said = observed(tmp_path, command, code, plainly=False)
    assert forked == plain
    assert forked["spawned"] == [21 if "package" in command else 42]
    assert forked_said == plain_said
    assert ("RuntimeError: as asked" in plain_said) == ("fails" in command)


@pytest.mark.timeout(600)
def test_a_later_attempt_of_a_script_of_ones_own_imports_nothing_again(tmp_path: Path) -> None:
    written(
        tmp_path / "mine",
        {
            "train": """
        import numpy, os, sys, time, torch
        name = open("/proc/self/comm").read().strip()
        print(os.environ["TORCHELASTIC_RUN_ID"], name, *sys.argv[1:], numpy.random.rand(), flush=True)
        while os.environ["TORCHELASTIC_RUN_ID"].endswith("-1"): time.sleep(0.05)
        """
        },
    )
    script = str(tmp_path / "mine" / "train.py")
    with own(tmp_path / "pod", [script, "--lr", "1"], plainly=False, stays=60.0) as at:
        until(lambda: b"job-uid-1 rank-0 --lr 1" in at.out, "the first attempt", seconds=SLOW)
        parent, worker = sorted(at.children())
        at.reaches(lambda status: status)
        os.kill(worker, signal.SIGKILL)
        at.reaches(lambda status: status.ended)
        assert at.post(requests.PATH_PLAN, encode(a_plan(attempt=2)).encode())[0] == 202
        until(lambda: b"job-uid-2 rank-0 --lr 1" in at.out, "the second attempt")
        assert at.wait() == Exit.DONE
    first, second = (line.split()[-1] for line in at.out.decode().splitlines())
    assert first != second, "each draws numbers of its own"
    assert parent < worker


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"json": "MINE = True"}, "a module of its own stands before one that was imported"),
        ({"torch/__init__": "MINE = True"}, "a package of its own does"),
    ],
)
def test_a_fork_that_could_be_noticed_becomes_a_start(tmp_path: Path, files: dict[str, str], why: str) -> None:
    script = "import sys\nprint('torch' in sys.modules)\nif 0: import torch"
    place = written(tmp_path / "mine", {"train": script, **files})
    environment = {"PYTHONPATH": str(written(tmp_path / "installed", STAND_IN))}
    with own(tmp_path / "pod", [str(place / "train.py")], plainly=False, environment=environment) as at:
        assert at.process.wait(SLOW) == Exit.DONE, at.err
    assert at.out == b"False\n", why
    assert len(at.err.splitlines()) == 1, at.err  # how it ended


def test_where_torch_cannot_be_imported_ahead_the_program_is_started(tmp_path: Path) -> None:
    place = written(tmp_path / "mine", {"train": "import sys\nprint(sys.argv)\nif 0: import torch"})
    broken = written(tmp_path / "first", {"torch": "raise ImportError('no such library')"})
    with own(tmp_path / "pod", [str(place / "train.py")], plainly=False, environment={"PYTHONPATH": str(broken)}) as at:
        assert at.process.wait(SLOW) == Exit.DONE, at.err
    *tried, said = at.out.decode().splitlines()
    assert said == str([str(place / "train.py")])
    assert "[zygote] ImportError: no such library" in tried
    assert "each imports it itself" in at.err


TORCH = "import torch\n"
FORKED: dict[str, dict[str, str]] = {
    "imports torch": {"train": TORCH},
    "imports a part of it": {"train": "from torch.nn import Linear"},
    "by way of the session": {"train": "from trainyard_trainer import session"},
    "by way of its own module": {
        "train": "from lib import model",
        "lib/model": "from . import parts",
        "lib/parts": TORCH,
    },
    "sets what torch never reads": {"train": "import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\nimport torch"},
    "reads a variable": {
        "train": "import os, torch\nprint(os.environ['CUDA_HOME'], os.environ.get('OMP_NUM_THREADS'))"
    },
}
PLAIN: dict[str, dict[str, str]] = {
    "no torch": {"train": "import json"},
    "no python": {"train": "import torch !"},
    "sets what torch reads": {"train": "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch"},
    "sets it as a default": {
        "train": "from os import environ\nenviron.setdefault('TORCH_LOGS', 'dynamo')\nimport torch"
    },
    "removes it": {"train": "import os, torch\ndel os.environ['CUDA_VISIBLE_DEVICES']"},
    "sets what it calculates": {"train": "import os\nfor k in 'ab': os.environ[k] = '2'\nimport torch"},
    "sets many": {"train": "import os\nos.environ.update({'A': '2'})\nimport torch"},
    "sets them by another name": {"train": "import os\ne = os.environ\ne['OMP_NUM_THREADS'] = '1'\nimport torch"},
    "reads them from a file": {"train": "from dotenv import load_dotenv\nload_dotenv()\nimport torch"},
    "its own module sets it": {
        "train": "import setup\nimport torch",
        "setup": "import os\nos.putenv('KMP_AFFINITY', '')",
    },
}
CASES = [(files, name, True) for name, files in FORKED.items()] + [
    (files, name, False) for name, files in PLAIN.items()
]


@pytest.mark.parametrize(("files", "name", "forks"), CASES, ids=[name for _, name, _ in CASES])
@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_which_programs_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], name: str, forks: bool, module: bool
) -> None:
    written(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, *(["-m", "train"] if module else ["train.py"]), "--lr", "1"]
    found = forkable(command, os.environ)
    assert (found is not None) == forks, name
    assert found is None or (found.arguments, found.module) == (("--lr", "1"), module)


@pytest.mark.parametrize("package", ["pkg", "namespace.inner"])
def test_a_module_is_found_without_importing_the_packages_that_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    inner = tmp_path.joinpath(*package.split("."))
    written(inner, {"__init__": "raise SystemExit('imported')", "train": "from .deep import net", "deep/net": TORCH})
    written(inner, {"__main__": "from . import train"})
    monkeypatch.chdir(tmp_path)
    for command in (["-m", f"{package}.train"], ["-u", "-m", package]):
        assert forkable([sys.executable, *command], os.environ) is not None
    assert forkable([sys.executable, "-m", f"{package}.absent"], os.environ) is None


@pytest.mark.parametrize(
    "command",
    ["{0} -O train.py", "{0} -X dev train.py", "{0} -u -u train.py", "{0} -c pass", "{0} -", "{0}", "{0} absent.py",
     "{0} -mtrain", "{0} .", "env {0} train.py", "bash train.py", "/nowhere/python3 train.py", "./venv/bin/python train.py"],
)  # fmt: skip
def test_other_commands_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    written(tmp_path, {"train": TORCH, "__main__": TORCH})
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.chdir(tmp_path)
    assert forkable(command.format(sys.executable).split(), os.environ) is None
    assert forkable([sys.executable, "train.py"], os.environ) is not None


def test_a_name_of_this_python_on_the_search_path_is_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, {"train": TORCH})
    monkeypatch.chdir(tmp_path)
    here = os.path.dirname(sys.executable)
    assert forkable(["python", "train.py"], {"PATH": here}) is not None
    assert forkable(["python", "train.py"], {"PATH": f"/usr/bin:{tmp_path}"}) is None


def test_the_trainer_is_forked_by_any_python() -> None:
    for python in ("python3", "/usr/bin/python3.11"):
        found = forkable([python, "-m", "trainyard_trainer.train", "--steps", "3"], {})
        assert found == Program(
            (python, "-m", "trainyard_trainer.train", "--steps", "3"),
            (),
            "trainyard_trainer.train",
            True,
            ("--steps", "3"),
        )
        assert found.is_trainer


def test_looking_at_a_program_runs_nothing_and_imports_no_torch(tmp_path: Path) -> None:
    written(tmp_path, {"train": "import torch\nopen('ran', 'w')"})
    look = "import os, sys; from trainyard_trainer.launch.program import forkable; "
    look += "print(forkable([sys.executable, 'train.py'], os.environ) is not None, 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "True False\n"
    assert not (tmp_path / "ran").exists()
