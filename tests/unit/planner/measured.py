"""Published all-reduce measurements (nccl-tests or torch; bus bandwidth in GB/s = 1e9 byte/s), and what each system is.

Sources: AWS, awsome-distributed-training, micro-benchmarks/nccl-tests (p5, p4de); S. Bekman, Machine Learning Engineering,
network benchmarks (p6-b200, torch, NCCL 2.27.7); Azure, AKS RDMA infiniband tests, expected output (ND96asr_v4); CoreWeave,
nccl-tests README (H100).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.api.names import LABEL_GPU_PRODUCT, LABEL_INSTANCE_TYPE

MIB = 2**20


@dataclass(frozen=True, slots=True)
class System:
    """instance, product: what its nodes' labels say. nodes: how many, with 8 accelerators each. ring: whether the measurement is
    of a plain ring over the interfaces; a bus bandwidth above the line rate with two nodes, or above a ring's within one, is not.
    first_mib: size of the first message; each further one is `growth` times as large. busbw: GB/s by size.
    """

    instance: str
    product: str
    nodes: int
    ring: bool
    first_mib: int
    growth: int
    busbw: tuple[float, ...]

    @property
    def labels(self) -> dict[str, str]:
        return {LABEL_INSTANCE_TYPE: self.instance, LABEL_GPU_PRODUCT: self.product}

    @property
    def rows(self) -> tuple[tuple[int, float], ...]:
        """Bytes and GB/s."""
        return tuple((self.first_mib * MIB * self.growth**n, busbw) for n, busbw in enumerate(self.busbw))


SYSTEMS = {
    "2 x p5.48xlarge": System(
        "p5.48xlarge",
        "NVIDIA-H100-80GB-HBM3",
        2,
        False,
        1,
        2,
        (16.0, 26.7, 46.6, 76.8, 105.5, 143.1, 209.2, 289.2, 342.8, 393.3, 436.9, 443.7, 465.9, 479.3, 487.1),
    ),
    "2 x p4de.24xlarge": System(
        "p4de.24xlarge",
        "NVIDIA-A100-SXM4-80GB",
        2,
        False,
        1,
        2,
        (6.4, 9.1, 14.7, 20.6, 26.4, 40.8, 47.6, 64.3, 69.9, 74.3, 76.8, 78.3),
    ),
    "4 x p6-b200.48xlarge": System(
        "p6-b200.48xlarge",
        "NVIDIA-B200",
        4,
        True,
        1,
        2,
        (5.4, 10.4, 18.9, 35.1, 64.4, 91.2, 156.7, 197.9, 229.1, 326.9, 362.0, 372.4, 377.3, 380.4, 381.8),
    ),
    "1 x p6-b200.48xlarge": System(
        "p6-b200.48xlarge",
        "NVIDIA-B200",
        1,
        False,
        1,
        2,
        (36.1, 63.1, 76.5, 126.5, 255.0, 326.0, 400.6, 568.4, 646.1, 689.0, 723.3, 735.0, 740.6, 839.1, 845.7),
    ),
    "2 x Standard_ND96asr_v4": System(
        "Standard_ND96asr_v4",
        "NVIDIA-A100-SXM4-40GB",
        2,
        True,
        8,
        4,
        (79.0, 101.7, 144.8, 174.8, 184.3, 187.2),
    ),
    "8 x gd-8xh100ib-i128": System(
        "gd-8xh100ib-i128",
        "NVIDIA-H100-80GB-HBM3",
        8,
        True,
        512,
        2,
        (356.0, 365.9, 380.7, 383.2, 386.6),
    ),
}
