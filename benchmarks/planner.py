"""How fast the planner is.

    python -m benchmarks.planner [--json] [NAME ...]

All clusters are synthetic and from seeds. Times are medians in this process on one core. The exit code is 1 where a bar does
not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.figures import as_json, as_table, failed
from benchmarks.scenes import Scale
from benchmarks.speed import FIGURES


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description="How fast the planner is.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these figures, of {', '.join(FIGURES)}")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)  # smaller clusters, to try it out
    parser.add_argument("--runs", type=int, default=7, help="of each timing (default: %(default)s)")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure is called {unknown[0]}; there are {', '.join(FIGURES)}")
    scale = Scale(given.scale, given.runs)
    figures = []
    for name in given.names or FIGURES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures.append(FIGURES[name](scale))
    print(as_json(figures) if given.json else as_table(figures))
    return failed(figures)


if __name__ == "__main__":
    sys.exit(main())
