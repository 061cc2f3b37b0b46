"""In what the members of a gang differ that they must have alike, by what each found of its network.

Operator and workers compare the same, each when it can: what both say is the same sentence. Collectives over unlike adapters
hang: since NCCL 2.30.3 a difference is ignored by default (NCCL_IGNORE_NET_MISMATCH).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.contract.natural import natural
from trainyard.contract.network import Alike

ADAPTERS: Final = "number of adapters"
RATE: Final = "Gb/s of each adapter"
MTU: Final = "MTU of the adapters"
HANGS: Final = "NCCL ignores the difference, and collectives hang"
PACE: Final = "the slowest sets the pace"
LOSES: Final = "large messages are lost, and collectives hang"


@dataclass(frozen=True, slots=True)
class Trait:
    """Something that all should have alike. of: None where a pod could not tell. so: what follows from a difference. hangs: a
    gang that differs in it never does a step."""

    name: str
    of: Callable[[Alike], Hashable]
    so: str
    hangs: bool = False


TRAITS: Final = (
    Trait("link layer", lambda of: of.link_layer, "InfiniBand and Ethernet do not reach each other", hangs=True),
    Trait(ADAPTERS, lambda of: of.adapters, HANGS, hangs=True),
    Trait(RATE, lambda of: _gbps(of.rate_gbps), PACE),
    Trait(MTU, lambda of: of.mtu, LOSES, hangs=True),
    Trait("MTU of the interface", lambda of: of.interface_mtu, "large packets are lost on the way to the smaller one"),
    Trait("address family", lambda of: of.family, "adapters do not reach each other", hangs=True),
    Trait("NCCL version", lambda of: version(of.nccl), "NCCL refuses to start", hangs=True),
    Trait("GPUDirect", lambda of: _switch(of.gpudirect), PACE),
)


@dataclass(frozen=True, slots=True)
class Unlike:
    """What came of comparing the members of a gang. fatal: why they cannot train together. nodes: names of those to blame, where
    that can be told. costly: what they had better have alike, or be newer in."""

    fatal: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    costly: tuple[str, ...] = ()


def compare(found: Mapping[str, Alike]) -> Unlike:
    """found: by node, in rank order. To blame is a minority; of two halves neither is."""
    fatal, blamed, costly = list[str](), list[str](), list[str]()
    for trait in TRAITS:
        of = {node: trait.of(alike) for node, alike in found.items()}
        (fatal if trait.hangs else costly).extend(differing(trait.name, of, trait.so))
        groups = sorted(_groups(of).values(), key=len) if trait.hangs else []
        if len(groups) > 1 and len(groups[-1]) > len(groups[-2]):
            blamed += [node for group in groups[:-1] for node in group]
    return Unlike(tuple(fatal), tuple(dict.fromkeys(blamed)), tuple(costly))


def differing(what: str, of: Mapping[str, Hashable], so: str) -> Iterator[str]:
    """A sentence where the known values are not one and the same: those of few nodes by name."""
    groups = _groups(of)
    if len(groups) < 2:
        return
    ordered = sorted(groups, key=lambda value: (-len(groups[value]), str(value)))
    most = groups[ordered[0]]
    parts = [f"{ordered[0]} on {f'{len(most)} nodes' if len(most) > 1 else most[0]}"]
    parts += [f"{value} on {_some(groups[value])}" for value in ordered[1:]]
    yield f"{what}: {', '.join(parts)}; {so}"


def version(nccl: tuple[int, ...] | None) -> str | None:
    """As people write it."""
    return None if nccl is None else ".".join(str(part) for part in nccl)


def _groups(of: Mapping[str, Hashable]) -> dict[Hashable, list[str]]:
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for node, value in of.items():
        if value is not None:
            groups[value].append(node)
    return dict(groups)


def _some(nodes: Sequence[str]) -> str:
    ordered = sorted(nodes, key=natural)
    return ", ".join(ordered) if len(ordered) <= 3 else f"{', '.join(ordered[:3])} and {len(ordered) - 3} more"


def _gbps(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:g}"


def _switch(on: bool | None) -> str | None:
    return None if on is None else "on" if on else "off"
