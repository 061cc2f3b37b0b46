"""How much memory a world takes, made the way the operator makes it: from the API server's JSON through the informers' shapes,
decoder and stores, frozen into a World, with an inventory and one kind of member counted on it.

tracemalloc counts all that is allocated meanwhile and still held at the end. The JSON is dropped page by page and does not
count. What Python's arenas hold beside it is out of tracemalloc's sight and comes on top in the size of a process.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final

from trainyard.kube.informer import Kind
from trainyard.kube.mirror import NODES, STRANGERS
from trainyard.kube.store import Seen, Store
from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import World

from benchmarks.clusters import GPU, MEMBER

PAGE: Final = 500
"""Objects of a list that come at once."""


def world_bytes(nodes: int, pods: int, seed: int = 1) -> int:
    """Bytes of a world of so many nodes and pods and of what is counted on it."""
    random = Random(seed)
    pages = [list(_pages(nodes, raw_node)), list(_pages(pods, lambda number: raw_pod(number, nodes, random)))]
    gc.collect()
    tracemalloc.start()
    try:
        stores = _read(NODES, pages[0]), _read(STRANGERS, pages[1])
        world = World(nodes=dict(stores[0].records), pods=dict(stores[1].records))
        inventory = Inventory.of(world)
        inventory.supply(demand({}, MEMBER))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if (len(world.nodes), len(world.pods), len(inventory.nodes)) != (nodes, pods, nodes):
        raise AssertionError("the world is not what was read")
    return held


def _read(kind: Kind[Any, Any], pages: list[bytes]) -> Store[Any]:
    """As an informer reads a list."""
    listed: list[Seen[Any]] = []
    while pages:
        for raw in kind.shape.page.validate_json(pages.pop())["items"] or ():
            meta = raw["metadata"]
            key = meta["name"] if kind.by_name else meta["uid"]
            listed.append(Seen(key, meta["uid"], meta["resourceVersion"], kind.decode(raw)))
    store: Store[Any] = Store()
    store.replace(listed, "1")
    return store


def _pages(count: int, make: Callable[[int], Mapping[str, Any]]) -> Iterator[bytes]:
    for first in range(0, count, PAGE):
        items = [make(number) for number in range(first, min(first + PAGE, count))]
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


def raw_node(number: int) -> dict[str, Any]:
    """A node of eight accelerators as the API server tells of it: some 50 labels of the cloud, the GPU operator and the
    network."""
    leaf = number // 20
    name = f"gpu-{number:05d}.pool-a.eu-central-1.compute.internal"
    return {
        "metadata": {
            "name": name,
            "uid": f"7d3c1f0e-0000-4000-8000-{number:012d}",
            "resourceVersion": str(80_000_000 + number),
            "creationTimestamp": "2026-09-01T10:00:00Z",
            "labels": {
                **_COMMON_LABELS,
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": f"eu-central-1{'abc'[leaf % 3]}",
                "fabric.topograph.run/tier-2": f"core-{leaf // 125}",
                "fabric.topograph.run/tier-1": f"spine-{leaf // 25}",
                "fabric.topograph.run/tier-0": f"leaf-{leaf}",
                "node.example.com/serial": f"SN{number:09d}",
                "node.example.com/rack": f"rack-{number // 4}",
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "csi.volume.kubernetes.io/nodeid": '{"ebs":"i-0"}' * 4,
            },
        },
        "spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {
                "cpu": "191450m",
                "memory": "2063937756Ki",
                "ephemeral-storage": "5762832310000",
                "hugepages-1Gi": "0",
                "hugepages-2Mi": "0",
                "pods": "110",
                GPU: "8",
                "rdma/ib": "8",
            },
            "conditions": [
                {
                    "type": of,
                    "status": "False",
                    "reason": "Fine",
                    "message": "fine",
                    "lastTransitionTime": "2026-09-01T10:00:00Z",
                }
                for of in ("MemoryPressure", "DiskPressure", "PIDPressure")
            ]
            + [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastTransitionTime": "2026-09-01T10:00:00Z",
                }
            ],
        },
    }


def raw_pod(number: int, nodes: int, random: Random) -> dict[str, Any]:
    """A pod of another system: with accelerators every other one, else an agent that runs on every node."""
    works = number % 2 == 0
    limits = {GPU: "8", "rdma/ib": "8"} if works else {}
    requests = {"cpu": "64", "memory": "512Gi"} if works else {"cpu": "250m", "memory": "512Mi"}
    suffix = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
    return {
        "metadata": {
            "name": f"{'batch-train' if works else 'node-agent'}-{number:05d}-{suffix}",
            "namespace": f"team-{number % 40}" if works else "monitoring",
            "uid": f"2b9e4d8a-0000-4000-8000-{number:012d}",
            "resourceVersion": str(90_000_000 + number),
            "creationTimestamp": "2026-11-01T10:00:00Z",
            "labels": {"app.kubernetes.io/name": "batch-train", "controller-revision-hash": f"{number:010x}"},
        },
        "spec": {
            "nodeName": f"gpu-{number // 2 % nodes:05d}.pool-a.eu-central-1.compute.internal",
            "priority": 0,
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {"name": "main", "resources": {"limits": limits, "requests": requests}},
                {"name": "proxy", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "conditions": [
                {"type": of, "status": "True", "lastTransitionTime": "2026-11-01T10:00:00Z"}
                for of in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        },
    }


_COMMON_LABELS: Final = {
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "node-role.kubernetes.io/worker": "",
    "topology.kubernetes.io/region": "eu-central-1",
    **{
        f"feature.node.kubernetes.io/cpu-cpuid.{of}": "true"
        for of in ("AVX", "AVX2", "AVX512F", "AMXTILE", "SHA", "VAES")
    },
    **{f"feature.node.kubernetes.io/{of}": "true" for of in ("pci-10de.present", "pci-15b3.present", "rdma.available")},
    "feature.node.kubernetes.io/kernel-version.full": "6.8.0-1021-generic",
    "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
    "nvidia.com/cuda.driver-version.full": "570.172.08",
    "nvidia.com/cuda.runtime-version.full": "12.8",
    "nvidia.com/gfd.timestamp": "1762000000",
    "nvidia.com/gpu-driver-upgrade-state": "upgrade-done",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.machine": "ProLiant-XD680",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "single",
    **{
        f"nvidia.com/gpu.deploy.{of}": "true"
        for of in (
            "container-toolkit",
            "dcgm",
            "dcgm-exporter",
            "device-plugin",
            "driver",
            "mig-manager",
            "operator-validator",
        )
    },
}
