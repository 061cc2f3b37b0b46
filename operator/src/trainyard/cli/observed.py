"""What was measured on a fabric: stored by `kubectl trainyard measure`, and shown beside what is declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from trainyard.api.fabric import Measurement, Observed, ObservedBy, ObservedCollective, ObservedLink
from trainyard.api.prose import count
from trainyard.cli.layout import WIDTH, ago, page, table, wrapped
from trainyard.cli.measure import Outcome
from trainyard.cli.measured import called, seconds, size, speed
from trainyard.contract.measured import Measured, Point
from trainyard.cycle.actions import WriteObserved
from trainyard.cycle.observe import over_interfaces, summary, tells_of
from trainyard.cycle.outlook import links_on
from trainyard.kube import decode, resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.kube.observations import write_observed
from trainyard.kube.shapes import CustomShape, Shape
from trainyard.planner import collectives
from trainyard.planner.collectives import Collective
from trainyard.planner.links import Links
from trainyard.topology.fabrics import choose
from trainyard.topology.tree import Tree
from trainyard.world.observed import FRESH_SECONDS, NODE, fresh, with_links
from trainyard.world.records import Fabric, World

TRIES: Final = 5
"""Others write the table too: gangs that prove their network."""
MOST_POINTS: Final = 128
ONE: Final = Shape(CustomShape)
RIGHT: Final = "the right to patch fabrics/status, which the chart's ClusterRole that ends in -measurer gives"


async def store(client: KubeClient, world: World, tree: Tree, outcome: Outcome, now: float) -> str:
    """Write a measurement into the table of the Fabric that it was made on. Returns what became of that, in a sentence."""
    nodes = [world.nodes[name] for name in dict.fromkeys(outcome.nodes) if name in world.nodes]
    fabric = choose(nodes, world.fabrics.values())
    if fabric is None:
        return (
            "Nothing is stored: no Fabric object is for these nodes, and without one there is no table. An empty one "
            "(spec: {}) is enough and changes no setting; one that says what the links should carry is better."
        )
    backend = outcome.measured.gang.backend
    if not tells_of(fabric, backend):
        return (
            f"Nothing is stored: {backend} goes over sockets, and the Fabric {fabric.name} is of kind {fabric.spec.kind.value}; "
            f"measure with accelerators, or on a Fabric of kind tcp."
        )
    try:
        for _ in range(TRIES):
            read = ONE.one.validate_python(await client.get(resources.FABRICS, None, fabric.name))
            try:
                current = decode.fabric(read)
            except ValueError as error:
                return f"Not stored: the Fabric {fabric.name} makes no sense any more: {error}."
            write = addition(world, tree, current, outcome, now)
            if write is None:
                return f"Not stored: a newer operator wrote the table of the Fabric {fabric.name}; use its plugin."
            try:
                await write_observed(client, write)
            except ApiError as error:
                if not error.conflict:
                    raise
            else:
                said = f"kubectl trainyard fabric {fabric.name}"
                return f"Stored in the Fabric {fabric.name}, where plans use it for a day: {said}."
    except ApiError as error:
        hint = f"; it takes {RIGHT}" if error.code == 403 else ""
        return f"Not stored: {error}{hint}."
    return f"Not stored: the Fabric {fabric.name} changed {TRIES} times in the meantime; measure again."


def addition(world: World, tree: Tree, fabric: Fabric, outcome: Outcome, now: float) -> WriteObserved | None:
    """The table of a Fabric with a measurement. None where a newer operator wrote the table in words unknown here: it stays."""
    if fabric.observed is None:
        return None
    observed = with_links(fabric.observed, rows_of(tree, outcome, now)).but(measurement=_measurement(outcome, now))
    observed = observed.but(summary=summary(world, tree, replace(fabric, observed=observed), now))
    return WriteObserved(fabric.name, fabric.uid, fabric.resource_version, observed)


def rows_of(tree: Tree, outcome: Outcome, now: float) -> Iterator[ObservedLink]:
    """What one node sends, by the broadest level that it leaves a domain of."""
    levels = over_interfaces(tree)
    for edge in outcome.measured.edges:
        if edge.depth < len(levels) and edge.bytes_per_second > 0.0:
            yield ObservedLink(
                level=levels[edge.depth],
                bandwidth=float(f"{edge.bytes_per_second:.4g}"),
                by=ObservedBy.MEASURE,
                job=outcome.job.key,
                nodes=len(dict.fromkeys(outcome.nodes)),
                time=now,
            )


def _measurement(outcome: Outcome, now: float) -> Measurement:
    found = outcome.measured
    kept = sorted(range(len(found.points)), key=lambda n: -found.points[n].bytes)[:MOST_POINTS]
    return Measurement(
        job=outcome.job.key,
        backend=found.gang.backend,
        nodes=len(dict.fromkeys(outcome.nodes)),
        ranks=found.gang.ranks,
        time=now,
        collectives=tuple(
            ObservedCollective(
                collective=point.collective, way=point.way, bytes=point.bytes, seconds=float(f"{point.seconds:.4g}")
            )
            for point in (found.points[n] for n in sorted(kept))
        ),
    )


def edges_lines(measured: Measured, links: Links) -> Iterator[str]:
    """What one node sends over each level, beside what it should. links: as declared."""
    levels = [*links.levels, NODE]
    rows = [("BETWEEN NODES", "PAIRS", "MEASURED", "SHOULD BE", "SHARE")]
    for edge in measured.edges:
        if edge.depth < len(levels):
            should = links.edge(edge.depth).bytes_per_second
            share = f"{edge.bytes_per_second / should:.2f}"
            rows.append(
                (_crossing(links, edge.depth), str(edge.pairs), speed(edge.bytes_per_second), speed(should), share)
            )
    if len(rows) > 1:
        yield from table(rows, right=(1, 2, 3, 4))


def _crossing(links: Links, depth: int) -> str:
    if depth < len(links.levels):
        return f"across {links.levels[depth]} domains"
    return f"of one {links.levels[-1]}" if links.levels else "of the cluster"


def fabrics_page(world: World, tree: Tree, name: str | None, now: float, width: int = WIDTH) -> str:
    """All Fabrics, or the one of this name: for each level what is declared and what was observed. ValueError for no such one."""
    if name is not None and name not in world.fabrics:
        raise ValueError(f"there is no Fabric {name} that makes sense; kubectl get fabrics lists them")
    shown = [fabric for _, fabric in sorted(world.fabrics.items()) if name in (None, fabric.name)]
    if not shown:
        return "There is no Fabric object: links are those of the nodes' machines, and nothing observed is kept.\n"
    return page(part for fabric in shown for part in _fabric(world, tree, fabric, now, width))


def _fabric(world: World, tree: Tree, fabric: Fabric, now: float, width: int) -> Iterator[Iterator[str]]:
    aged = fresh(World(nodes=world.nodes, fabrics={fabric.name: fabric}), now).fabrics[fabric.name]
    said = links_on(world, tree, replace(fabric, observed=None))
    yield iter(wrapped(f"{fabric.name} ({fabric.spec.kind.value}); links: {said.source}", width=width))
    yield _levels(said, links_on(world, tree, aged), fabric.observed or Observed(), now)
    measurement = (fabric.observed or Observed()).measurement
    if measurement is not None:
        yield _collectives(measurement, now)


def _levels(said: Links, seen: Links, observed: Observed, now: float) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("LEVEL", "SHOULD BE", "PLANNED WITH", "SHARE", "OBSERVED", "BY", "NODES", "AGE")]
    for depth, level in enumerate([*said.levels, NODE]):
        should, used = said.edge(depth).bytes_per_second, seen.edge(depth).bytes_per_second
        own = [row for row in observed.links if row.level == level]
        first = (level, speed(should), speed(used), f"{used / should:.2f}")
        rows += [(*(first if n == 0 else ("", "", "", "")), *_row(row, now)) for n, row in enumerate(own)]
        rows += [] if own else [(*first, "-", "-", "-", "-")]
    yield from table(rows, right=(1, 2, 3, 4, 6))
    yield "A node's messages that leave a domain of the level, in each direction. Beyond a day nothing observed counts."


def _row(row: ObservedLink, now: float) -> Sequence[str]:
    old = "" if now - row.time <= FRESH_SECONDS else ", too old"
    return speed(row.bandwidth), f"{row.by.value} {row.job}", str(row.nodes), f"{ago(row.time, now)}{old}"


def _collectives(measurement: Measurement, now: float) -> Iterator[str]:
    who = f"{count(measurement.ranks, 'rank')} on {count(measurement.nodes, 'node')} over {measurement.backend}"
    yield f"Measured {ago(measurement.time, now)} ago by {measurement.job}: {who}"
    rows = [("COLLECTIVE", "SIZE", "TIME", "BUS BANDWIDTH")]
    for one in measurement.collectives:
        bus = _bus(one, measurement.ranks)
        name = called(Point(one.collective, one.way, one.bytes, one.seconds, 0))
        rows.append((name, size(one.bytes), seconds(one.seconds), speed(bus)))
    yield from table(rows, right=(1, 2, 3))


def _bus(one: ObservedCollective, ranks: int) -> float:
    """0.0 where a newer plugin wrote of a collective that is not known here."""
    if one.collective not in list(Collective) or one.seconds <= 0.0:
        return 0.0
    return collectives.bus_factor(Collective(one.collective), ranks) * one.bytes / one.seconds
