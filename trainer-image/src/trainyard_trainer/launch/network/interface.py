"""By which interface this pod meets the others, and whether the names that the user gave exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from trainyard.contract.matcher import Port, parse, select

from trainyard_trainer.launch.network.tree import Interface

ANYWHERE: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849): the way to them is the default route. Nothing is sent there."""

Addresses = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Way:
    """The interface that was found. source: how. reason: why this one."""

    name: str
    source: str
    reason: str


def routable(address: str) -> bool:
    """Whether it can be reached from another node."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


def candidates(interfaces: Sequence[Interface], addresses: Addresses) -> list[Interface]:
    """Interfaces by which another node could be reached."""
    return [i for i in interfaces if i.up and not i.loopback and any(map(routable, addresses.get(i.name, ())))]


def find(
    interfaces: Sequence[Interface],
    addresses: Addresses,
    rank0: str,
    address_of: Callable[[str], str | None],
    source_of: Callable[[str], str | None],
) -> Way | None:
    """The interface by the route to rank 0; None where there is none or it cannot be told.

    rank0: its host name. address_of: looks a name up; only asked where more than one interface could be meant. source_of: the
    address that packets to another address leave from.
    """
    able = candidates(interfaces, addresses)
    if len(able) == 1:
        return Way(able[0].name, "/sys/class/net", "the only interface with a routable address")
    if not able:
        return None
    owner = {address: i.name for i in able for address in addresses.get(i.name, ())}
    asked = address_of(rank0)
    if asked is not None and asked in owner:
        return Way(owner[asked], "addresses of this pod", f"it has rank 0's address, {asked}")
    if asked is not None:
        source = source_of(asked)
        if source in owner:
            return Way(owner[source], "route", f"packets to rank 0, {asked}, leave from {source}")
    for somewhere in ANYWHERE:
        source = source_of(somewhere)
        if source in owner:
            why = (
                f"rank 0's name {rank0} is not known yet" if asked is None else f"no way to rank 0, {asked}, was found"
            )
            return Way(owner[source], "default route", f"{why}; the default route leaves from {source}")
    return None


def listed(interfaces: Sequence[Interface], addresses: Addresses) -> str:
    """What there is, for a message."""
    able = {i.name for i in candidates(interfaces, addresses)}

    def one(i: Interface) -> str:
        own = addresses.get(i.name, ())
        notes = [*own[:2]] or ["no address"]
        if i.name not in able:
            notes.append("loopback" if i.loopback else "down" if not i.up else "no other node is reached by it")
        return f"{i.name} ({', '.join(notes)})"

    return ", ".join(one(i) for i in interfaces[:12]) or "none"


def nccl_matches(value: str, interfaces: Sequence[Interface], addresses: Addresses) -> list[str]:
    """The interfaces that a value of NCCL_SOCKET_IFNAME means, of those that have an address."""
    having = [Port(i.name) for i in interfaces if i.up and addresses.get(i.name)]
    return [port.name for port in select(value, having)]


def nccl_doubts(value: str, interfaces: Sequence[Interface], addresses: Addresses) -> Iterator[str]:
    """What is doubtful about a value that matches something."""
    able = {i.name for i in candidates(interfaces, addresses)}
    meant = nccl_matches(value, interfaces, addresses)
    lost = [name for name in meant if name not in able and name != "lo"]
    if lost and not parse(value).allows:
        yield f"NCCL_SOCKET_IFNAME: {value!r} also takes {', '.join(lost)}, by which no other node is reached"
    elif meant and not able.intersection(meant):
        yield f"NCCL_SOCKET_IFNAME: {value!r} takes {', '.join(meant)}, by which no other node is reached"


def gloo_unknown(value: str, interfaces: Sequence[Interface], addresses: Addresses) -> list[str]:
    """Names of GLOO_SOCKET_IFNAME that no interface with an address has: gloo takes each as it stands."""
    having = {i.name for i in interfaces if addresses.get(i.name)}
    return [name for name in value.split(",") if name not in having]


def gloo_form(value: str) -> str:
    """What kind of mistake a value is that names no interface."""
    if value[:1] in ("=", "^"):
        return "gloo knows neither = nor ^, "
    if value.replace(".", "").isdigit() or ":" in value:
        return "it looks like an address, "
    return ""
