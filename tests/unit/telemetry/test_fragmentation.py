"""What a scrape says of what is free."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.clusters import FABRIC, GPU, a_cluster, a_node, a_pod
from trainyard.telemetry.metrics import Metrics
from trainyard.world.records import Pod, World

CLUSTER = {**a_cluster(), "small": a_node("small", spine="b", leaf="leaf-2", gpus=4)}


def a_world(*pods: Pod) -> World:
    return World(nodes=CLUSTER, pods={pod.uid: pod for pod in pods}, fabrics={FABRIC.name: FABRIC})


def value(metrics: Metrics, name: str, each: int = 8, **labels: str) -> float | None:
    known = {"kind": f"{each} {GPU}", **labels}
    return metrics.registry.get_sample_value(f"trainyard_fragmentation_{name}", known)


def test_gangs_are_counted_by_kind_of_node_size_and_level() -> None:
    metrics = Metrics("0.1.0")
    metrics.cycled(
        a_world(a_pod("p", node="a1-0", requests={GPU: 8}), a_pod("q", node="b1-0", requests={GPU: 2})), 0.001
    )
    assert value(metrics, "free_gangs", level="leaf", size="2") == 2
    assert value(metrics, "free_gangs", level="spine", size="2") == 2
    assert value(metrics, "free_gangs", level="cluster", size="2") == 3
    assert value(metrics, "largest_gang_nodes", level="spine") == 3
    assert value(metrics, "largest_gang_nodes", each=4, level="leaf") == 1
    assert value(metrics, "free_accelerators") == 8 * 8 - 10
    assert value(metrics, "unusable_ratio", size="2") == pytest.approx((54 - 4 * 8) / 54)
    assert value(metrics, "unusable_ratio", size="16") is None
    expected = value(metrics, "expected_ratio")
    assert expected is not None
    assert 0 < expected < 1


def test_the_next_scrape_tells_of_the_next_world() -> None:
    metrics = Metrics("0.1.0")
    full = [a_pod(f"p-{name}", node=name, requests={GPU: 8}) for name in CLUSTER]
    metrics.cycled(a_world(*full), 0.001)
    assert value(metrics, "free_gangs", level="leaf", size="2") == 0
    metrics.cycled(replace(a_world(*full[2:])), 0.001)
    assert value(metrics, "free_gangs", level="leaf", size="2") == 1
