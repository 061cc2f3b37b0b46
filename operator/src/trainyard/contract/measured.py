"""What a measurement of collectives says: lines of JSON in the log of rank 0, the gang first, then a line for each
level of the network and for each point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.contract.codec import ContractError, dumps, loads
from trainyard.contract.words import StrEnum


class Way(StrEnum):
    """How a collective was done."""

    LIBRARY = "library"
    """As the library chose."""
    RING = "ring"
    TREE = "tree"
    """Over two binary trees, in each of which one half of the message is reduced and sent back."""
    HIERARCHICAL = "hierarchical"
    """Reduce-scatter among neighbours, all-reduce of the parts across, all-gather among neighbours."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Who measured. ranks: processes; neighbours: how many of them the hierarchical way takes together; 0: none."""

    ranks: int
    processes_per_node: int
    backend: str
    neighbours: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One collective at one size. bytes: of the whole message as nccl-tests counts; seconds: the median of the slowest rank's."""

    collective: str
    way: str
    bytes: int
    seconds: float
    samples: int


@dataclass(frozen=True, slots=True)
class Edge:
    """What one node sends to another. depth: of the narrowest domain that they share, 0 for the cluster alone; bytes_per_second:
    per direction, the median of so many pairs."""

    depth: int
    bytes_per_second: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole measurement."""

    gang: Gang
    points: tuple[Point, ...] = ()
    edges: tuple[Edge, ...] = ()


def encode_line(said: Gang | Point | Edge) -> str:
    """One line."""
    return dumps(said)


def read(lines: Iterable[str]) -> Measured:
    """Find a measurement in a log; the last one where there are several. ContractError where there is none."""
    gang: Gang | None = None
    points: list[Point] = []
    edges: list[Edge] = []
    for line in lines:
        said = _read(line) if line.startswith("{") else None
        match said:
            case Gang():
                gang, points, edges = said, [], []
            case Point():
                points.append(said)
            case Edge():
                edges.append(said)
    if gang is None:
        raise ContractError("the log holds no measurement")
    return Measured(gang, tuple(points), tuple(edges))


def _read(line: str) -> Gang | Point | Edge | None:
    kinds: tuple[type[Gang | Point | Edge], ...] = (Gang, Point, Edge)
    for kind in kinds:
        try:
            return loads(kind, line)
        except ContractError:
            continue
    return None
