"""Lists of devices and interfaces as NCCL reads them: NCCL_IB_HCA and NCCL_SOCKET_IFNAME.

    [^][=]name[:port[:rail[:plane]]][,...]

`^` takes all but what the list matches, `=` after it takes names whole; both stand once, before the whole list. Without `=` a
name means whatever begins with it, so mlx5_1 is mlx5_10 as well. Source: NCCL 2.30.7, parseStringList and matchIfList in
src/misc/utils.cc, src/transport/net_ib/init.cc, src/os/linux.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from trainyard.contract.natural import natural

MAX_ITEMS: Final = 32
"""NCCL drops what comes after so many items, and after so many devices (MAX_IB_DEVS)."""

ANY: Final = -1


class Port(NamedTuple):
    """A port of a device; an interface has port -1, which any port matches."""

    name: str
    port: int = ANY


@dataclass(frozen=True, slots=True)
class Item:
    """One name of a list. port, rail and plane are -1 where they are left out."""

    name: str
    port: int = ANY
    rail: int = ANY
    plane: int = ANY

    def __str__(self) -> str:
        numbers = [self.port, self.rail, self.plane]
        while numbers and numbers[-1] == ANY:
            numbers.pop()
        return ":".join([self.name, *("" if number == ANY else str(number) for number in numbers)])

    def matches(self, port: Port, exact: bool) -> bool:
        """Whether it means this port of this device."""
        named = port.name == self.name if exact else port.name.startswith(self.name)
        return named and (self.port == ANY or port.port in (ANY, self.port))


@dataclass(frozen=True, slots=True)
class Matcher:
    """A list that was read. negate: all but these. exact: names are whole, not beginnings of names."""

    negate: bool
    exact: bool
    items: tuple[Item, ...]

    def __str__(self) -> str:
        first = self.items[0].name if self.items else ""
        # An empty item is dropped, and keeps a name that begins with ^ or = from being taken for what stands before a list.
        apart = not self.exact and (first.startswith("=") or (first.startswith("^") and not self.negate))
        return "^" * self.negate + "=" * self.exact + "," * apart + ",".join(str(item) for item in self.items)

    def takes(self, port: Port) -> bool:
        """Whether NCCL would use it. An empty list takes all, and with ^ none."""
        matched = not self.items or any(item.matches(port, self.exact) for item in self.items)
        return matched is not self.negate

    @property
    def allows(self) -> bool:
        """Whether it names what to use, and each by its whole name."""
        return self.exact and not self.negate and bool(self.items)


def parse(value: str) -> Matcher:
    """Read a list. Total: whatever is written is a list to NCCL, empty items are left out."""
    rest = value
    negate = rest.startswith("^")
    rest = rest.removeprefix("^")
    exact = rest.startswith("=")
    rest = rest.removeprefix("=")
    items = (_item(part) for part in rest.split(","))
    return Matcher(negate, exact, tuple([item for item in items if item.name][:MAX_ITEMS]))


def _item(part: str) -> Item:
    name, *numbers = part.split(":")
    port, rail, plane = (_number(text) for text in (*numbers, "", "", "")[:3])
    return Item(name, port, rail, plane)


_DIGITS: Final = re.compile(r"\s*([+-]?\d+)")


def _number(text: str) -> int:
    """As atoi: the number that the text begins with, 0 where it begins with none; -1 for no text."""
    if not text:
        return ANY
    found = _DIGITS.match(text)
    return int(found[1]) if found else 0


def select(value: str, devices: Iterable[Port]) -> tuple[Port, ...]:
    """What NCCL would use of these, in their order."""
    matcher = parse(value)
    return tuple(device for device in devices if matcher.takes(device))


def interfaces(value: str, names: Iterable[str]) -> tuple[str, ...]:
    """The interfaces that a value of NCCL_SOCKET_IFNAME means; all where NCCL takes no notice of it (one character or none)."""
    return tuple(port.name for port in select(value if len(value) > 1 else "", (Port(name) for name in names)))


def exactly(names: Iterable[str]) -> str:
    """The value that means these and nothing else, in natural order: `=mlx5_0,mlx5_1`. ValueError where there are none."""
    found = sorted(set(names), key=natural)
    if not found:
        raise ValueError("no names: an empty list means all devices to NCCL")
    return str(Matcher(False, True, tuple(_item(name) for name in found)))
