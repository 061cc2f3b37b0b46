"""What a node of a real GPU cluster says of itself, and the lab's nodes therefore say too.

Labels: the place in the network as Topograph 1.x writes it (tier 0 is the closest to the node), the accelerators as
NVIDIA's GPU feature discovery does, RDMA as Node Feature Discovery does. Extended resources: one whole 8-GPU node each,
with one RDMA device a GPU, as the device plugins advertise them.
"""

from trainyard_lab.fabric import Node

SPINE = "fabric.topograph.run/tier-1"
LEAF = "fabric.topograph.run/tier-0"
GPU_RESOURCE = "nvidia.com/gpu"
RDMA_RESOURCE = "rdma/ib"
GPUS_PER_NODE = 8


def labels(node: Node) -> dict[str, str]:
    """The node's labels beside those that its kubelet sets."""
    return {
        SPINE: node.spine,
        LEAF: node.leaf,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        "nvidia.com/gpu.memory": "81559",
        "feature.node.kubernetes.io/rdma.capable": "true",
        "feature.node.kubernetes.io/rdma.available": "true",
        "feature.node.kubernetes.io/pci-15b3.present": "true",
    }


def extended_resources() -> dict[str, str]:
    """What a node's device plugins advertise."""
    return {GPU_RESOURCE: str(GPUS_PER_NODE), RDMA_RESOURCE: str(GPUS_PER_NODE)}
