"""Which row of a RoCE port's table of addresses its peers can reach. A row's number is the pod's own and may change at a restart.

The same search as NCCL's since 2.21 (src/transport/net_ib/gdr.cc, ncclIbGetGidIndex): RoCE v2 before v1, the family and the range
that are asked for. IPv4 addresses stand there as ::ffff:a.b.c.d.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from trainyard_trainer.launch.network.tree import Gid, Port

AF_INET: Final = "AF_INET"
AF_INET6: Final = "AF_INET6"
V2: Final = "RoCE v2"

Range = IPv4Network | IPv6Network


def address_range(value: str) -> Range | None:
    """NCCL_IB_ADDR_RANGE; None where it is not set or no range."""
    try:
        return ip_network(value, strict=False) if value else None
    except ValueError:
        return None


def family_of(row: Gid) -> str:
    """The family of a row's address."""
    return AF_INET if row.address.ipv4_mapped is not None else AF_INET6


def is_link_local(row: Gid) -> bool:
    """Whether the address means nothing beyond its own link."""
    mapped = row.address.ipv4_mapped
    return mapped.is_link_local if mapped is not None else row.address.is_link_local


def usable(port: Port, netdevs: Iterable[str], within: Range | None = None) -> tuple[Gid, ...]:
    """Rows of RoCE v2 that can be routed, whose interface is in the pod. netdevs: the pod's interfaces."""
    here = frozenset(netdevs)
    return tuple(
        row
        for row in port.rows
        if row.kind == V2 and not is_link_local(row) and row.netdev in here and (within is None or _inside(row, within))
    )


def why_none(port: Port, netdevs: Iterable[str]) -> str:
    """Why a port has no usable row: what is nearest to it."""
    here = frozenset(netdevs)
    v2 = [row for row in port.rows if row.kind == V2]
    if not port.rows:
        return "its table of addresses is empty: its interface has no IP address in this pod"
    if not v2:
        return "it has addresses of RoCE v1 only"
    if all(is_link_local(row) for row in v2):
        return "its addresses are link-local: its interface has no routable IP address"
    away = sorted({row.netdev for row in v2 if row.netdev not in here and not is_link_local(row)})
    return f"its addresses belong to {', '.join(away) or 'an interface'}, which is not in this pod"


def common_family(tables: Sequence[Sequence[Gid]]) -> str | None:
    """The family in which all ports have an address, IPv4 first; None where there is no such."""
    for family in (AF_INET, AF_INET6):
        if tables and all(any(family_of(row) == family for row in rows) for rows in tables):
            return family
    return None


def index(rows: Iterable[Gid], family: str) -> int | None:
    """The first row of a family."""
    return next((row.index for row in rows if family_of(row) == family), None)


def gap_before(port: Port, wanted: int) -> bool:
    """Whether an empty row comes before it: NCCL before 2.26.2 looks no further."""
    return any(row not in {gid.index for gid in port.rows} for row in range(wanted))


def doubt(port: Port, wanted: int) -> str | None:
    """What is wrong with a row that the user chose for this port; None where nothing is."""
    row = next((row for row in port.rows if row.index == wanted), None)
    if row is None:
        return "is empty"
    if row.kind != V2:
        return f"is of {row.kind or 'no known kind'}"
    return f"is link-local ({row.address})" if is_link_local(row) else None


def _inside(row: Gid, within: Range) -> bool:
    address = row.address.ipv4_mapped if isinstance(within, IPv4Network) else row.address
    return address is not None and address in within
