"""The devices of a machine, read from a folder that looks like its root: sys, proc and dev.

What cannot be read is left out, never guessed: rows of a table of addresses answer EINVAL where they are empty, and a device may
go while it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from trainyard.contract.hardware import PCIE_GIGATRANSFERS, pcie_bytes_per_second
from trainyard.contract.natural import natural

INFINIBAND: Final = "InfiniBand"
ETHERNET: Final = "Ethernet"
NVIDIA: Final = "0x10de"
"""PCI vendor."""
AMD: Final = "0x1002"
ACCELERATOR_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of GPUs: VGA controller, 3D controller, and as AMD's for computing say, display controller and accelerator."""
MAX_ADAPTERS: Final = 64
MAX_ROWS: Final = 256
IFF_UP: Final = 0x1  # linux/if.h
_PCI_ADDRESS: Final = r"[0-9a-fA-F]{4,}:[0-9a-fA-F:.]+"


@dataclass(frozen=True, slots=True)
class Gid:
    """A row of a port's table of addresses. kind: `RoCE v2`, `IB/RoCE v1`. netdev: the interface that the address belongs to."""

    index: int
    address: IPv6Address
    kind: str
    netdev: str


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an adapter. rate_gbps: Gb/s, 0 where it does not say. rows: of its table, empty ones left out."""

    device: str
    number: int
    link_layer: str
    state: str
    physical: str
    rate_gbps: float
    rows: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        """Whether it has a link that carries data."""
        return "ACTIVE" in self.state and "LinkUp" in self.physical


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCIe link as it came up. at: PCI address of the device that tells of it."""

    at: str
    gigatransfers: float
    lanes: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """An RDMA adapter. chain: PCI addresses from the root port down to it. opens: its device file is in the pod; None: it has
    none. numa: -1 where the machine does not say. narrowest: of the links on the chain; None where none tells."""

    name: str
    chain: tuple[str, ...]
    numa: int
    opens: bool | None
    netdevs: tuple[str, ...]
    ports: tuple[Port, ...]
    narrowest: PcieLink | None = None


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU of the machine. given: the pod may open it."""

    pci: str
    chain: tuple[str, ...]
    numa: int
    given: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of the pod, without its addresses."""

    name: str
    up: bool
    loopback: bool
    mtu: int


