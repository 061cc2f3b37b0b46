"""Facts about accelerators, networks and machines, per direction and with their source.

An accelerator is known by the label that GPU feature discovery gives its node, a machine by the cloud's instance type. What
stands here is what vendors publish and what NCCL counts with; nothing is fitted to measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainyard.api.names import LABEL_GPU_PRODUCT

GBIT: Final = 1e9 / 8
GB: Final = 1e9
MARKETING_GIB: Final = 2**30
TERA: Final = 1e12


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of accelerator.

    memory_bytes: of one. flops: dense bfloat16 operations a second, as published. link_bytes_per_second: usable, per direction,
    to the others of its node; link_seconds: one step of a ring over them. multicast: share of the link that an all-reduce in
    the node's switch reaches, 0 where the switch cannot reduce.
    """

    name: str
    memory_bytes: float
    flops: float
    link_bytes_per_second: float
    link_seconds: float
    multicast: float = 0.0


NVLINK_SECONDS: Final = 3.4e-6
"""One step of a ring over NVLink, protocol Simple (NCCL 2.30.7, src/graph/tuning.cc, hwLatencies)."""
PCI_SECONDS: Final = 5.7e-6
"""The same over PCIe."""
NVLS_HOPPER, NVLS_BLACKWELL = 0.85, 0.74
"""NCCL 2.30.7, src/graph/tuning.cc, nvlsEfficiency."""
NVLINK3, NVLINK4, NVLINK5 = 12 * 20.0 * GB, 18 * 20.6 * GB, 18 * 40.1 * GB
"""Links times what NCCL 2.30.7 counts of each (src/graph/topo.h); rated 300, 450 and 900 GB/s."""
PCI4, PCI5 = 24.0 * GB, 48.0 * GB
"""Sixteen lanes as NCCL counts them; 31.5 and 63 GB/s on the wire."""

ACCELERATORS: Final = (
    Accelerator("GB300", 288 * GB, 2500 * TERA, NVLINK5, NVLINK_SECONDS, NVLS_BLACKWELL),
    Accelerator("B300", 288 * GB, 2250 * TERA, NVLINK5, NVLINK_SECONDS, NVLS_BLACKWELL),
    Accelerator("GB200", 186 * GB, 2500 * TERA, NVLINK5, NVLINK_SECONDS, NVLS_BLACKWELL),
    Accelerator("B200", 180 * GB, 2250 * TERA, NVLINK5, NVLINK_SECONDS, NVLS_BLACKWELL),
    Accelerator("H200", 141 * GB, 989 * TERA, NVLINK4, NVLINK_SECONDS, NVLS_HOPPER),
    Accelerator("H100-PCIE", 80 * MARKETING_GIB, 756 * TERA, PCI5, PCI_SECONDS),
    Accelerator("H100-NVL", 94 * GB, 835 * TERA, PCI5, PCI_SECONDS),
    Accelerator("H100", 80 * MARKETING_GIB, 989 * TERA, NVLINK4, NVLINK_SECONDS, NVLS_HOPPER),
    Accelerator("H800", 80 * MARKETING_GIB, 989 * TERA, 8 * 20.6 * GB, NVLINK_SECONDS, NVLS_HOPPER),
    Accelerator("A100-SXM4-80GB", 80 * MARKETING_GIB, 312 * TERA, NVLINK3, NVLINK_SECONDS),
    Accelerator("A100-SXM4-40GB", 40 * MARKETING_GIB, 312 * TERA, NVLINK3, NVLINK_SECONDS),
    Accelerator("A100-80GB-PCIE", 80 * MARKETING_GIB, 312 * TERA, PCI4, PCI_SECONDS),
    Accelerator("A100-PCIE-40GB", 40 * MARKETING_GIB, 312 * TERA, PCI4, PCI_SECONDS),
    Accelerator("L40S", 48 * GB, 362 * TERA, PCI4, PCI_SECONDS),
    Accelerator("L4", 24 * GB, 121 * TERA, PCI4 / 2, PCI_SECONDS),
    Accelerator("A10G", 24 * GB, 70 * TERA, PCI4, PCI_SECONDS),
    Accelerator("A10", 24 * GB, 125 * TERA, PCI4, PCI_SECONDS),
)
"""NVIDIA's data sheets, dense figures without sparsity. The first whose name a product's name contains is meant: narrower ones
stand before broader ones."""


@dataclass(frozen=True, slots=True)
class Network:
    """A kind of network. usable: of a rated bandwidth, by large messages. latency_seconds: one step of a ring from node to node
    within the narrowest domain, what the library takes included. source: of both."""

    usable: float
    latency_seconds: float
    source: str


