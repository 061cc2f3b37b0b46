"""How long a save will take, before this attempt has made one: an estimate, and what it rests on.

Whoever plans a preemption asks how long until all is durable. After the first save the launcher knows; until then this is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torch import Tensor

ASSUMED_BYTES_PER_SECOND: Final = 200e6
"""Where nothing was loaded: what a network disk or one NFS server takes from all ranks together. A guess, and said to be one."""


def state_bytes(state: Iterable[Tensor]) -> int:
    """Of a whole state, each number once, however it is spread over the ranks."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state)


def expected_seconds(size_bytes: int, read_bytes: int, read_seconds: float) -> tuple[float, str]:
    """Seconds of a save of that many bytes, and what that rests on. read: what was loaded from the same folder, and how long."""
    if read_bytes > 0 and read_seconds > 0:
        rate = read_bytes / read_seconds
        return size_bytes / rate, f"estimate: as fast as it was loaded, {rate / 1e6:.3g} MB/s"
    return size_bytes / ASSUMED_BYTES_PER_SECOND, f"estimate: at {ASSUMED_BYTES_PER_SECOND / 1e6:.0f} MB/s, assumed"
