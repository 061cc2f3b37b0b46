"""Arithmetic of links that the operator and the launcher both need. Rates are per direction, in bytes a second."""

from __future__ import annotations

from typing import Final

# The share of a lane's transfers that its line code leaves: 8b/10b, 128b/130b, and from 64 GT/s on flits of 242 in 256 bytes.
_PCIE_SHARES: Final = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}
PCIE_GIGATRANSFERS: Final = frozenset(_PCIE_SHARES)
"""Speeds of a lane that PCIe has, generation 1 to 6."""
PCIE_USABLE: Final = 0.9
"""Of a PCIe link's rate, what its packets leave to a large transfer, at most."""
ROCE_OVERHEAD_BYTES: Final = 96
"""Headers of RoCE v2 in a frame, the longest (linux, rdma/ib_addr.h, iboe_get_mtu)."""


def pcie_bytes_per_second(gigatransfers: float, lanes: int = 16) -> float:
    """The rate of a PCIe link: 31.5e9 of 16 GT/s (generation 4) with 16 lanes. KeyError for a speed that PCIe does not have."""
    return gigatransfers * 1e9 * lanes * _PCIE_SHARES[gigatransfers] / 8


def pcie_carries(gigatransfers: float, lanes: int, nic_bytes_per_second: float) -> bool:
    """Whether an adapter of this rate can run at it behind such a link: 400 Gb/s needs 32 GT/s with 16 lanes."""
    return nic_bytes_per_second <= PCIE_USABLE * pcie_bytes_per_second(gigatransfers, lanes)


def active_mtu(interface_mtu: int) -> int:
    """Bytes that RoCE sends at once over an interface: the largest of the sizes that exist whose frame fits."""
    return max((size for size in (512, 1024, 2048, 4096) if size + ROCE_OVERHEAD_BYTES <= interface_mtu), default=256)
