"""Make the project's Python environment: a venv, uv in it, and the project with its extra `dev`, editable.

    PYTHONPATH=lab/src python3 -m trainyard_lab.environment bare   # the venv alone
    PYTHONPATH=lab/src python3 -m trainyard_lab.environment full   # and everything in it

Runs on the standard library alone, under the machine's Python. uv installs torch's 5 GB in a tenth of pip's time, but does
not read pip's configuration: where a machine is told by it which mirror or certificates to use, uv is told the same. Where
uv fails, pip does the work.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from trainyard_lab.progress import say, step

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDER = REPOSITORY / ".venv"
STAMP = FOLDER / "trainyard-environment"
EXTRAS = ".[dev]"
OLDEST_PYTHON = (3, 11)
# What makes `python3 -m venv` work on Debian, where it is a package of its own.
VENV_PACKAGE = "python3-venv"


class SetupError(Exception):
    """The environment cannot be made on this machine."""


def bare() -> None:
    """The venv with uv in it; does nothing where it is there."""
    if (FOLDER / "bin" / "uv").exists():
        return
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(f"Python {sys.version.split()[0]} is too old: 3.11 or later is needed")
    _ensure_venv_module()
    with step("make the Python environment .venv"):
        _run([sys.executable, "-m", "venv", str(FOLDER)])
        _run([str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])


def full() -> None:
    """Everything that pyproject.toml asks for; does nothing while neither it nor Python has changed."""
    bare()
    if STAMP.exists() and STAMP.read_text() == _wanted():
        return
    python = str(FOLDER / "bin" / "python")
    with step("install the project and what it needs (torch alone is 5 GB)"):
        by_uv = [str(FOLDER / "bin" / "uv"), "pip", "install", "--quiet", "--python", python, "--editable", EXTRAS]
        try:
            _run(by_uv, uv_settings(pip_configuration(python), os.environ))
        except SetupError as error:
            say(f"{error}\nuv could not; pip tries")
            _run([python, "-m", "pip", "install", "--quiet", "--editable", EXTRAS])
    STAMP.write_text(_wanted())


def pip_configuration(python: str) -> dict[str, str]:
    """What pip is told on this machine, by option name ("index-url"): files first, then PIP_ variables, which win."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    found: dict[str, tuple[int, str]] = {}
    ranks = {"global": 0, "install": 1, ":env:": 2}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ranks and ranks[section] >= found.get(option, (0, ""))[0]:
            found[option] = (ranks[section], str(ast.literal_eval(value)))
    return {option: value for option, (_, value) in found.items()}


def uv_settings(pip: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that tell uv what pip is told; those that are set already are left alone.

    Values are lists divided by blanks where pip takes several. Folders of wheels that do not exist are left out: pip
    passes over them, uv would stop.
    """
    several = {option: value.split() for option, value in pip.items()}
    folders = [place for place in several.get("find-links", []) if "://" in place or Path(place).exists()]
    told = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(several.get("extra-index-url", [])),
        # pip takes the best version of all indexes, uv by default the first index that knows the name.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if several.get("extra-index-url") else "",
        "UV_FIND_LINKS": ",".join(folders),
        "UV_INSECURE_HOST": " ".join(several.get("trusted-host", [])),
        "UV_HTTP_TIMEOUT": pip.get("default-timeout") or pip.get("timeout", ""),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "ALL_PROXY": pip.get("proxy", ""),
    }
    return {name: value for name, value in told.items() if value and name not in environment}


def _wanted() -> str:
    about = (REPOSITORY / "pyproject.toml").read_bytes() + sys.version.encode() + str(FOLDER).encode()
    return hashlib.sha256(about).hexdigest() + "\n"


def _ensure_venv_module() -> None:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise SetupError(f"this Python has no venv module: install {VENV_PACKAGE}") from None
        with step(f"install {VENV_PACKAGE}"):
            quietly = {"DEBIAN_FRONTEND": "noninteractive"}
            _run(["apt-get", "update", "-q"], quietly)
            _run(["apt-get", "install", "-q", "-y", "--no-install-recommends", VENV_PACKAGE], quietly)


def _run(command: list[str], more: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **(more or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SetupError(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stderr.strip()}")


if __name__ == "__main__":
    try:
        {"bare": bare, "full": full}[sys.argv[1]]()
    except SetupError as error:
        sys.exit(str(error))
