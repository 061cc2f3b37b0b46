"""Run the checks and tests part by part, and say where the time went.

    python tests/parts.py [--began=EPOCH_SECONDS] [PART ...]

A part is one process with one subject; all of them run even if one fails, since a broken chart says nothing about the
planner. The exit code is 0 only if every part passed; a part in which no test ran has not passed. The last lines are
what pytest said at the end of each part.
"""

import argparse
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
CHART = Path("charts") / "trainyard"

Command = tuple[str, ...]


def tool(name: str, *arguments: str) -> Command:
    """A program of the Python environment."""
    return (str(SCRIPTS / name), *arguments)


def python(*arguments: str) -> Command:
    return (sys.executable, *arguments)


def pytest(*folders: str) -> Command:
    return python("-m", "pytest", "--durations=5", "--durations-min=1", *(f"tests/{folder}" for folder in folders))


@dataclass(frozen=True, slots=True)
class Part:
    """commands: run in order; the part fails if one of them does."""

    name: str
    commands: tuple[Command, ...]


PARTS = (
    Part(
        "lint",
        (
            tool("ruff", "check", "--quiet"),
            tool("ruff", "format", "--check", "--quiet"),
            tool("mypy"),
            tool("lint-imports", "--no-logo"),
            python("-m", "trainyard.api.crd", "--check"),
            python("tests/parts.py", "--lint-chart"),
        ),
    ),
    Part("unit", (pytest("unit", "wire"),)),
    Part("cluster", (pytest("cluster"),)),
    Part("trainer", (pytest("trainer"),)),
    Part("chart", (pytest("chart"),)),
    Part("images", (python("-m", "trainyard_lab", "prepare"),)),
    Part("e2e", (pytest("e2e"),)),
)


@dataclass(frozen=True, slots=True)
class Result:
    """summary: pytest's own last line, or the commands that failed; empty for a part without tests that passed."""

    part: str
    passed: bool
    seconds: float
    summary: str


def run(part: Part) -> Result:
    """Run a part, its output passed on line by line."""
    print(f"\n===== {part.name} =====", flush=True)
    began = time.monotonic()
    said: list[str] = []
    passed = True
    for command in part.commands:
        code, last = stream(command)
        passed = passed and code == 0
        if "pytest" in command:
            said.append(last)
        elif code:
            said.append(f"{part.name}: {' '.join((Path(command[0]).name, *command[1:]))} ended with {code}")
    return Result(part.name, passed, time.monotonic() - began, "; ".join(said))


def stream(command: Command) -> tuple[int, str]:
    """Run a command in the repository; its exit code, and the last line that it printed."""
    last = ""
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return child.returncode, last


def report(results: Sequence[Result], preparation_seconds: float | None) -> None:
    print("\n===== where the time went =====")
    if preparation_seconds is not None:
        print(f"{'setup and servers':20}{preparation_seconds:8.0f} s")
    for result in results:
        print(f"{result.part:20}{result.seconds:8.0f} s  {'passed' if result.passed else 'FAILED'}")
    total = sum(result.seconds for result in results) + (preparation_seconds or 0)
    print(f"{'all':20}{total:8.0f} s\n")
    for result in results:
        if result.summary:
            print(result.summary)


def lint_chart() -> int:
    """`helm lint --strict`, by the Helm that the chart is installed with."""
    import helm_python  # only this needs it, and it loads a large library

    found = helm_python.lint(REPOSITORY / CHART, strict=True)
    problems = [*found["errors"], *(f"{m['path']}: {m['error']}" for m in found["messages"] if m["severity"] >= 2)]
    for problem in dict.fromkeys(problems):
        print(f"{CHART}: {problem}")
    return 1 if problems or found["total_charts_linted"] != 1 else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run checks and tests part by part.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--began", type=float, help="when the preparation began, for the report")
    parser.add_argument("--lint-chart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lint_chart:
        return lint_chart()
    if unknown := set(options.parts) - {part.name for part in PARTS}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in PARTS)}")
    preparation = time.time() - options.began if options.began else None
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    results = [run(part) for part in chosen]
    report(results, preparation)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