def text(path: Path) -> str:
    """The content of a file in /sys; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, default: int) -> int:
    """The number in a file."""
    said = text(path)
    try:
        return int(said, 0)
    except ValueError:
        return default


def names(folder: Path) -> list[str]:
    """What a folder holds, in natural order; nothing where there is none."""
    try:
        return sorted((entry.name for entry in folder.iterdir()), key=natural)
    except OSError:
        return []


def interfaces(root: Path) -> list[Interface]:
    """All network interfaces of the pod."""
    folder = root / "sys/class/net"
    found = []
    for name in names(folder):
        if not (folder / name / "flags").exists():
            continue  # bonding_masters is a file
        flags = number(folder / name / "flags", 0)
        loopback = text(folder / name / "type") == "772"  # ARPHRD_LOOPBACK
        found.append(Interface(name, bool(flags & IFF_UP), loopback, number(folder / name / "mtu", 0)))
    return found


def adapters(root: Path) -> list[Adapter]:
    """All RDMA adapters that the pod sees, whether it can use them or not."""
    folder = root / "sys/class/infiniband"
    files = _device_files(root)
    return [_adapter(folder / name, files) for name in names(folder)[:MAX_ADAPTERS]]


def accelerators(root: Path) -> list[Accelerator]:
    """All GPUs of the machine: a pod sees the others in /sys though it may not open them."""
    folder = root / "sys/bus/pci/devices"
    of_amd = _given_of_amd(root)
    # Cards of the other vendor are for a screen.
    vendor, given = (AMD, of_amd) if of_amd else (NVIDIA, _given(root))
    found = []
    for pci in names(folder):
        device = folder / pci
        if text(device / "vendor") != vendor or not text(device / "class").startswith(ACCELERATOR_CLASSES):
            continue
        found.append(Accelerator(pci, _chain(device), number(device / "numa_node", -1), pci.lower() in given))
    return found


def _given(root: Path) -> frozenset[str]:
    """PCI addresses of the GPUs whose device files are in the pod."""
    folder = root / "proc/driver/nvidia/gpus"
    given = set()
    for pci in names(folder):
        minor = re.search(r"Device Minor:\s*(\d+)", text(folder / pci / "information"))
        if minor and (root / f"dev/nvidia{minor[1]}").exists():
            given.add(pci.lower())
    return frozenset(given)


def _given_of_amd(root: Path) -> frozenset[str]:
    """PCI addresses of AMD's GPUs for which the pod has what ROCm opens: /dev/kfd, and a render node of each.

    A part of a GPU that was partitioned has a render node of its own, whose device is none on the PCI bus: those are not told
    apart, and neither are the adapters near them.
    """
    if not (root / "dev/kfd").exists():
        return frozenset()
    given = set()
    for name in names(root / "dev/dri"):
        device = root / "sys/class/drm" / name / "device"
        if name.startswith("renderD") and text(device / "vendor") == AMD:
            given.add(device.resolve().name.lower())
    return frozenset(given)


def has_accelerators(root: Path) -> bool:
    """Whether the pod has a device whose collectives NCCL carries, or RCCL, which reads the same variables."""
    return any(re.fullmatch(r"nvidia\d+", name) for name in names(root / "dev")) or bool(_given_of_amd(root))


def _device_files(root: Path) -> dict[str, bool]:
    """By adapter, whether its file in /dev/infiniband is in the pod."""
    folder = root / "sys/class/infiniband_verbs"
    found = {}
    for name in names(folder):
        adapter = text(folder / name / "ibdev")
        if adapter:
            found[adapter] = (root / "dev/infiniband" / name).exists()
    return found


def _adapter(folder: Path, files: dict[str, bool]) -> Adapter:
    device = folder / "device"
    ports = tuple(_port(folder.name, folder / "ports" / name) for name in names(folder / "ports"))
    return Adapter(
        name=folder.name,
        chain=_chain(device),
        numa=number(device / "numa_node", -1),
        opens=files.get(folder.name),
        netdevs=tuple(names(device / "net")),
        ports=ports,
        narrowest=min(
            _links(device), key=lambda link: pcie_bytes_per_second(link.gigatransfers, link.lanes), default=None
        ),
    )


def _links(device: Path) -> Iterator[PcieLink]:
    """The links on the way to a device. A virtual machine may show none of them, or speeds that PCIe does not have."""
    try:
        folder = device.resolve(strict=True)
    except OSError:
        return
    while re.fullmatch(_PCI_ADDRESS, folder.name):
        speed = re.match(r"([\d.]+) GT/s", text(folder / "current_link_speed"))
        lanes = number(folder / "current_link_width", 0)
        if speed and lanes > 0 and float(speed[1]) in PCIE_GIGATRANSFERS:
            yield PcieLink(folder.name, float(speed[1]), lanes)
        folder = folder.parent


def _port(device: str, folder: Path) -> Port:
    rate = re.match(r"([\d.]+)", text(folder / "rate"))
    link_layer = text(folder / "link_layer")
    return Port(
        device=device,
        number=int(folder.name) if folder.name.isdigit() else 0,
        link_layer=link_layer,
        state=text(folder / "state"),
        physical=text(folder / "phys_state"),
        rate_gbps=float(rate[1]) if rate else 0.0,
        rows=_rows(folder) if link_layer == ETHERNET else (),
    )


def _rows(folder: Path) -> tuple[Gid, ...]:
    found = []
    for index in [int(name) for name in names(folder / "gids") if name.isdigit()][:MAX_ROWS]:
        try:
            address = IPv6Address(text(folder / "gids" / str(index)))
        except ValueError:
            continue
        if address == IPv6Address(0):
            continue
        kind = text(folder / "gid_attrs/types" / str(index))
        found.append(Gid(index, address, kind, text(folder / "gid_attrs/ndevs" / str(index))))
    return tuple(found)


def _chain(device: Path) -> tuple[str, ...]:
    """PCI addresses on the way to a device; a virtual function stands where its own address is."""
    try:
        resolved = device.resolve(strict=True)
    except OSError:
        return ()
    return tuple(part for part in resolved.parts if re.fullmatch(rf"(pci)?{_PCI_ADDRESS}", part))
