"""Which RDMA adapters collectives are to use: those that carry the compute network and are near the pod's accelerators.

A node has more adapters than that: one for management or storage, bonds, virtual functions of other pods, ports without a link.
NCCL would take all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainyard.contract.natural import natural

from trainyard_trainer.launch.network import gids
from trainyard_trainer.launch.network.tree import ETHERNET, INFINIBAND, Accelerator, Adapter, Port


@dataclass(frozen=True, slots=True)
class Judged:
    """An adapter's port and why it is not used; None: it is."""

    adapter: Adapter
    port: Port | None
    why_not: str | None


def judge(
    adapters: Sequence[Adapter],
    accelerators: Sequence[Accelerator],
    netdevs: Iterable[str],
    within: gids.Range | None = None,
) -> list[Judged]:
    """What becomes of each adapter, in natural order. netdevs: the pod's interfaces. within: of addresses of RoCE."""
    here = tuple(netdevs)
    found = [_alone(adapter, here, within) for adapter in adapters]
    class_of = _compute_class(found)
    found = [_of_class(judged, class_of) for judged in found]
    near = _near([judged.adapter for judged in found if judged.why_not is None], accelerators)
    return [
        Judged(j.adapter, j.port, "other adapters are nearer to this pod's accelerators")
        if j.why_not is None and j.adapter.name not in near
        else j
        for j in found
    ]


def _alone(adapter: Adapter, netdevs: Sequence[str], within: gids.Range | None) -> Judged:
    port = next((port for port in adapter.ports if port.active), None)
    if adapter.opens is False:
        return Judged(adapter, port, "its file in /dev/infiniband is not in this pod")
    if port is None:
        state = adapter.ports[0].state if adapter.ports else "no port"
        return Judged(adapter, None, f"it has no link ({state})")
    if port.link_layer == ETHERNET and not gids.usable(port, netdevs, within):
        rows = gids.usable(port, netdevs)
        outside = f"none of its addresses is in NCCL_IB_ADDR_RANGE {within}"
        return Judged(adapter, port, outside if rows else gids.why_none(port, netdevs))
    return Judged(adapter, port, None)


def _compute_class(found: Sequence[Judged]) -> tuple[str, float] | None:
    """Link layer and rate of the adapters that together carry most; InfiniBand where two carry the same."""
    total: dict[tuple[str, float], float] = defaultdict(float)
    for judged in found:
        if judged.port is not None and judged.why_not is None:
            total[judged.port.link_layer, judged.port.rate_gbps] += judged.port.rate_gbps
    return max(total, key=lambda kind: (total[kind], kind[0] == INFINIBAND, kind[1]), default=None)


def _of_class(judged: Judged, wanted: tuple[str, float] | None) -> Judged:
    if judged.port is None or judged.why_not is not None or wanted is None:
        return judged
    if judged.port.link_layer != wanted[0]:
        return Judged(judged.adapter, judged.port, f"it is {judged.port.link_layer}, and the others are {wanted[0]}")
    if judged.port.rate_gbps != wanted[1]:
        why = f"its rate is {judged.port.rate_gbps:g} Gb/s, and that of the others {wanted[1]:g}"
        return Judged(judged.adapter, judged.port, why)
    return judged


def _near(adapters: Sequence[Adapter], accelerators: Sequence[Accelerator]) -> frozenset[str]:
    """All of them where the pod has all accelerators of the machine; otherwise for each of its own the nearest, its share.

    Near is what has the most of the way from the PCI root in common, then what is of the same NUMA node.
    """
    given = [accelerator for accelerator in accelerators if accelerator.given]
    share = max(1, len(adapters) // max(len(accelerators), 1))
    if not given or len(given) == len(accelerators) or len(adapters) <= share * len(given):
        return frozenset(adapter.name for adapter in adapters)
    taken: list[str] = []
    for accelerator in given:
        order = sorted(adapters, key=lambda a: (a.name in taken, *_distance(accelerator, a), natural(a.name)))
        taken += [adapter.name for adapter in order[:share] if adapter.name not in taken]
    return frozenset(taken)


def _distance(accelerator: Accelerator, adapter: Adapter) -> tuple[int, int]:
    """Smaller is nearer."""
    common = 0
    for ours, theirs in zip(accelerator.chain, adapter.chain, strict=False):
        if ours != theirs:
            break
        common += 1
    return -common, int(accelerator.numa != adapter.numa)
