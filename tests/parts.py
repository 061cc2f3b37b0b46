"""Run the checks and tests part by part, two at a time, and say where the time went.

    python tests/parts.py [--began=EPOCH_SECONDS] [PART ...]

A part is one subject; all of them run even if one fails, since a broken chart says nothing about the planner. What a part
prints stands together: it comes as one block when the part ends, with a line now and then about what still runs. The exit
code is 0 only if every part passed; a part in which no test ran has not passed. The last lines are what pytest said at
the end of each part.
"""

import argparse
import signal
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from trainyard_lab.progress import duration, say

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
CHART = Path("charts") / "trainyard"
PROGRESS_SECONDS = 30
STOP_SECONDS = 120  # what a part has for taking down what it has up, the lab too
WIDTH = 120

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


@dataclass(frozen=True, slots=True)
class Lane:
    """What runs after one another. niceness: that of nice(1); how far it stands back when the processors are wanted by both."""

    parts: tuple[Part, ...]
    niceness: int = 0


LANES = (
    # The longer one: it computes less than it waits, for pods, for nodes that are missed, for links that are slow on purpose.
    Lane(
        (
            Part("images", (python("-m", "trainyard_lab", "prepare"),)),
            Part("e2e", (pytest("e2e"),)),
        )
    ),
    Lane(
        (
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
            Part("trainer", (pytest("trainer"),)),
            Part("chart", (pytest("chart"),)),
            Part("cluster", (pytest("cluster"),)),
        ),
        niceness=5,
    ),
)
"""They run side by side. Parts of two lanes share nothing but the machine."""
NAMES = tuple(part.name for lane in LANES for part in lane.parts)


@dataclass(frozen=True, slots=True)
class Result:
    """summary: what pytest says failed, and its last line; or the commands that failed."""

    part: str
    passed: bool
    seconds: float
    summary: tuple[str, ...]


@dataclass(slots=True)
class Running:
    """A part that runs, and what it has printed. live: pass it on line by line, since nothing else prints meanwhile."""

    part: Part
    niceness: int
    live: bool
    began: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    child: subprocess.Popen[str] | None = None

    def print(self, line: str) -> None:
        self.lines.append(line)
        if self.live:
            say(line)

    @property
    def last(self) -> str:
        """The last line that says anything."""
        return next((line.strip() for line in reversed(self.lines) if line.strip()), "")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Lanes:
    """Runs lanes of parts side by side, and can be told to stop."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._live = len(lanes) == 1
        self._running: dict[str, Running] = {}
        self._stopped = False
        self._lock = Lock()

    def run(self) -> list[Result]:
        """The results of all parts, lane by lane. Interrupted, it lets what runs clean up and starts nothing more."""
        with ThreadPoolExecutor(len(self._lanes)) as pool:
            lanes = [pool.submit(self._run_lane, lane) for lane in self._lanes]
            try:
                self._wait(lanes)
            except KeyboardInterrupt:
                self._stop()
                raise
            return [result for lane in lanes for result in lane.result()]

    def _wait(self, lanes: Sequence[Future[list[Result]]]) -> None:
        while wait(lanes, timeout=PROGRESS_SECONDS).not_done:
            with self._lock:
                if not self._live:
                    for running in self._running.values():
                        said = f"{running.part.name}: still running ({duration(running.seconds)})  {running.last}"
                        say(said[:WIDTH])

    def _run_lane(self, lane: Lane) -> list[Result]:
        return [self._run_part(part, lane.niceness) for part in lane.parts if not self._stopped]

    def _run_part(self, part: Part, niceness: int) -> Result:
        running = Running(part, niceness, self._live)
        with self._lock:
            self._running[part.name] = running
            say(f"\n===== {part.name} =====" if self._live else f"{part.name} ...")
        passed = True
        summary: list[str] = []
        for command in part.commands:
            before = len(running.lines)
            code = self._stream(running, command)
            passed = passed and code == 0
            if "pytest" in command:
                said = running.lines[before:]
                summary += [line for line in said if line.startswith(("FAILED ", "ERROR "))]
                summary += deque((line for line in said if line.strip()), maxlen=1)
            elif code:
                words = " ".join((Path(command[0]).name, *command[1:]))
                summary.append(f"{part.name}: {words} ended with {code}")
        with self._lock:
            del self._running[part.name]
            if not self._live:
                verdict = "passed" if passed else "FAILED"
                say(f"\n===== {part.name}: {verdict} ({duration(running.seconds)}) =====")
                say("\n".join((*running.lines, "")))
        return Result(part.name, passed, running.seconds, tuple(summary))

    def _stream(self, running: Running, command: Command) -> int:
        """Run a command in the repository; its exit code."""
        with self._lock:
            if self._stopped:
                return -signal.SIGINT
            # In a session of its own, so that a Ctrl-C reaches it once, by `_stop`: a second one would end its cleaning up.
            running.child = child = subprocess.Popen(
                ("nice", f"-n{running.niceness}", *command),
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        assert child.stdout is not None
        for line in child.stdout:
            running.print(line.rstrip("\n"))
        return child.wait()

    def _stop(self) -> None:
        """Interrupt what runs, and kill what is not gone after a while."""
        with self._lock:
            self._stopped = True
            children = [running.child for running in self._running.values() if running.child]
        for child in children:
            child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        for child in children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()


def report(results: Sequence[Result], seconds: float, preparation_seconds: float | None) -> None:
    say("\n===== where the time went =====")
    if preparation_seconds is not None:
        say(f"{'setup and servers':20}{preparation_seconds:8.0f} s")
    for result in results:
        say(f"{result.part:20}{result.seconds:8.0f} s  {'passed' if result.passed else 'FAILED'}")
    say(f"{'all, side by side':20}{seconds + (preparation_seconds or 0):8.0f} s\n")
    for result in results:
        for line in result.summary:
            say(line)


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
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--began", type=float, help="when the preparation began, for the report")
    parser.add_argument("--lint-chart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lint_chart:
        return lint_chart()
    if unknown := set(options.parts) - set(NAMES):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    preparation = time.time() - options.began if options.began else None
    began = time.monotonic()
    wanted = options.parts or NAMES
    lanes = [replace(lane, parts=tuple(part for part in lane.parts if part.name in wanted)) for lane in LANES]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = Lanes([lane for lane in lanes if lane.parts]).run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    report(results, time.monotonic() - began, preparation)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
