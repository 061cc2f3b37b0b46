"""Which nodes are alike to a gang: those with as many accelerators of the same product."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from trainyard.api.template import ACCELERATORS
from trainyard.world.records import Node, Resources

PRODUCTS: Final = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-tpu-accelerator",
)
"""Labels that name the product: of GPU feature discovery, of AMD's and Intel's labellers, of GKE."""

_ACCELERATOR: Final = re.compile("|".join(f"(?:{name})" for name in ACCELERATORS))


def takes_accelerators(requests: Resources) -> bool:
    """Whether a member takes any; to one that does not, all nodes are of one kind."""
    return any(amount > 0 and _is_accelerator(name) for name, amount in requests.items())


def kind(node: Node) -> str:
    """The node's kind as people say it, such as `8 nvidia.com/gpu, NVIDIA-H100-80GB-HBM3`; "" for one without accelerators."""
    has = [f"{amount} {name}" for name, amount in node.allocatable.items() if amount > 0 and _is_accelerator(name)]
    has.sort()
    return ", ".join((*has, *(node.labels[label] for label in PRODUCTS if node.labels.get(label)))) if has else ""


@lru_cache(maxsize=1024)
def _is_accelerator(resource: str) -> bool:
    return _ACCELERATOR.fullmatch(resource) is not None
