"""An image that has Python and torch and nothing of Trainyard: the launcher is one file beside it.

The image is a virtual environment that sees this one's torch. What a cluster's name service does for the address of rank 0
a line in a .pth file does.
"""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.launching import Launched, a_plan, free_port, launched
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Checkpoints, Plan
from trainyard.contract.status import decode_last_words
from trainyard.contract.torchrun import Untranslatable
from trainyard_trainer.launch import archive
from trainyard_trainer.launch.torchrun import unwrap

PATIENCE_SECONDS = 200.0
EXAMPLES = Path(__file__).resolve().parents[2] / "trainer-image" / "examples"


@dataclass(frozen=True)
class Image:
    """python: of the image. path: its search path. launcher: the archive that was put beside it."""

    python: Path
    path: str
    launcher: Path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("image")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    python = root / "venv" / "bin" / "python3"
    packages = next((root / "venv" / "lib").glob("python*/site-packages"))
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))  # whose own .pth files are not looked at
    # Not a sitecustomize: Debian's Python has one of its own, which comes first.
    (packages / "names.pth").write_text(
        "import os; 'RANK' in os.environ and os.environ.update(MASTER_ADDR='127.0.0.1')\n"
    )
    torchrun = python.with_name("torchrun")
    torchrun.write_text(f"#!{python}\nraise SystemExit('torchrun itself was started')\n")
    torchrun.chmod(0o755)
    return Image(python, f"{python.parent}:/usr/bin:/bin", archive.write(root / "trainyard"))


@contextmanager
def pod(
    image: Image, folder: Path, command: Sequence[str], plan: Plan | None = None, member: int = 0, **environment: str
) -> Iterator[Launched]:
    """The launcher in the image, as the operator would have it started."""
    folder.mkdir()
    given = {"PATH": image.path, "TRAINYARD_POD": f"train-{member}", "PYTHONUNBUFFERED": "1", **environment}
    with launched(
        folder,
        plan=plan,
        arguments=["--", *command],
        environment=given,
        program=[str(image.python), str(image.launcher)],
    ) as at:
        yield at


def heard(pod: Launched, text: str) -> None:
    """Wait until a worker has printed something; it imports torch first, on a machine that may be busy."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while text.encode() not in pod.out:
        assert pod.process.poll() is None, pod.err
        assert time.monotonic() < deadline, f"{text!r} did not come in {PATIENCE_SECONDS:g} s: {pod.err}"
        time.sleep(0.05)


def test_a_torchrun_script_runs_unchanged_in_an_image_without_trainyard(image: Image, tmp_path: Path) -> None:
    absent = subprocess.run(
        [image.python, "-c", "import trainyard_trainer"], capture_output=True, check=False, cwd=tmp_path
    )
    assert b"No module named 'trainyard_trainer'" in absent.stderr
    plan = a_plan(nodes=2, rendezvous_port=free_port())
    command = [
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node",
        "1",
        "--rdzv-backend=c10d",
        str(EXAMPLES / "torchrun_ddp.py"),
        "1000000",
    ]
    with ExitStack() as stack:
        pods = [stack.enter_context(pod(image, tmp_path / str(n), command, plan, n)) for n in range(2)]
        heard(pods[0], "step 20 loss")
        assert "torchrun --nnodes --rdzv-backend: ignored" in pods[0].err
        status, metrics = pods[1].request("GET", "/metrics")
        assert status == 200
        assert 'trainyard_trainer_worker_up{rank="1"} 1.0' in metrics.decode()
        assert 'trainyard_trainer_process_resident_memory_bytes{rank="1"} ' in metrics.decode()
        assert 'trainyard_trainer_process_cpu_seconds_total{rank="1"} ' in metrics.decode()
        assert "trainyard_trainer_tokens_total" not in metrics.decode()
        assert pods[1].status.plan_digest == pods[0].status.plan_digest
        for each in pods:
            each.signal(signal.SIGTERM)
        assert [each.wait() for each in pods] == [
            Exit.FAILURE
        ] * 2  # it was asked to leave, and does not know how to save
    words = [each.words for each in pods]
    assert [word.cause for word in words] == ["asked to stop (SIGTERM), and ended by that signal without a save"] * 2
    assert [word.worker_exits for word in words] == [(-signal.SIGTERM,)] * 2


OWN_SCRIPT = """
import torch
from trainyard_trainer import session

