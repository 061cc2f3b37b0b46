"""Which labels tell the network: a Fabric object's, or those of the dialect that tells most of the nodes with accelerators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, TypeVar

from trainyard.api.template import is_accelerator
from trainyard.topology.dialects import CLIQUE, COMPUTE_DOMAINS, DIALECTS, HOST, NVLINK, ZONES, Dialect
from trainyard.topology.fabrics import Fabricated, choose
from trainyard.topology.tree import Labelled, Level


class Equipped(Labelled, Protocol):
    """A node of which it is known what it offers."""

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Amount by resource name."""


N = TypeVar("N", bound=Equipped)


@dataclass(frozen=True, slots=True)
class Carried:
    """On how many of the nodes that were asked a level's label is, with a value."""

    level: Level
    nodes: int


@dataclass(frozen=True, slots=True)
class Spoken:
    """On how many of the nodes that were asked any label of a dialect is, with a value."""

    dialect: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Detected:
    """What tells the network of a cluster.

    source: the dialect, or the Fabric object if `described`; "" where nothing tells. levels: broadest first. asked: how many
    nodes had a say: those with accelerators (`equipped`), or all where none has any. carried: for each of the levels, on how many
    of these its label is. nvlink: the dialect that the NVLink levels are of, where the source has none; "" where it has, or
    none tells. unused: levels of the source that too few nodes carry to count. others: dialects that nodes carry besides.
    """

    source: str = ""
    described: bool = False
    levels: tuple[Level, ...] = ()
    asked: int = 0
    equipped: bool = False
    carried: tuple[int, ...] = ()
    nvlink: str = ""
    unused: tuple[Carried, ...] = ()
    others: tuple[Spoken, ...] = ()


def detect(nodes: Iterable[Equipped], fabrics: Iterable[Fabricated] = ()) -> Detected:
    """What tells the network.

    The Fabric with levels that most of the nodes with accelerators are on, where there is one. Else the dialect whose labels
    tell most: of each dialect those levels count that more than half of these nodes carry (one that a few nodes have left over
    from another time would tear all others apart), and the dialect with the most labels of such levels wins. Zones where no
    dialect has any. A dialect without NVLink is completed by the first that tells of it. One pass over the nodes.
    """
    everyone = list(nodes)
    having = accelerated(everyone)
    asked: Sequence[Equipped] = having or everyone
    described = choose(asked, (fabric for fabric in fabrics if fabric.spec.levels))
    told = tuple(Level(level.name, level.node_label) for level in described.spec.levels) if described else ()
    heard = _Heard(asked, told)
    if described is not None:
        counts = tuple(heard.on(level) for level in told)
        others = heard.others({level.label for level in told})
        return Detected(described.name, True, told, len(asked), bool(having), counts, others=others)
    source = _best(heard)
    levels = heard.carried(source) if source is not None else ()
    nvlink = next((of for of in _NVLINK if _tells_nvlink(heard, of)), None)
    if nvlink is not None and not any(level.name == NVLINK for level in levels):
        levels = _completed(levels, _nvlink_levels(heard, nvlink, asked), asked)
    else:
        nvlink = None
    spoken = tuple(source.spoken(heard.labels)) if source is not None else ()
    return Detected(
        source=source.name if source is not None else "",
        levels=levels,
        asked=len(asked),
        equipped=bool(having),
        carried=tuple(heard.on(level) for level in levels),
        nvlink=nvlink.name if nvlink is not None else "",
        unused=tuple(Carried(level, heard.on(level)) for level in spoken if level not in levels),
        others=heard.others({level.label for level in (*levels, *spoken)}),
    )


def accelerated(nodes: Iterable[N]) -> list[N]:
    """The nodes that have accelerators: those that gangs are placed on."""
    return [node for node in nodes if _has_accelerators(tuple(node.allocatable))]


def telling(labels: Mapping[str, str], fabrics: Iterable[Fabricated] = ()) -> dict[str, str]:
    """The labels of a node that say where it is in the network: while these stay as they are, so does what `detect` finds."""
    asked = {key for fabric in fabrics for key in (*fabric.spec.node_selector, *_level_labels(fabric))}
    return {key: value for key, value in labels.items() if key in _KNOWN or key in asked or key.startswith(_TIERED)}


def _level_labels(fabric: Fabricated) -> Iterator[str]:
    return (level.node_label for level in fabric.spec.levels)


