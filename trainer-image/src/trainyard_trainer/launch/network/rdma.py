"""RDMA adapters of a pod with accelerators: which to use, by which addresses, and what the user's own choice would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trainyard.contract import matcher
from trainyard.contract.hardware import active_mtu, pcie_bytes_per_second, pcie_carries
from trainyard.contract.network import Alike, Fact, Resolved

from trainyard_trainer.launch.network import gids, limits, tree
from trainyard_trainer.launch.network.choose import Judged, judge
from trainyard_trainer.launch.network.tree import ETHERNET, INFINIBAND, Accelerator, Interface, Port

HCA: Final = "NCCL_IB_HCA"
GID_INDEX: Final = "NCCL_IB_GID_INDEX"
FAMILY: Final = "NCCL_IB_ADDR_FAMILY"
FINDS_GIDS: Final = (2, 21)
"""NCCL from this version on finds the row itself."""
LIBFABRIC: Final = ("libfabric", "aws libfabric")
"""Names of NCCL's network on EFA."""
READS_GAPS: Final = (2, 26, 2)
"""NCCL from this version on looks beyond an empty row."""


@dataclass(slots=True)
class Looked:
    """What was found. used: ports that collectives will use. mtu: active, bytes, where it follows from the interface."""

    used: tuple[Port, ...] = ()
    mtu: int | None = None
    family: str | None = None
    indexes: tuple[int, ...] = ()
    facts: list[Fact] = field(default_factory=list)
    settings: list[Resolved] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def alike(self, nccl: tuple[int, ...] | None, gpudirect: bool | None, interface_mtu: int | None) -> Alike:
        """What the other pods must have alike."""
        rates = {port.rate_gbps for port in self.used}
        layers = {port.link_layer for port in self.used}
        return Alike(
            link_layer=layers.pop() if len(layers) == 1 else None,
            adapters=len(self.used),
            rate_gbps=min(rates) if rates else None,
            mtu=self.mtu,
            family=self.family,
            gid_indexes=self.indexes,
            nccl=nccl,
            gpudirect=gpudirect,
            interface_mtu=interface_mtu,
        )


def look(
    root: Path,
    accelerators: Sequence[Accelerator],
    netdevs: Sequence[str],
    environment: Mapping[str, str],
    nccl: tuple[int, ...] | None,
) -> Looked:
    """All about the adapters. netdevs: names of the pod's interfaces."""
    looked = Looked()
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0") or environment.get("NCCL_NET", "").lower() == "socket":
        looked.facts.append(Fact("adapters", "not looked at", "environment", "RDMA is switched off"))
        return looked
    within = gids.address_range(environment.get("NCCL_IB_ADDR_RANGE", ""))
    found = judge(tree.adapters(root), accelerators, netdevs, within)
    looked.facts.extend(_fact(judged) for judged in found)
    wish = environment.get(HCA, "")
    if wish:
        looked.used = _by_wish(looked, found, wish)
    else:
        looked.used = tuple(j.port for j in found if j.port is not None and j.why_not is None)
    _absent(looked, root, found, environment)
    if not looked.used:
        return looked
    if not wish and all(port.link_layer in (INFINIBAND, ETHERNET) for port in looked.used):
        why = f"{len(looked.used)} of {len(found)} adapters carry the compute network"
        looked.settings.append(Resolved(HCA, matcher.exactly([port.device for port in looked.used]), why))
    looked.warnings.extend(_narrow(found, looked.used))
    mtus = _mtus(root, found, looked.used)
    looked.mtu = min(mtus.values(), default=None)
    if len(set(mtus.values())) > 1:
        said = ", ".join(f"{name} {mtu}" for name, mtu in mtus.items())
        looked.warnings.append(f"MTU: the adapters differ ({said}); large messages between them are lost")
    elif looked.mtu is not None and looked.mtu < 4096:
        looked.warnings.append(
            f"MTU: adapters send {looked.mtu} bytes at once, since their interfaces have an MTU of less than 4192; 4096 is faster"
        )
    _addresses(looked, netdevs, within, environment, nccl)
    return looked


