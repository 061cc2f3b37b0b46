"""What an administrator adds to a new cluster: node labels, shared storage, and the Fabric that says what network it has."""

from pathlib import Path

from trainyard_lab import storage
from trainyard_lab.api import Api, Object
from trainyard_lab.fabric import Topology
from trainyard_lab.labels import LEAF, SPINE, labels
from trainyard_lab.layout import Lab
from trainyard_lab.torch_folder import torch_folder

NODES = "/api/v1/nodes"
FABRICS = "/apis/trainyard.dev/v1alpha1/fabrics"
FABRIC = "lab"
TORCH_MOUNT = "/opt/torch"
POD_INTERFACE = "eth0"


def furnish(lab: Lab, api: Api) -> None:
    """Labels on the nodes, and a storage class. The kubelets may not set these labels themselves (NodeRestriction)."""
    for node in lab.topology.nodes:
        api.merge(f"{NODES}/{node.name}", {"metadata": {"labels": labels(node)}})
    api.apply(f"{storage.CLASSES}/{storage.CLASS}", storage.storage_class())


def apply_fabric(lab: Lab, api: Api) -> None:
    """Tell Trainyard of the lab's network; its CRD must be there, so this comes after the chart."""
    api.apply(f"{FABRICS}/{FABRIC}", fabric_object(torch_folder(lab.cache), lab.topology))


def fabric_object(torch: Path, topology: Topology) -> Object:
    """The lab's Fabric: its levels with their rates, its interface, and torch, which no image of the lab holds.

    torch: a folder of this machine. Every pod sees it read-only, by the way of pod additions that any cluster's
    administrator has, so samples hold nothing of the lab.
    """
    return {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "Fabric",
        "metadata": {"name": FABRIC},
        "spec": {
            "kind": "tcp",
            "interface": POD_INTERFACE,
            "levels": [
                {"name": "spine", "nodeLabel": SPINE, "bandwidth": f"{topology.spine_bits_per_second}bps"},
                {"name": "leaf", "nodeLabel": LEAF, "bandwidth": f"{topology.leaf_bits_per_second}bps"},
            ],
            "node": {"nics": 1, "nicBandwidth": f"{topology.node_bits_per_second}bps"},
            "podAdditions": {
                "volumes": [{"name": "torch", "hostPath": {"path": str(torch), "type": "Directory"}}],
                "volumeMounts": [{"name": "torch", "mountPath": TORCH_MOUNT, "readOnly": True}],
                "env": [
                    {"name": "PYTHONPATH", "value": TORCH_MOUNT},
                    # All nodes are one machine: as many threads a pod as it has cores would only wait for each other.
                    {"name": "OMP_NUM_THREADS", "value": "1"},
                ],
            },
        },
    }
