"""Ask the machine: addresses of interfaces, the way to an address, limits. The one module here that does."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
import sys
import time
from collections import defaultdict
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from trainyard_trainer.launch.network.resolve import Surroundings

SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
NAME_BYTES: Final = 16  # IFNAMSIZ
LOOK_UP_SECONDS: Final = 3.0
"""How long a name that is not known yet is asked for again: a headless Service answers when rank 0 has its address."""
AGAIN_SECONDS: Final = 0.2


def surroundings(root: Path = Path("/")) -> Surroundings:
    """This machine, as the pod sees it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Surroundings(
        root=root,
        addresses=addresses(),
        address_of=address_of,
        source_of=source_of,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        shm_bytes=_size(root / "dev/shm"),
        packages=tuple(Path(folder) for folder in sys.path if folder.endswith("-packages")),
    )


def addresses() -> dict[str, tuple[str, ...]]:
    """The addresses of each interface: the first of IPv4, and all of IPv6."""
    found: dict[str, list[str]] = defaultdict(list)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[: NAME_BYTES - 1])
            try:
                answer = fcntl.ioctl(asker.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # it has none
            found[name].append(socket.inet_ntoa(answer[20:24]))
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        digits, _, _, _, _, name = line.split()
        found[name].append(str(IPv6Address(int(digits, 16))))
    return {name: tuple(own) for name, own in found.items()}


def address_of(name: str) -> str | None:
    """The address of a host name, asked for until it is known or LOOK_UP_SECONDS have passed."""
    until = time.monotonic() + LOOK_UP_SECONDS
    while True:
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            if time.monotonic() >= until:
                return None
            time.sleep(AGAIN_SECONDS)


def source_of(address: str) -> str | None:
    """The address from which packets to another one leave; connecting a datagram socket sends none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asker:
            asker.connect((address, 9))
            return str(asker.getsockname()[0])
    except OSError:
        return None


def _size(path: Path) -> int | None:
    try:
        about = os.statvfs(path)
    except OSError:
        return None
    return about.f_frsize * about.f_blocks if os.path.ismount(path) else None
