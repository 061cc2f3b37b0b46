"""What a gang is to prove before its first step, and what it found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainyard.contract.words import StrEnum

PASS_RATIO: Final = 0.8
"""From this share of the predicted bandwidth on a gang is as fast as it should be."""
WARN_RATIO: Final = 0.5
"""From this share on it trains, with a warning; below, the slow node is looked for."""
SLOW_FACTOR: Final = 2.0
"""A node is slow that takes more than so many times the median (DLRover, rdzv_manager.py)."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is measured before the first step of an attempt.

    message_bytes: of the all-reduce. expected_seconds: of one such all-reduce over the whole gang by the model; None: not known,
    nodes are only compared with each other. edge_bytes_per_second: by depth, what one node sends to another that shares a domain
    of that depth with it and none narrower (0: only the cluster; one entry more than the plan has levels); () where not known.
    nodes: node ranks to be measured; None: all, (): none, as all have passed lately. alone: no other job shares these links, so
    that a gang which is slow as a whole fails; otherwise it is warned of. budget_seconds: how long all of it may take where
    messages get through. lost_seconds: after how long one that has not counts as lost; longer than a network sends again.
    """

    message_bytes: int = 4 * 1024 * 1024
    expected_seconds: float | None = None
    edge_bytes_per_second: tuple[float, ...] = ()
    nodes: tuple[int, ...] | None = None
    alone: bool = False
    budget_seconds: float = 10.0
    lost_seconds: float = 30.0


class Finding(StrEnum):
    """How a preflight ended."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There was nothing to measure."""


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """What was found; the same on all ranks.

    bus_bandwidth, expected_bus_bandwidth: of the all-reduce, bytes a second. seconds: that all of it took. nodes: names of the
    nodes that are to blame; all others that were asked for are fit. edge_bytes_per_second: by depth as in `Preflight`, the median
    of what pairs of nodes reached; 0 where no pair was measured.
    """

    finding: str
    message: str
    seconds: float = 0.0
    bus_bandwidth: float | None = None
    expected_bus_bandwidth: float | None = None
    nodes: tuple[str, ...] = ()
    edge_bytes_per_second: tuple[float, ...] = ()
