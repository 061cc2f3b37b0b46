"""What the built-in trainer costs, how exact it is and what it sends: the figures of docs/trainer.md.

    python -m benchmarks.trainer [--json] [--orders N] [--turns N] [figure ...]

Four or eight processes on this machine, over gloo; for a quiet one, a quarter of an hour. What goes over a network is measured
on the lab's emulated fabric (root). The exit code is 1 where a bar does not hold, and 2 where there could be no fabric: the
figures that need none are printed all the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import trainer_exact, trainer_network, trainer_step
from benchmarks.fabric import CannotRun
from benchmarks.figures import Figure, as_json, as_table, failed

ORDERS: Final = 20
TURNS: Final = 9
NO_FABRIC: Final = 2
"""Exit code."""

Measure = Callable[[Path], Iterable[Figure]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trainer", description="What the trainer costs and sends."
    )
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--orders", type=int, default=ORDERS, help="how many random orders (default: %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=TURNS, help="of the trainer and of the bare loop (default: %(default)s)"
    )
    parser.add_argument("names", nargs="*", metavar="figure", help="which to measure; otherwise all")
    given = parser.parse_args(arguments)
    every = measures(given.orders, given.turns)
    unknown = sorted(set(given.names) - {name for names in every for name in names})
    if unknown:
        parser.error(
            f"no figure is called {unknown[0]}; there are {', '.join(name for names in every for name in names)}"
        )
    figures: list[Figure] = []
    missing = False
    for names, measure in every.items():
        if given.names and not set(given.names) & set(names):
            continue
        print(f"{', '.join(names)} ...", file=sys.stderr)
        try:
            with tempfile.TemporaryDirectory(prefix="trainyard-") as home:
                figures += measure(Path(home))
        except CannotRun as why:
            print(f"benchmarks.trainer: left out: {why}", file=sys.stderr)
            missing = True
    print(as_json(figures) if given.json else as_table(figures))
    return NO_FABRIC if missing else failed(figures)


def measures(orders: int, turns: int) -> dict[tuple[str, ...], Measure]:
    """By the names of the figures that it gives."""
    return {
        ("step_over_bare", "loader_ratio"): partial(trainer_step.measure, turns=turns),
        ("gradient_difference",): lambda home: [trainer_exact.gradient_difference(home)],
        ("ledger_difference",): lambda home: [trainer_exact.ledger_difference(home)],
        ("wire_difference",): lambda home: [trainer_network.wire(home)],
        ("planned_over_random_step",): lambda home: [trainer_network.planned_over_random(home, orders)],
        ("exposed_over_communication",): lambda home: [trainer_network.overlap(home)],
        ("hierarchical_over_model", "hierarchical_over_flat"): trainer_network.hierarchical,
    }


if __name__ == "__main__":
    sys.exit(main())