_NCCL_STEP: Final = 14e-6
"""NCCL 2.30.7, src/graph/tuning.cc, hwLatencies: NET, protocol Simple; ring and tree alike."""
NETWORKS: Final[Mapping[str, Network]] = {
    "InfiniBand": Network(0.96, _NCCL_STEP, "NCCL's speed steps: 48 of 50 GB/s NDR, 24 of 25 GB/s HDR"),
    "EFA": Network(0.96, _NCCL_STEP, "SRD carries 193.7 of 200 Gb/s, of which NCCL uses 48 of 50 GB/s"),
    "RoCE": Network(0.93, _NCCL_STEP, "RoCEv2 carries 90 to 97 % of the line rate"),
    "TCP": Network(0.94, 50e-6, "1,448 of 1,538 bytes of a full Ethernet frame; latency assumed"),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of node. nic_bytes_per_second: the rating of each of its network interfaces for collectives."""

    nics: int
    nic_bytes_per_second: float
    network: str
    source: str

    @property
    def link(self) -> tuple[float, float]:
        """Usable bytes a second of all its interfaces together, and seconds of a short message."""
        network = NETWORKS[self.network]
        return self.nics * self.nic_bytes_per_second * network.usable, network.latency_seconds


def _aws(nics: int, gbit: float) -> Machine:
    return Machine(nics, gbit * GBIT, "EFA", f"AWS: {nics} x {gbit:g} Gb/s EFA")


def _of(nics: int, gbit: float, network: str, who: str) -> Machine:
    return Machine(nics, gbit * GBIT, network, f"{who}: {nics} x {gbit:g} Gb/s {network}")


MACHINES: Final[Mapping[str, Machine]] = {
    "p4d.24xlarge": _aws(4, 100),
    "p4de.24xlarge": _aws(4, 100),
    "p5.48xlarge": _aws(32, 100),
    "p5e.48xlarge": _aws(32, 100),
    "p5en.48xlarge": _aws(16, 200),
    "p6-b200.48xlarge": _aws(8, 400),
    "p6e-gb200.36xlarge": _aws(4, 400),
    "Standard_ND96asr_v4": _of(8, 200, "InfiniBand", "Azure"),
    "Standard_ND96amsr_A100_v4": _of(8, 200, "InfiniBand", "Azure"),
    "Standard_ND96isr_H100_v5": _of(8, 400, "InfiniBand", "Azure"),
    "Standard_ND96isr_H200_v5": _of(8, 400, "InfiniBand", "Azure"),
    "gd-8xh100ib-i128": _of(8, 400, "InfiniBand", "CoreWeave"),
    "gd-8xh200ib-i128": _of(8, 400, "InfiniBand", "CoreWeave"),
    "b200-8x": _of(8, 400, "InfiniBand", "CoreWeave"),
    "a2-highgpu-8g": _of(1, 100, "TCP", "Google"),
    "a3-highgpu-8g": _of(4, 200, "TCP", "Google"),
    "a3-megagpu-8g": _of(8, 200, "TCP", "Google"),
    "a3-ultragpu-8g": _of(8, 400, "RoCE", "Google"),
    "a4-highgpu-8g": _of(8, 400, "RoCE", "Google"),
    "a4x-highgpu-4g": _of(4, 400, "RoCE", "Google"),
    "BM.GPU4.8": _of(16, 100, "RoCE", "Oracle"),
    "BM.GPU.A100-v2.8": _of(16, 100, "RoCE", "Oracle"),
    "BM.GPU.H100.8": _of(16, 200, "RoCE", "Oracle"),
    "BM.GPU.H200.8": _of(8, 400, "RoCE", "Oracle"),
    "BM.GPU.B200.8": _of(8, 400, "RoCE", "Oracle"),
}
"""By the value of node.kubernetes.io/instance-type; each vendor's documentation of its GPU machines."""

UNKNOWN: Final = Machine(
    8, 400 * GBIT, "InfiniBand", "assumed: 8 x 400 Gb/s, as machines with 8 accelerators have since 2023"
)
UNKNOWN_TCP: Final = Machine(1, 10 * GBIT, "TCP", "assumed: one 10 Gb/s Ethernet interface")


def accelerator_of(labels: Mapping[str, str]) -> Accelerator | None:
    """The accelerator that a node's labels name; None where they name none that is known."""
    return accelerator_called(labels.get(LABEL_GPU_PRODUCT, ""))


def accelerator_called(product: str) -> Accelerator | None:
    """The accelerator of a product's name, as GPU feature discovery or its driver says it; None where it is not known."""
    name = product.upper().replace(" ", "-")
    return next((known for known in ACCELERATORS if known.name in name), None)
