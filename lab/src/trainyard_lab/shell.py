"""Run a program of the machine and say what went wrong in its own words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


class CommandFailed(Exception):
    """A program ended with an error; the message holds the command line and what it wrote to stderr."""

    def __init__(self, argv: tuple[str, ...], code: int, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)} ended with {code}: {stderr.strip() or '(nothing on stderr)'}")
        self.code = code
        self.stderr = stderr


def run(
    *argv: str,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_seconds: float | None = None,
) -> str:
    """What the program writes to stdout. Raises CommandFailed if it ends with an error."""
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        env=None if env is None else dict(env),
        cwd=cwd,
        timeout=timeout_seconds,
        check=False,
    )
    if done.returncode != 0:
        raise CommandFailed(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout
