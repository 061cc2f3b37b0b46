"""In what the pods of a gang differ that must be alike, from what each found of itself. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from trainyard.contract.network import Alike, PodNetwork

FATAL: Final = (
    ("link_layer", "link layer", "InfiniBand and Ethernet do not reach each other"),
    ("adapters", "number of adapters", "NCCL ignores the difference, and collectives hang"),
    ("mtu", "MTU of adapters", "large messages are lost, and collectives hang"),
    ("family", "address family of adapters", "they do not reach each other"),
    ("nccl", "NCCL version", "NCCL refuses to start"),
)
"""Field, its name, and what follows where pods differ in it."""
COSTLY: Final = (
    ("rate_gbps", "Gb/s of each adapter", "the slowest sets the pace"),
    ("gpudirect", "GPUDirect", "the slowest sets the pace"),
    ("interface_mtu", "MTU of the socket interface", "large packets are cut, or lost where nobody may cut them"),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """fatal: why the gang cannot train on these nodes. nodes: those to blame, where it can be told. warnings: what only costs."""

    fatal: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def compare(found: Mapping[str, PodNetwork]) -> Compared:
    """found: by node. What a pod could not tell says nothing."""
    fatal, blamed, warnings = [], [], []
    for node, network in found.items():
        if network.faults:
            fatal.append(f"{node}: {'; '.join(network.faults)}")
            blamed.append(node)
    alike = {node: network.alike for node, network in found.items() if not network.faults}
    for field, title, so in FATAL:
        groups = _groups(alike, field)
        if len(groups) > 1:
            fatal.append(_sentence(title, groups, so))
            ordered = sorted(groups.values(), key=len)
            if len(ordered[-1]) > len(ordered[-2]):  # who is in the minority
                blamed += [node for group in ordered[:-1] for node in group]
    for field, title, so in COSTLY:
        groups = _groups(alike, field)
        if len(groups) > 1:
            warnings.append(_sentence(title, groups, so))
    return Compared(tuple(fatal), tuple(dict.fromkeys(blamed)), tuple(warnings))


def _groups(alike: Mapping[str, Alike], field: str) -> dict[Hashable, list[str]]:
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for node, of in alike.items():
        value = getattr(of, field)
        if value is not None:
            groups[value].append(node)
    return dict(groups)


def _sentence(title: str, groups: Mapping[Hashable, list[str]], so: str) -> str:
    ordered = sorted(groups, key=lambda value: (-len(groups[value]), str(value)))
    parts = [f"{_said(ordered[0])} on {len(groups[ordered[0]])} nodes"]
    parts += [f"{_said(value)} on {_some(groups[value])}" for value in ordered[1:]]
    return f"{title}: {', '.join(parts)}; {so}"


def _said(value: Hashable) -> str:
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value}"


def _some(nodes: list[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= 3 else f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"
