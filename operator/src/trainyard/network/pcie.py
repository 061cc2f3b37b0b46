"""How fast a PCIe link is, and whether it carries the network interface behind it. Per direction, in bytes a second."""

from __future__ import annotations

from typing import Final

# GT/s of a lane, and the share that the line code leaves: 8b/10b, 128b/130b, and in generation 6 flits of 242 in 256 bytes.
_GENERATIONS: Final = {
    1: (2.5e9, 8 / 10),
    2: (5e9, 8 / 10),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 242 / 256),
}
USABLE: Final = 0.9
"""Of a link's rate, what its packets leave to a large transfer, at most."""


def bytes_per_second(generation: int, lanes: int = 16) -> float:
    """The rate of a link: generation 4 with 16 lanes 31.5e9. KeyError for a generation that is not 1 to 6."""
    transfers, share = _GENERATIONS[generation]
    return transfers * lanes * share / 8


def carries(generation: int, lanes: int, nic_bytes_per_second: float) -> bool:
    """Whether an interface of this rate can run at it behind such a link: 400 Gb/s needs generation 5 with 16 lanes."""
    return nic_bytes_per_second <= USABLE * bytes_per_second(generation, lanes)
