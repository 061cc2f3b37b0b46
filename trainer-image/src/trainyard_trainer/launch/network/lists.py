"""Lists of devices and interfaces as NCCL reads them (2.30.7, parseStringList and matchIfList in src/misc/utils.cc).

    [^][=]name[:port][,...]

`^` takes all but what the list matches, `=` after it takes names whole; both stand once, before the whole list. Without `=` a
name means whatever begins with it. The operator has a fuller reader in its `network` room, which is not in a pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_ITEMS: Final = 32
_DIGITS: Final = re.compile(r"\s*([+-]?\d+)")


def takes(value: str, name: str, port: int = -1) -> bool:
    """Whether NCCL would use a device by this list. port: -1 for an interface, which any port matches."""
    negate = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    items = [item for item in rest.removeprefix("=").split(",") if item.partition(":")[0]][:MAX_ITEMS]
    matched = not items or any(_matches(item, name, port, exact) for item in items)
    return matched is not negate


def select(value: str, devices: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """What NCCL would use of (name, port), in their order."""
    return [(name, port) for name, port in devices if takes(value, name, port)]


def is_exact(value: str) -> bool:
    """Whether it names what to use, each by its whole name."""
    return value.startswith("=") and len(value) > 1


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key by which mlx5_2 comes before mlx5_10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part)


def exactly(names: Sequence[str]) -> str:
    """The value that means these and nothing else."""
    return "=" + ",".join(sorted(names, key=natural))


def _matches(item: str, name: str, port: int, exact: bool) -> bool:
    wanted, _, rest = item.partition(":")
    number = rest.partition(":")[0]
    named = name == wanted if exact else name.startswith(wanted)
    return named and (not number or port == -1 or port == _atoi(number))


def _atoi(text: str) -> int:
    found = _DIGITS.match(text)
    return int(found[1]) if found else 0
