"""Who is slow, from how long pairs of nodes took. Pure.

A pair's slowness is the time that it took over the time that it should take; where no speeds are known, seconds for a byte. The
node's is that of its best pair: a good node with a slow partner gets another chance, a slow node is slow with everybody.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from trainyard.contract.plan import Plan
from trainyard.contract.preflight import PASS_RATIO, SLOW_FACTOR, WARN_RATIO, Finding, Preflight

from trainyard_trainer.preflight.pairs import common_depth


@dataclass(frozen=True, slots=True)
class Exchange:
    """What two nodes reached with each other: bytes a second, one way, of the slower of their processes together; 0: nothing."""

    a: int
    b: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding with its reason. nodes: node ranks that are to blame."""

    finding: Finding
    message: str
    nodes: tuple[int, ...] = ()


def by_ratio(ratio: float) -> Finding:
    """measured over predicted bandwidth. FAILED is not the last word: it has to be found out who is slow."""
    if ratio >= PASS_RATIO:
        return Finding.PASSED
    return Finding.WARNED if ratio >= WARN_RATIO else Finding.FAILED


def slowness(plan: Plan, asked: Preflight, exchange: Exchange) -> float:
    """1: as fast as it should be; inf: it did not get through."""
    if exchange.bytes_per_second <= 0.0:
        return math.inf
    expected = rate(plan, asked, exchange.a, exchange.b)
    return (expected or 1.0) / exchange.bytes_per_second


def rate(plan: Plan, asked: Preflight, a: int, b: int) -> float | None:
    """Bytes a second that two nodes should reach; None where it is not known."""
    edges = asked.edge_bytes_per_second
    if not edges:
        return None
    expected = edges[min(common_depth(plan, a, b), len(edges) - 1)]
    return expected if expected > 0.0 else None


def best(plan: Plan, asked: Preflight, exchanges: Iterable[Exchange]) -> dict[int, float]:
    """By node, the slowness of its best pair."""
    found: dict[int, float] = defaultdict(lambda: math.inf)
    for exchange in exchanges:
        value = slowness(plan, asked, exchange)
        for node in (exchange.a, exchange.b):
            found[node] = min(found[node], value)
    return dict(found)


def suspects(
    of: Mapping[int, float], rated: bool, among: Collection[int] | None = None, known: float | None = None
) -> tuple[int, ...]:
    """Nodes that take more than twice the median; where speeds are known, more than twice what they should as well; and whoever
    gets nothing through.

    among: those that are measured; None: all. The others passed lately: where speeds are not known, what they take with each
    other is the measure (`known`; None: no two of them were measured).
    """
    if not of:
        return ()
    usual = median_low(sorted(of.values())) if among is None else known
    if rated:
        limit = SLOW_FACTOR * max(usual or 1.0, 1.0) if among is None else SLOW_FACTOR
    else:
        limit = SLOW_FACTOR * usual if usual is not None else math.inf
    return tuple(
        node for node in sorted(of) if math.isinf(of[node]) or (of[node] > limit and (among is None or node in among))
    )


def usual(plan: Plan, asked: Preflight, exchanges: Iterable[Exchange], good: Collection[int]) -> float | None:
    """The median slowness of pairs of good nodes that got through; None without one."""
    found = [slowness(plan, asked, e) for e in exchanges if e.a in good and e.b in good and e.bytes_per_second > 0.0]
    return median(found) if found else None


def edges(plan: Plan, asked: Preflight, exchanges: Sequence[Exchange]) -> tuple[float, ...]:
    """The median of what pairs reached, by depth; 0 where no pair got anything through."""
    found: dict[int, list[float]] = defaultdict(list)
    for exchange in exchanges:
        if exchange.bytes_per_second > 0.0:
            found[common_depth(plan, exchange.a, exchange.b)].append(exchange.bytes_per_second)
    depths = max(len(asked.edge_bytes_per_second), len(plan.levels) + 1)
    return tuple(median(found[depth]) if found[depth] else 0.0 for depth in range(depths))


def blame(plan: Plan, slow: Sequence[int], exchanges: Sequence[Exchange], total: str) -> Verdict:
    """These nodes are slow with everybody."""
    others = [e.bytes_per_second for e in exchanges if e.a not in slow and e.b not in slow]
    usual = f"; the others reach {speed(median(others))}" if others else ""
    total = f"; {total}" if total else ""
    parts = []
    for node in slow[:8]:
        own = [
            f"{speed(e.bytes_per_second)} with {name(plan, e.b if e.a == node else e.a)}"
            for e in exchanges
            if node in (e.a, e.b)
        ]
        parts.append(f"{name(plan, node)} reaches {' and '.join(own)}")
    more = f" and {len(slow) - 8} more" if len(slow) > 8 else ""
    return Verdict(Finding.FAILED, f"{'; '.join(parts)}{more}{usual}{total}", tuple(slow))


def cut(plan: Plan, exchanges: Sequence[Exchange], total: str) -> Verdict:
    """Something does not get through, and no node is to blame. exchanges: those of nodes that nothing is known against."""
    lost = [e for e in exchanges if e.bytes_per_second <= 0.0]
    if lost:
        named = " and ".join(f"between {name(plan, e.a)} and {name(plan, e.b)}" for e in lost[:4])
        more = f" and {len(lost) - 4} more pairs" if len(lost) > 4 else ""
        why = f"nothing gets through {named}{more}, and which of them it is cannot be told"
    else:
        why = f"each of the {len(exchanges)} pairs of nodes that were measured gets through by itself"
    return Verdict(Finding.FAILED, "; ".join(filter(None, (why, total))))


def nobody(plan: Plan, asked: Preflight, cleared: Sequence[int], exchanges: Sequence[Exchange], total: str) -> Verdict:
    """The gang is slow, and no node is to blame. cleared: nodes that were fast with another partner."""
    if cleared:
        named = ", ".join(name(plan, node) for node in cleared[:4])
        why = f"{named} were slow with one node and are fast with another: the way between them is slow, not a node"
    else:
        reached = sorted(e.bytes_per_second for e in exchanges)
        between = f", {speed(reached[0])} to {speed(reached[-1])} between pairs" if reached else ""
        why = f"all {len(plan.members)} nodes are equally slow{between}"
    if asked.alone:
        return Verdict(Finding.FAILED, f"{why}, and no other job uses their links; {total}")
    return Verdict(Finding.WARNED, f"{why}; other jobs may be using the same links; {total}")


def name(plan: Plan, node: int) -> str:
    """Of the node that plays a node rank."""
    return plan.members[node].node


def size(count: int) -> str:
    """Bytes, in powers of two."""
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB"


def speed(bytes_per_second: float) -> str:
    """For people, in powers of ten."""
    if bytes_per_second <= 0.0:
        return "nothing"
    for unit, text in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_second >= unit:
            return f"{bytes_per_second / unit:.3g} {text}"
    return f"{bytes_per_second:.3g} B/s"
