"""What the plan is worth on a real network, how exact the model is, and what settings and preflight cost.

    python -m benchmarks.network [--json] [--mebibytes N ...] [--orders N ...]

Random orders are those of the seeds 0, 1, 2...: 20 of them, and the first 8 of these for messages of more than 16 MiB, whose
worst order takes 22 s a time.

On the lab's emulated fabric (root; the whole machine, for minutes), eight pods with one process each, gloo. The exit code is 1
where a bar does not hold, and 2 where the lab could not run: the figures that need none are printed all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

from trainyard.api.fabric import FabricSpec
from trainyard.api.names import ANNOTATION_HCAS
from trainyard.api.training_job import TrainingJobSpec
from trainyard.network.derive import settings_for
from trainyard.planner import collectives
from trainyard.planner.collectives import Collective
from trainyard.planner.links import links_of
from trainyard.planner.mesh import Site
from trainyard.world.records import Fabric, Node
from trainyard_lab import cluster
from trainyard_lab.demo import jobs
from trainyard_lab.demo.figures import tree_of
from trainyard_lab.fabric import Topology

from benchmarks.fabric import Bench, CannotRun, Ran, bench
from benchmarks.figures import Figure, as_json, as_table, failed
from benchmarks.timing import settled, timed

MEBIBYTES: Final = (1.0, 16.0, 64.0)
BARRED: Final = 16.0
"""The size whose figures have bars."""
ORDERS: Final = 20
ORDERS_OF_LARGE: Final = 8
"""Beyond the size that has bars; all of them would take five minutes."""
PODS: Final = 8
WITHIN_SECONDS: Final = 2400.0

NO_LAB: Final = 2
"""Exit code."""


@dataclass(frozen=True, slots=True)
class Orders:
    """All-reduce of one size in several orders of the same ranks, in seconds. alternating: of the order that leaves the broadest
    domain at every step; modelled: what the planner's model says of each, the planned one first, the alternating one last."""

    mebibytes: float
    planned: float
    random: tuple[float, ...]
    alternating: float
    modelled: tuple[float, ...]

    @property
    def over_random(self) -> float:
        """Planned over the median of the random orders."""
        return self.planned / median(self.random)

    @property
    def modelled_over_random(self) -> float:
        """The same by the model."""
        return self.modelled[0] / median(self.modelled[1:-1])

    @property
    def worst(self) -> float:
        """Of all orders that were measured."""
        return max(*self.random, self.alternating)

    @property
    def error(self) -> float:
        """Of the model for the planned order, as a share of what was measured."""
        return abs(self.modelled[0] - self.planned) / self.planned

    @property
    def mean_error(self) -> float:
        """The same over all orders."""
        measured = (self.planned, *self.random, self.alternating)
        return fmean(abs(m - t) / t for m, t in zip(self.modelled, measured, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description="What the plan is worth.")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--mebibytes", type=float, nargs="+", default=MEBIBYTES, help="sizes; otherwise 1 16 64")
    parser.add_argument(
        "--orders",
        type=int,
        nargs="+",
        metavar="N",
        help=f"how many random orders of all sizes, or of each; otherwise {ORDERS}, and {ORDERS_OF_LARGE} of large messages",
    )
    given = parser.parse_args(arguments)
    orders = given.orders or [ORDERS if size <= BARRED else ORDERS_OF_LARGE for size in given.mebibytes]
    if len(orders) not in (1, len(given.mebibytes)):
        parser.error(
            f"--orders: {len(orders)} numbers for {len(given.mebibytes)} sizes; give one for all, or one for each"
        )
    figures, missing = [derive_1024()], False
    try:
        with bench() as here:
            for figure in on_the_lab(here, given.mebibytes, orders):
                figures.append(figure)  # one by one: what was measured before something goes wrong counts
    except CannotRun as why:
        print(f"benchmarks.network: not all was measured on the lab: {why}", file=sys.stderr)
        missing = True
    print(as_json(figures) if given.json else as_table(figures))
    return NO_LAB if missing else failed(figures)


def on_the_lab(here: Bench, mebibytes: Sequence[float], orders: Sequence[int]) -> Iterator[Figure]:
    """The figures that need pods."""
    job = jobs.measurement(PODS, mebibytes, orders)
    many = ", ".join(map(str, orders))
    print(f"all-reduce of {', '.join(map(str, mebibytes))} MiB in {many} random orders ...", file=sys.stderr)
    ran = here.run(job, WITHIN_SECONDS)
    for found in read(ran, here.lab.topology):
        yield from _of_orders(found, here.lab.topology)
    print("preflight ...", file=sys.stderr)
    yield preflight(here.run(jobs.like_the_sample("preflight", nodes=PODS, steps=1), WITHIN_SECONDS))


def read(ran: Ran, topology: Topology) -> Iterator[Orders]:
    """What the measurement said, with the model beside each order."""
    for line in ran.log.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        planned = list(range(len(ran.nodes)))
        every = [planned, *said["orders"], said["apart"]]
        yield Orders(
            mebibytes=said["mebibytes"],
            planned=said["planned"],
            random=tuple(said["random"]),
            alternating=said["alternating"],
            modelled=tuple(
                modelled(topology, [ran.nodes[rank] for rank in order], said["mebibytes"] * 2**20) for order in every
            ),
        )


def modelled(topology: Topology, nodes: Sequence[str], message_bytes: float) -> float:
    """Seconds of a ring all-reduce by the planner's model, from the Fabric that the lab's administrator wrote."""
    tree = tree_of(topology)
    spec = FabricSpec.model_validate(cluster.fabric_object(Path("/"), topology)["spec"])
    site = Site(links_of(spec, tree.levels), tree, nodes, 1)
    whole = site.predictor.step().whole
    return collectives.ring(whole, message_bytes, rounds=2)


def _of_orders(found: Orders, topology: Topology) -> Iterator[Figure]:
    size = f"{found.mebibytes:g}MiB"
    barred = found.mebibytes == BARRED
    rates = (topology.node_bits_per_second, topology.leaf_bits_per_second, topology.spine_bits_per_second)
    links = "/".join(f"{rate / 1e6:.0f}" for rate in rates)
    ring = collectives.bus_factor(Collective.ALL_REDUCE, PODS) * found.mebibytes * 2**20
    yield Figure(
        f"planned_over_random_{size}",
        found.over_random,
        "",
        0.55 if barred else None,
        against=f"{found.modelled_over_random:.2f} by the model on {links} Mbit/s (node/leaf/spine)",
        details={
            "planned_seconds": found.planned,
            "random_seconds": list(found.random),
            "alternating_seconds": found.alternating,
            "bus_bandwidth": ring / found.planned,
        },
    )
    yield Figure(
        f"planned_over_worst_{size}",
        found.planned / found.worst,
        "",
        against=f"{found.planned:.2f} s planned, {found.worst:.2f} s worst, {median(found.random):.2f} s median random",
    )
    yield Figure(
        f"model_error_{size}",
        found.error,
        "",
        0.25 if barred else None,
        against=f"planned: {found.modelled[0]:.2f} s by the model; mean over all orders {found.mean_error:.2f}",
        details={"modelled_seconds": list(found.modelled)},
    )


def preflight(ran: Ran) -> Figure:
    """How long a gang's preflight took, from when the last process was there. CannotRun where there was none."""
    found = ran.status.get("network", {}).get("preflight")
    if found is None:
        raise CannotRun("the status says nothing of a preflight")
    seconds = float(found["seconds"])
    return Figure("preflight_seconds", seconds, "s", 10.0, against=f"{len(ran.nodes)} pods; {found['message']}")


def derive_1024() -> Figure:
    """Settings of 1,024 pods on nodes of two kinds, each node with its own list of adapters."""
    nodes = [
        Node(
            name=f"n-{n}",
            uid=f"u-{n}",
            labels={"node.kubernetes.io/instance-type": f"kind-{n % 2}"},
            allocatable={"nvidia.com/gpu": 8, "cpu": 192_000, "memory": 1 << 41, "rdma/hca": 8},
            annotations={ANNOTATION_HCAS: ",".join(f"mlx5_{(n % 7) + rail}" for rail in range(8))},
        )
        for n in range(1024)
    ]
    container = {"name": "trainer", "image": "own", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    spec = TrainingJobSpec.model_validate({"nodes": 1024, "template": {"spec": {"containers": [container]}}})
    fabrics = {"site": Fabric("site", FabricSpec.model_validate({"profile": "roce", "interface": "eth0"}))}

    def derived(_: None) -> list[int]:
        settings = settings_for(spec, nodes, fabrics)
        return [len(settings.on(node.name).settings) for node in nodes]

    with settled():
        timing = timed(lambda _: None, derived, 7)
    written = derived(None)
    return Figure(
        "derive_1024_seconds",
        timing.cpu,
        "s",
        0.1,
        against=f"of the processor; {written[0]} variables for each pod, 7 lists of adapters on 2 kinds of machine",
        details={**timing.details, "wall": timing.median},
    )


if __name__ == "__main__":
    sys.exit(main())
