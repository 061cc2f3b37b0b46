"""How good the planner's placements are, beside other schedulers' rules and the proven optimum.

    python -m benchmarks.placement [--json] [--data DIR]

DIR holds the real cluster and the trace (see `benchmarks.lingjun`); without it those figures are left out, with a message. The
synthetic clusters are from seeds. The exit code is 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory

from benchmarks import clusters, lingjun
from benchmarks.figures import Figure, aligned, as_json, as_table, failed, short
from benchmarks.policies import OURS, policies
from benchmarks.quality import DRAWS, INSTANCES, LINGJUN, Case, Site, cost, edges, segments
from benchmarks.replay import JOBS, Outcome, replay, workload

SEED: Final = 1
REPLAY: Final = "replay."


def synthetic() -> Sequence[Site]:
    """The clusters that ship as generators."""
    return (
        Site("fat_tree.", clusters.fat_tree(2_000), (Case(64, 0.5), Case(64, 0.2))),
        Site("rail.", clusters.rail_pods(8), (Case(96, 0.5), Case(96, 0.2))),
        Site("nvl72.", clusters.nvl72(40), (Case(64, 0.5), Case(64, 0.2)), clusters.NVL_MEMBER),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description="How good placements are.")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the real topology and trace")
    parser.add_argument("--draws", type=int, default=DRAWS, help=argparse.SUPPRESS)  # fewer, to try it out
    parser.add_argument("--instances", type=int, default=INSTANCES, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=JOBS, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    figures = [
        figure
        for site in synthetic()
        for figure in (*edges(site, min(given.draws, 50)), *cost(site, min(given.instances, 20)))
    ]
    figures.append(segments(clusters.nvl72(40), min(given.draws, 50)))
    figures += real(given.data, given.draws, given.instances, given.jobs)
    print(as_json(figures) if given.json else tables(figures))
    return failed(figures)


def tables(figures: Sequence[Figure]) -> str:
    """The replay as a table of its own, a line for each policy; all others, and those with a bar, a line each."""
    replayed: dict[str, dict[str, str]] = {}
    for figure in figures:
        if figure.name.startswith(REPLAY):
            policy, _, measure = figure.name.removeprefix(REPLAY).partition(".")
            replayed.setdefault(policy, {})[measure] = short(figure.value)
    single = as_table([figure for figure in figures if figure.bar is not None or not figure.name.startswith(REPLAY)])
    if not replayed:
        return single
    columns = [*next(iter(replayed.values()))]
    rows = [["replay", *columns], *([policy, *values.values()] for policy, values in replayed.items())]
    return f"{single}\n\n{aligned(rows)}"


def real(data: Path | None, draws: int, instances: int, jobs: int) -> list[Figure]:
    """The figures of the real cluster, as far as there is data for them."""
    if data is None or not (data / lingjun.TOPOLOGY).exists():
        where = "no --data DIR" if data is None else f"no {lingjun.TOPOLOGY} in {data}"
        print(f"{where}: the figures of the real topology are left out", file=sys.stderr)
        return []
    site = Site("", lingjun.topology(data), LINGJUN, edges_bar=1.0)
    figures = [*edges(site, draws), *cost(site, instances)]
    if not (data / lingjun.JOBS).exists():
        print(f"no {lingjun.JOBS} in {data}: the replay is left out", file=sys.stderr)
        return figures
    return [*figures, *replays(site, data, jobs)]


def replays(site: Site, data: Path, jobs: int) -> Iterator[Figure]:
    """What each policy makes of the trace. Ours is to communicate faster than every rival's, and to wait no longer."""
    empty = Inventory.of(clusters.world(site.nodes)).supply(demand({}, site.member))
    trace = workload(lingjun.arrivals(data), len(site.nodes), jobs)
    outcomes: dict[str, Outcome] = {}
    for policy in policies(SEED):
        print(f"replay under {policy.name} ...", file=sys.stderr, flush=True)
        outcomes[policy.name] = replay(empty, trace, policy)
    rivals = [outcome for name, outcome in outcomes.items() if name != OURS]
    for name, outcome in outcomes.items():
        ours = name == OURS
        bars = {
            "communication": min(rival.communication for rival in rivals),
            "waiting": min(rival.waiting for rival in rivals),
        }
        for measure, value, unit in measures(outcome):
            bar = bars.get(measure) if ours else None
            yield Figure(f"{REPLAY}{name}.{measure}", value, unit, bar, against="the best rival's" if bar else "")


def measures(outcome: Outcome) -> Iterator[tuple[str, float, str]]:
    """By name, with units."""
    yield "spread", outcome.spread, "leaves/fewest"
    yield "edges", outcome.edges, "edges"
    yield "communication", outcome.communication, "time/best"
    yield "communication_weighted", outcome.communication_weighted, "time/best"
    yield "waiting", outcome.waiting, "s"
    yield "waiting_p90", outcome.waiting_p90, "s"
    for size, seconds in outcome.waiting_by_size.items():
        yield f"waiting_{size}", seconds, "s"
    yield "utilisation", outcome.utilisation, ""
    yield "useful", outcome.useful, ""


if __name__ == "__main__":
    sys.exit(main())