def _fact(judged: Judged) -> Fact:
    port, name = judged.port, judged.adapter.name
    value = f"{port.link_layer} {port.rate_gbps:g} Gb/s, NUMA node {judged.adapter.numa}" if port else "no link"
    used = "used" if judged.why_not is None else f"not used: {judged.why_not}"
    return Fact(f"adapter {name}", value, f"/sys/class/infiniband/{name}", used)


def _by_wish(looked: Looked, found: Sequence[Judged], wish: str) -> tuple[Port, ...]:
    """What the user's or operator's list takes: NCCL goes by ports with a link."""
    read = matcher.parse(wish)
    meant = [j for j in found if j.port is not None and read.takes(matcher.Port(j.adapter.name, j.port.number))]
    names = ", ".join(j.adapter.name for j in meant)
    if not meant:
        there = ", ".join(j.adapter.name for j in found) or "none"
        looked.faults.append(f"{HCA}: {wish!r} means none of the adapters with a link; there are {there}")
        return ()
    if not read.allows:
        looked.warnings.append(f"{HCA}: {wish!r} takes {len(meant)} adapters here: {names}; with = names are whole")
    layers = sorted({j.port.link_layer for j in meant if j.port is not None})
    if len(layers) > 1:
        looked.warnings.append(f"{HCA}: {wish!r} mixes {' and '.join(layers)}, which do not reach each other: {names}")
    unfit = [f"{j.adapter.name} ({j.why_not})" for j in meant if j.why_not is not None]
    if unfit:
        looked.warnings.append(f"{HCA}: {wish!r} also takes {', '.join(unfit)}")
    down = [
        j.adapter.name for j in found if j.port is None and read.allows and read.takes(matcher.Port(j.adapter.name))
    ]
    if down:
        looked.faults.append(f"{HCA}: {', '.join(down)} of {wish!r} has no link")
    return tuple(j.port for j in meant if j.port is not None)


def _absent(looked: Looked, root: Path, found: Sequence[Judged], environment: Mapping[str, str]) -> None:
    """Adapters that were promised, and cannot be used."""
    net = environment.get("NCCL_NET", "").lower()
    wanted = net == "ib"
    if net in LIBFABRIC and not limits.has_plugin(root, environment.get("LD_LIBRARY_PATH", "")):
        looked.warnings.append(
            f"NCCL_NET: {environment['NCCL_NET']} is a plugin's, and no libnccl-net is in the image: NCCL will fail at once; "
            "install aws-ofi-nccl"
        )
    if not looked.used and (found or wanted) and not looked.faults:
        reasons = "; ".join(f"{j.adapter.name}: {j.why_not}" for j in found[:8] if j.why_not is not None)
        message = f"no RDMA adapter can be used ({reasons or 'there is none in /sys/class/infiniband'})"
        (looked.faults if wanted else looked.warnings).append(message)
    if looked.used and not limits.has_verbs(root):
        looked.warnings.append(
            "libibverbs is not in the image, so NCCL finds no adapter; install libibverbs1, ibverbs-providers and librdmacm1"
        )


def _narrow(found: Sequence[Judged], used: Iterable[Port]) -> Iterator[str]:
    """Adapters that the machine cannot feed: a slot of an older generation, or a link that came up with fewer lanes."""
    rates = {port.device: port.rate_gbps for port in used}
    for judged in found:
        link, rate = judged.adapter.narrowest, rates.get(judged.adapter.name)
        if link is None or rate is None or pcie_carries(link.gigatransfers, link.lanes, rate * 1e9 / 8):
            continue
        carries = pcie_bytes_per_second(link.gigatransfers, link.lanes) * 8 / 1e9
        yield (
            f"PCIe: {judged.adapter.name} has {rate:g} Gb/s, and its link at {link.at} ({link.gigatransfers:g} GT/s, "
            f"{link.lanes} lanes) no more than {carries:.0f}: the gang is as slow as that"
        )


