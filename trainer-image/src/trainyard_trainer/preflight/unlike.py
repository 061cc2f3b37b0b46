"""Which pods of a gang cannot train together, by a fault of their own or since they differ, from what each found. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.contract import alike
from trainyard.contract.alike import Unlike
from trainyard.contract.network import PodNetwork


def compare(found: Mapping[str, PodNetwork]) -> Unlike:
    """found: by node, in rank order. A node with a fault is to blame for that, and compared with nobody."""
    faults = {node: f"{node}: {'; '.join(network.faults)}" for node, network in found.items() if network.faults}
    others = alike.compare({node: network.alike for node, network in found.items() if node not in faults})
    return Unlike((*faults.values(), *others.fatal), (*faults, *others.nodes), others.costly)