assert session.__file__.startswith({archive!r}), session.__file__
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = session.load(model, optimizer)
while not session.should_stop(step):
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    session.report(step, loss, tokens=8)
session.end()
"""


def test_a_script_in_such_an_image_finds_the_session_in_the_launcher(image: Image, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN_SCRIPT.format(archive=str(image.launcher)))
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), grace_seconds=60.0)
    plan = a_plan(rendezvous_port=free_port(), checkpoints=checkpoints)
    with pod(image, tmp_path / "pod", ["python3", str(script)], plan) as at:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while 'trainyard_trainer_step{rank="0"} 0' in (said := metrics_of(at)) or "_step{" not in said:
            assert at.process.poll() is None, at.err
            assert time.monotonic() < deadline, at.err
            time.sleep(0.05)
        assert at.stop(seconds=60.0)[0] == 202
        assert at.process.wait(PATIENCE_SECONDS) == Exit.YIELDED, at.err
    assert at.words.commit is not None
    assert at.words.commit.step == at.words.step > 0
    assert at.words.commit.path.startswith(checkpoints.folder)


def metrics_of(pod: Launched) -> str:
    try:
        return pod.request("GET", "/metrics")[1].decode()
    except OSError:
        return ""


def test_a_shell_that_calls_torchrun_starts_the_script_once_for_each_process(image: Image, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['RANK'], sys.executable, *sys.argv[1:])")
    command = ["sh", "-c", f"cd / && torchrun --nproc-per-node=2 --standalone {script} --lr 0.1"]
    with pod(image, tmp_path / "pod", command, a_plan(procs=2)) as at:
        assert at.wait() == Exit.DONE, at.err
    *said, note = sorted(at.out.decode().splitlines(), key=lambda line: "ignored" in line)
    assert sorted(said) == [f"[rank {n}] {n} {image.python} --lr 0.1" for n in range(2)]
    assert note.startswith("[rank 0] torchrun --standalone: ignored")


def test_a_python_that_is_too_old_is_told_which_one_is_needed(image: Image, tmp_path: Path) -> None:
    (tmp_path / "last-words").write_text("x" * 2000)
    run = f"runpy.run_path({str(image.launcher)!r}, run_name='__main__')"
    old = f"import runpy, sys; sys.version_info = (3, 8, 18, 'final', 0); {run}"
    environment = {"TRAINYARD_TERMINATION_LOG": str(tmp_path / "last-words")}
    ended = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == Exit.CONFIGURATION
    words = decode_last_words((tmp_path / "last-words").read_bytes())
    assert words.exit == Exit.CONFIGURATION
    assert words.cause.startswith(
        "the launcher needs Python 3.10 or newer, and python3 in this image is 3.8; use a newer image"
    )
    assert words.cause in ended.stderr


def test_what_is_carried_is_written_for_the_oldest_python_that_it_names(tmp_path: Path) -> None:
    carried = dict(archive.sources())
    assert "trainyard/contract/plan.py" in carried
    assert not [name for name in carried if name.startswith("trainyard/api")]
    for name, source in carried.items():
        ast.parse(source, name, feature_version=archive.OLDEST)
    first, second = (archive.write(tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second
    start = zipfile.ZipFile(tmp_path / "a" / archive.NAME).read("__main__.py")
    ast.parse(start, feature_version=(3, 4))  # says on a Python that knows nothing of today's what is missing


@pytest.fixture
def has_torchrun(tmp_path: Path) -> dict[str, str]:
    """An environment whose torchrun runs on /opt/conda's Python."""
    (tmp_path / "torchrun").write_text("#!/opt/conda/bin/python\nimport torch\n")
    (tmp_path / "torchrun").chmod(0o755)
    return {"PATH": str(tmp_path)}


CONDA = ("/opt/conda/bin/python", "-u")


@pytest.mark.parametrize(
    ("command", "runs", "ignored"),
    [
        ("torchrun train.py --lr 0.1 -m x", (*CONDA, "train.py", "--lr", "0.1", "-m", "x"), ()),
        ("torchrun --nproc_per_node=4 -m pkg.train a", (*CONDA, "-m", "pkg.train", "a"), ()),
        ("torchrun --nproc-per-node gpu --no-python ./run -x", ("./run", "-x"), ()),
        (
            "torchrun --nnodes 2:4 --rdzv_backend c10d --rdzv-conf a=b t.py",
            (*CONDA, "t.py"),
            ("nnodes", "rdzv-backend", "rdzv-conf"),
        ),
        ("torchrun -r 3 --standalone t.py --nnodes 9", (*CONDA, "t.py", "--nnodes", "9"), ("redirects", "standalone")),
        ("python3.12 -u -m torch.distributed.run t.py", ("python3.12", "-u", "t.py"), ()),
        ("python3 train.py -m torch.distributed.run", ("python3", "train.py", "-m", "torch.distributed.run"), ()),
        ("python3 -m pkg.train", ("python3", "-m", "pkg.train"), ()),
        ("./train", ("./train",), ()),
    ],
)
def test_torchrun_is_what_it_would_start(
    has_torchrun: Mapping[str, str], command: str, runs: tuple[str, ...], ignored: tuple[str, ...]
) -> None:
    found = unwrap(command.split(), 4, has_torchrun)
    assert found.command == runs
    assert sorted(found.ignored) == sorted(f"--{name}" for name in ignored)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            "torchrun --nproc-per-node 2 t.py",
            r"--nproc-per-node 2, but there are 4 processes on each node; leave it out, or set",
        ),
        (
            "torchrun --frobnicate t.py",
            "torchrun: the following arguments are required: script|unrecognized arguments: --frobnicate",
        ),
        ("torchrun", "the following arguments are required: script"),
        ("python3 -m torch.distributed.launch t.py", "an argument of its own; use torchrun, and read LOCAL_RANK"),
        ("/nowhere/torchrun t.py", "/nowhere/torchrun is not on the image's search path"),
    ],
)
def test_what_torchrun_would_do_otherwise_is_refused(has_torchrun: Mapping[str, str], command: str, why: str) -> None:
    with pytest.raises(Untranslatable, match=why):
        unwrap(command.split(), 4, has_torchrun)


def test_a_torchrun_whose_path_is_too_long_for_the_kernel_is_read_too(tmp_path: Path) -> None:
    long = f"/opt/{'x' * 200}/bin/python3"
    (tmp_path / "torchrun").write_text(f"#!/bin/sh\n'''exec' \"{long}\" \"$0\" \"$@\"\n' '''\nimport torch\n")
    (tmp_path / "torchrun").chmod(0o755)
    assert unwrap(["torchrun", "t.py"], 1, {"PATH": str(tmp_path)}).command == (long, "-u", "t.py")