def _mtus(root: Path, found: Sequence[Judged], used: Iterable[Port]) -> dict[str, int]:
    """The active MTU of each RoCE adapter, which follows from that of its interface; InfiniBand's is not in /sys."""
    devices = {port.device for port in used if port.link_layer == ETHERNET}
    by_name: dict[str, Interface] = {interface.name: interface for interface in tree.interfaces(root)}
    mtus = {}
    for judged in found:
        if judged.adapter.name not in devices or judged.port is None:
            continue
        own = {*judged.adapter.netdevs, *(row.netdev for row in judged.port.rows)}
        known = [by_name[name].mtu for name in own if name in by_name]
        if known:
            mtus[judged.adapter.name] = active_mtu(min(known))
    return mtus


def _addresses(
    looked: Looked,
    netdevs: Sequence[str],
    within: gids.Range | None,
    environment: Mapping[str, str],
    nccl: tuple[int, ...] | None,
) -> None:
    """Family and rows of RoCE; InfiniBand has no use for either."""
    ports = [port for port in looked.used if port.link_layer == ETHERNET]
    chosen = environment.get(GID_INDEX, "")
    index = int(chosen) if chosen.isascii() and chosen.isdigit() else None
    if not ports:
        if index is not None:
            looked.warnings.append(f"{GID_INDEX}: InfiniBand has no such tables in use; leave it out")
        return
    tables = [gids.usable(port, netdevs, within) for port in ports]
    family = environment.get(FAMILY) or gids.common_family([rows for rows in tables if rows])
    if family is None:
        looked.warnings.append(
            "addresses: some adapters have only IPv4 and others only IPv6, and do not reach each other"
        )
        return
    looked.family = family
    if family == gids.AF_INET6 and FAMILY not in environment:
        looked.settings.append(Resolved(FAMILY, family, "the adapters have no IPv4 address; NCCL would look for one"))
    rows = [found for table in tables if (found := gids.index(table, family)) is not None]
    looked.indexes = tuple(rows)
    looked.facts.append(
        Fact("rows of addresses", ", ".join(map(str, rows)), "gids of the adapters used", f"{gids.V2}, {family}")
    )
    if index is not None:
        looked.warnings.extend(_row_doubts(ports, index))
    elif nccl is not None and rows:
        _row_for(looked, ports, rows, nccl)


def _row_doubts(ports: Sequence[Port], index: int) -> Iterator[str]:
    wrong = [f"{port.device} {doubt}" for port in ports if (doubt := gids.doubt(port, index)) is not None]
    if wrong:
        yield f"{GID_INDEX}: row {index} of {', '.join(wrong)}; leave it out: NCCL since 2.21 finds the row by {FAMILY}"


def _row_for(looked: Looked, ports: Sequence[Port], rows: Sequence[int], nccl: tuple[int, ...]) -> None:
    """An old NCCL has to be told the row, and takes only one for all adapters."""
    version = ".".join(map(str, nccl))
    if nccl >= FINDS_GIDS:
        hidden = [p.device for p, row in zip(ports, rows, strict=False) if gids.gap_before(p, row)]
        if nccl < READS_GAPS and hidden:
            looked.warnings.append(
                f"NCCL {version}: looks no further than the first empty row of a table, and that of {', '.join(hidden)} has one "
                "before the right address; 2.26.2 does"
            )
    elif len(set(rows)) == 1:
        why = f"NCCL {version} takes row 0 unless told; row {rows[0]} is {gids.V2} and {looked.family} on all adapters used"
        looked.settings.append(Resolved(GID_INDEX, str(rows[0]), why))
    else:
        looked.warnings.append(
            f"NCCL {version}: takes one row for all adapters, and the right one is another on each "
            f"({', '.join(map(str, rows))}); 2.21 finds them itself"
        )
