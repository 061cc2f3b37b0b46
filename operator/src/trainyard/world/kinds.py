"""Which nodes are alike to a gang: those with as many accelerators of the same product."""

from __future__ import annotations

from typing import Final

from trainyard.api.names import LABEL_GPU_PRODUCT
from trainyard.api.template import is_accelerator
from trainyard.world.records import Node, Resources

PRODUCTS: Final = (
    LABEL_GPU_PRODUCT,
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-tpu-accelerator",
)
"""Labels that name the product: of GPU feature discovery, of AMD's and Intel's labellers, of GKE."""


def takes_accelerators(requests: Resources) -> bool:
    """Whether a member takes any; to one that does not, all nodes are of one kind."""
    return any(amount > 0 and is_accelerator(name) for name, amount in requests.items())


def kind(node: Node) -> str:
    """The node's kind as people say it, such as `8 nvidia.com/gpu, NVIDIA-H100-80GB-HBM3`; "" for one without accelerators."""
    has = [f"{amount} {name}" for name, amount in node.allocatable.items() if amount > 0 and is_accelerator(name)]
    has.sort()
    return ", ".join((*has, *(node.labels[label] for label in PRODUCTS if node.labels.get(label)))) if has else ""
