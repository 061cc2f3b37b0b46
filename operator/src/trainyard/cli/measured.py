"""What `kubectl trainyard measure` prints: what a gang reached, beside the model's prediction and the limit of the links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.api.prose import count
from trainyard.cli.layout import WIDTH, page, table, wrapped
from trainyard.cli.ranks import ranks_table
from trainyard.contract.measured import Gang, Measured, Point, Way
from trainyard.planner import collectives, predict
from trainyard.planner.collectives import Collective, Group
from trainyard.planner.mesh import Site
from trainyard.planner.traffic import GANG, Traffic

UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
"""Of messages, the largest first."""

_LARGE: Final = 2**20
"""From this size on the model is judged: below, a collective takes as long as the machine needs to begin."""


@dataclass(frozen=True, slots=True)
class Row:
    """A point with what the model says of it. bus_bandwidth, predicted_bus_bandwidth: bytes a second, as nccl-tests counts."""

    point: Point
    predicted_seconds: float
    bus_bandwidth: float
    predicted_bus_bandwidth: float

    @property
    def ratio(self) -> float:
        """Measured over predicted bandwidth."""
        return self.predicted_seconds / self.point.seconds if self.point.seconds > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A measurement with its predictions. limit: what the slowest edge of the ring over all ranks carries, bytes a second;
    bottleneck: where that is; source: how the links are known."""

    gang: Gang
    rows: tuple[Row, ...]
    limit: float
    bottleneck: str
    source: str


def compared(measured: Measured, site: Site) -> Compared:
    """Each point beside its prediction. site: of the gang that measured."""
    whole = site.predictor.step()
    rows = []
    for point in measured.points:
        seconds = _predicted(point, measured.gang, site, whole.whole)
        factor = collectives.bus_factor(Collective(point.collective), measured.gang.ranks) * point.bytes
        rows.append(Row(point, seconds, _over(factor, point.seconds), _over(factor, seconds)))
    link = whole.whole.between if whole.whole.nodes > 1 else whole.whole.inside
    return Compared(measured.gang, tuple(rows), link.bytes_per_second, whole.bottleneck, site.links.source)


def _predicted(point: Point, gang: Gang, site: Site, whole: Group) -> float:
    collective, size = Collective(point.collective), float(point.bytes)
    match point.way:
        case Way.RING:
            return collectives.ring(whole, size, rounds=2)
        case Way.TREE:
            return collectives.tree(whole, size)
        case Way.HIERARCHICAL:
            near, far = gang.neighbours, gang.ranks // gang.neighbours
            traffic: tuple[Traffic, ...] = (
                Traffic("inside", Collective.REDUCE_SCATTER, near, 1, size),
                Traffic("across", Collective.ALL_REDUCE, far, near, size / near),
                Traffic("inside", Collective.ALL_GATHER, near, 1, size),
            )
        case _:
            traffic = (Traffic(GANG, collective, gang.ranks, 1, size),)
    found = site.predictor.step(traffic)
    return sum(timed.seconds for timed in found.timed)


def _over(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0.0 else 0.0


def measured_page(found: Compared, site: Site, width: int = WIDTH) -> str:
    """The page: where the ranks lie, and a table for each collective."""
    gang = found.gang
    per_node = "" if gang.processes_per_node == 1 else f", {gang.processes_per_node} on each node"
    head = f"{count(gang.ranks, 'rank')}{per_node}, over {gang.backend}"
    held = {predict.NODE: "the interfaces of a node", predict.INSIDE: "the links inside a node"}
    where = held.get(found.bottleneck, f"the uplinks of a {found.bottleneck}")
    limit = f"The slowest edge of the ring over all ranks, {where}: {speed(found.limit)}. Links: {found.source}."
    return page(
        [[head], ranks_table(site.tree, site.nodes), _table(found), wrapped(limit, width=width), _judged(found, width)]
    )


def _table(found: Compared) -> Iterator[str]:
    rows = [("COLLECTIVE", "SIZE", "TIME", "PREDICTED", "BUS BANDWIDTH", "PREDICTED", "OF LIMIT", "OF PREDICTED")]
    for row in found.rows:
        rows.append(
            (
                called(row.point),
                size(row.point.bytes),
                seconds(row.point.seconds),
                seconds(row.predicted_seconds),
                speed(row.bus_bandwidth),
                speed(row.predicted_bus_bandwidth),
                f"{row.bus_bandwidth / found.limit:.2f}",
                f"{row.ratio:.2f}",
            )
        )
    yield from table(rows, right=range(1, 8))


def _judged(found: Compared, width: int) -> Iterator[str]:
    """What is worth a look: where the model is off by more than a quarter for large messages."""
    off = [row for row in found.rows if row.point.bytes >= _LARGE and not 0.75 <= row.ratio <= 1.33]
    if off:
        named = ", ".join(f"{called(row.point)} of {size(row.point.bytes)} ({row.ratio:.2f})" for row in off)
        yield from wrapped(f"Off the prediction by more than a quarter: {named}", then="  ", width=width)


def called(point: Point) -> str:
    """The collective, with the way where it has several."""
    return point.collective if point.way == Way.LIBRARY else f"{point.collective}, {point.way}"


def size(amount: int) -> str:
    """Bytes of a message, in powers of two where it is one."""
    for unit, name in UNITS:
        if amount >= unit:
            return f"{amount / unit:.4g} {name}"
    return "0 B"


def speed(amount: float) -> str:
    """Bytes a second, in powers of ten."""
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if amount >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount:.3g} B/s"


def seconds(amount: float) -> str:
    """A time with three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if amount >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount * 1e6:.3g} us"


def read_sizes(text: str) -> tuple[int, ...]:
    """Sizes of messages such as 64KiB,1MiB; ValueError for anything else."""
    return tuple(sorted({_read_size(one.strip()) for one in text.split(",")}))


def _read_size(text: str) -> int:
    for unit, name in UNITS:
        number = text.removesuffix(name).removesuffix(name[:2]) if len(name) > 1 else text.removesuffix(name)
        if number != text and number.isdecimal() and int(number) > 0:
            return int(number) * unit
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError(f"{text!r} is no size; write bytes as in 65536, or 64KiB, 16MiB, 1GiB")


def series(found: Compared) -> Sequence[tuple[str, list[Row]]]:
    """The rows by collective and way, in their order."""
    by_name: dict[str, list[Row]] = {}
    for row in found.rows:
        by_name.setdefault(called(row.point), []).append(row)
    return list(by_name.items())