class _Heard:
    """What nodes carry, counted once over all of them.

    labels: by label of any dialect, on how many nodes it is with a value. Nodes of a kind carry the same keys, so their keys are
    looked at once for each kind.
    """

    def __init__(self, nodes: Collection[Labelled], extra: Iterable[Level]) -> None:
        keys = _KNOWN.union(level.label for level in extra)
        kinds: dict[tuple[str, ...], tuple[str, ...]] = {}
        patterns: Counter[tuple[str, ...]] = Counter()
        for node in nodes:
            labels = node.labels
            kind = tuple(labels)
            known = kinds.get(kind)
            if known is None:
                known = kinds[kind] = tuple(sorted(key for key in kind if key in keys or key.startswith(_TIERED)))
            patterns[tuple([key for key in known if labels[key]])] += 1
        self.nodes = len(nodes)
        self.labels: Counter[str] = Counter()
        for pattern, number in patterns.items():
            for key in pattern:
                self.labels[key] += number
        self._patterns = patterns

    def on(self, level: Level) -> int:
        return self.labels[level.label]

    def carried(self, dialect: Dialect) -> tuple[Level, ...]:
        """The levels that more than half of the nodes carry."""
        return tuple(level for level in dialect.spoken(self.labels) if 2 * self.on(level) > self.nodes)

    def others(self, but: Collection[str]) -> tuple[Spoken, ...]:
        """Dialects of a network that some nodes carry beside these labels, most first."""
        counts = (
            Spoken(
                dialect.name,
                sum(n for keys, n in self._patterns.items() if any(map(dialect.speaks, keys))),
            )
            for dialect in DIALECTS
            if any(dialect.speaks(label) and label not in but for label in self.labels)
        )
        return tuple(sorted(counts, key=lambda spoken: -spoken.nodes))


def _best(heard: _Heard) -> Dialect | None:
    """The dialect whose levels that count have the most labels."""
    best, most = None, 0
    for dialect in DIALECTS:
        telling = sum(heard.on(level) for level in heard.carried(dialect))
        if telling > most:
            best, most = dialect, telling
    return best if best is not None else ZONES if heard.carried(ZONES) else None


def _tells_nvlink(heard: _Heard, dialect: Dialect) -> bool:
    return any(level.name == NVLINK for level in heard.carried(dialect))


def _nvlink_levels(heard: _Heard, dialect: Dialect, nodes: Iterable[Labelled]) -> tuple[Level, ...]:
    """The levels of a dialect from NVLink on. A domain that is no more than its only partition is not told apart from it."""
    carried = heard.carried(dialect)
    first = next(n for n, level in enumerate(carried) if level.name == NVLINK)
    whole = carried[first - 1] if first and carried[first - 1].label == carried[first].label else None
    if whole is not None:
        values = {node.labels.get(whole.label, "") for node in nodes}
        if len({whole.domain({whole.label: value}) for value in values}) < len(values):
            first -= 1
    return carried[first:]


def _completed(levels: tuple[Level, ...], nvlink: tuple[Level, ...], nodes: Collection[Labelled]) -> tuple[Level, ...]:
    """NVLink is narrower than all but hosts, unless it has fewer domains than a level: then that lies within it, as two leaves do
    that share a rack; the rack would be torn in two otherwise. No vendor tells the order of its levels and the cliques, whose
    names are unique and can be counted. A level of the same name is not there twice.
    """
    own = {level.name for level in levels}
    added = tuple(level for level in nvlink if level.name not in own)
    wider = tuple(level for level in levels if level.name != HOST)
    at = len(wider)
    while at and added[0].label in _UNIQUE and _has_fewer(added[0], wider[:at], nodes):
        at -= 1
    return (*wider[:at], *added, *wider[at:], *(level for level in levels if level.name == HOST))


def _has_fewer(one: Level, levels: tuple[Level, ...], nodes: Iterable[Labelled]) -> bool:
    """Whether a level of unique names has fewer domains than the narrowest of these, over the nodes that tell of all."""
    keys = (one.label, *(level.label for level in levels))
    rows = {tuple([node.labels.get(key, "") for key in keys]) for node in nodes}  # few: most nodes say what others say
    names, paths = set(), set()
    for row in rows:
        labels = dict(zip(keys, row, strict=True))
        name, path = one.domain(labels), tuple(level.domain(labels) for level in levels)
        if name and all(path):
            names.add(name)
            paths.add(path)
    return len(names) < len(paths)


_KNOWN: Final = frozenset(
    level.label for dialect in (*DIALECTS, ZONES, CLIQUE, *COMPUTE_DOMAINS) for level in dialect.levels
)
_TIERED: Final = tuple(dialect.tiers for dialect in DIALECTS if dialect.tiers)
_NVLINK: Final = (CLIQUE, *DIALECTS, *COMPUTE_DOMAINS)
"""Who may tell of NVLink, the most reliable first."""
_UNIQUE: Final = CLIQUE.labels | COMPUTE_DOMAINS[0].labels
"""Labels whose values name one thing wherever they are: they begin with a UUID."""


@lru_cache(maxsize=1024)
def _has_accelerators(resources: tuple[str, ...]) -> bool:
    return any(is_accelerator(name) for name in resources)
