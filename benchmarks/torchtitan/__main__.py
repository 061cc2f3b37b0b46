"""Run both, one after the other and again, and print how they compare."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.figures import Figure, as_json, as_table
from benchmarks.torchtitan.task import LEFT_OUT

PROCESSES: Final = 2
ROUNDS: Final = 3
SECONDS: Final = 300


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.torchtitan", description="The built-in trainer beside torchtitan."
    )
    parser.add_argument("--packages", type=Path, required=True, help="folder that holds torchtitan and what it needs")
    parser.add_argument("--json", action="store_true", help="a list of objects in place of a table")
    given = parser.parse_args()
    if not (given.packages / "torchtitan").is_dir():
        parser.error(f"--packages: {given.packages} holds no torchtitan; see benchmarks/torchtitan/__init__.py")
    runs = [(_run("ours", None), _run("theirs", given.packages.resolve())) for _ in range(ROUNDS)]
    figures = compared(runs)
    print(as_json(figures) if given.json else as_table(figures))
    return 0


def compared(runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Figure]:
    """runs: of ours and theirs in each round, `losses` and `seconds` by step."""
    ours, theirs = runs[0]
    off = max(abs(a - b) / b for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    curve = {"ours": ours["losses"], "torchtitan": theirs["losses"]}
    ratios = [median(a["seconds"][LEFT_OUT:]) / median(b["seconds"][LEFT_OUT:]) for a, b in runs]
    return [
        Figure("torchtitan_loss_difference", off, "largest relative, over all steps", details=curve),
        Figure("step_over_torchtitan", median(ratios), "time ratio, median of rounds", details={"rounds": ratios}),
    ]


def _run(arm: str, packages: Path | None) -> dict[str, Any]:
    """What the first process of a gang tells."""
    with socket.socket() as free, TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        path = [str(packages)] if packages else []
        processes = []
        for rank in range(PROCESSES):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "LOCAL_WORLD_SIZE": PROCESSES}
            environment = {
                **os.environ,
                **{name: str(value) for name, value in place.items()},
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TMPDIR": folder,
                "PYTHONPATH": os.pathsep.join([*path, str(Path.cwd())]),
            }
            command = [sys.executable, "-m", f"benchmarks.torchtitan.{arm}"]
            with open(Path(folder, f"{rank}"), "wb") as said:
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=subprocess.PIPE if rank == 0 else said, stderr=said
                    )
                )
        try:
            out, _ = processes[0].communicate(timeout=SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        lines = [line for line in out.splitlines() if line.startswith(b'{"losses"')]
        if not lines:
            raise SystemExit(f"{arm} told nothing; its last words:\n{Path(folder, '0').read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found


if __name__ == "__main__":
    sys.exit(main())
