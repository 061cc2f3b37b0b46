"""What saving, stopping and resuming cost, and whether anything is lost.

    python -m benchmarks.recovery [--json] [--folder FOLDER] [NAME ...]

Real ranks over gloo on this machine, forked from one process. What is compared is measured in turns in one run. The exit code
is 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import SystemRandom

from trainyard_trainer.checkpoint.objects import Url

from benchmarks import launcher, restart, resumes, saves
from benchmarks.figures import Figure, as_json, as_table, failed
from benchmarks.gangs import BUCKET, object_trials, server, trials


def wrong_loads(home: Path, count: int, seed: int) -> Figure:
    """Lives that end at a drawn file operation, and what the next attempt loads."""
    home.mkdir()
    lives = list(trials(count, seed, home))
    wrong = [life for life in lives if life.wrong]
    for life in wrong:
        print(life, file=sys.stderr)
    details = {
        "seed": seed,
        "lives": len(lives),
        "power": sum(life.power for life in lives),
        "two ranks": sum(life.ranks == 2 for life in lives),
        "an older step was loaded": sum(life.loaded < 6 for life in lives),
    }
    return Figure("wrong_loads", len(wrong), "loads", 0.0, details=details)


def wrong_loads_of_objects(home: Path, count: int, seed: int) -> Figure:
    """The same in an object store: a real S3 server, and deaths at a drawn operation on objects."""
    with server(home / "server") as s3:
        os.environ.update(s3.environment)
        lives = list(object_trials(count, seed, Url(f"s3://{BUCKET}/lives"), home))
    wrong = [life for life in lives if life.wrong]
    for life in wrong:
        print(life, file=sys.stderr)
    details = {"seed": seed, "lives": len(lives), "an older step was loaded": sum(life.loaded < 6 for life in lives)}
    return Figure("wrong_loads_of_objects", len(wrong), "loads", 0.0, details=details)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description="Saving, stopping, resuming.")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--folder", help="where to save to (default: a temporary folder, removed in the end)")
    parser.add_argument(
        "--lives",
        type=int,
        default=300,
        help="of wrong_loads, and 10 x as many as of objects (default: %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=15, help="of notice_to_durable_ratio (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=3, help="of 50 steps with a save (default: %(default)s)")
    parser.add_argument("--restarts", type=int, default=5, help="of restart_seconds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of exporter_ratio (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of what is drawn (default: drawn, and printed)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these figures")
    given = parser.parse_args(arguments)
    seed = SystemRandom().randrange(2**31) if given.seed is None else given.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        home = Path(folder)
        same = cache(lambda: resumes.same(home / "same"))
        figures: dict[str, Callable[[], Figure | list[Figure]]] = {
            "save_stall_ratio": lambda: saves.stall(made(home / "stall"), given.blocks),
            "notice_to_durable_ratio": lambda: saves.notice(made(home / "notice"), given.runs),
            "resume_same_difference": lambda: same()[0],
            "resume_twice_difference": lambda: same()[1],
            "resume_other_difference": lambda: resumes.other(home / "other"),
            "samples_wrong": lambda: resumes.samples(home / "samples", seed),
            "exporter_ratio": lambda: launcher.cold_start_and_exporter(home / "launcher", given.seconds),
            "restart_seconds": lambda: restart.restarts(home / "restart", given.restarts),
            "wrong_loads": lambda: wrong_loads(home / "lives", given.lives, seed),
            "wrong_loads_of_objects": lambda: wrong_loads_of_objects(made(home / "objects"), given.lives // 10, seed),
        }
        unknown = [name for name in given.names if name not in figures]
        if unknown:
            parser.error(f"no figure is called {unknown[0]}; there are {', '.join(figures)}")
        measured: list[Figure] = []
        for name in given.names or figures:
            print(f"{name} ...", file=sys.stderr, flush=True)
            found = figures[name]()
            measured += found if isinstance(found, list) else [found]
            print(f"{measured[-1].name} {measured[-1].value:.4g} {measured[-1].unit}", file=sys.stderr, flush=True)
    print(as_json(measured) if given.json else as_table(measured))
    return failed(measured)


def made(path: Path) -> Path:
    """A folder that is there."""
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
