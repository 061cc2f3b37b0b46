"""What the kernel and the image give a pod that talks over RDMA: locked memory, shared memory, drivers, libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from trainyard_trainer.launch.network.tree import names, text

MIN_MEMLOCK_BYTES: Final = 16 * 2**30
"""As AWS's health check wants it: adapters lock the buffers that they send from."""
MIN_SHM_BYTES: Final = 2**30
"""NCCL and data loaders keep buffers there; a container has 64 MiB if nobody says otherwise."""
LIBRARY_FOLDERS: Final = ("usr/lib", "usr/lib64", "lib", "lib64", "usr/local/lib", "opt/amazon/efa/lib64")
PLUGIN_FOLDERS: Final = (
    *LIBRARY_FOLDERS,
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib64",
    "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-nccl/install/lib",
)
"""Where images keep NCCL's plugin for libfabric besides: the EFA installer's folder, and that of the examples that build it."""
OPEN_DRIVER: Final = "Open Kernel Module"


def gpudirect(root: Path) -> tuple[bool | None, str]:
    """Whether adapters can reach the accelerators' memory, and where that is seen. None: it cannot be told."""
    for module in ("nvidia_peermem", "nv_peer_mem"):
        if (root / "sys/module" / module).is_dir():
            return True, f"/sys/module/{module}"
    version = text(root / "proc/driver/nvidia/version")
    if not version:
        return None, "/sys/module"
    kernel = _version(text(root / "proc/sys/kernel/osrelease"))
    if OPEN_DRIVER in version and kernel >= (5, 12):
        return True, "DMA-BUF: the open driver, and a kernel from 5.12 on"
    return False, "neither nvidia_peermem nor DMA-BUF (it needs the open driver and a kernel from 5.12 on)"


def nccl_version(
    root: Path, packages: Iterable[Path], environment_version: str = ""
) -> tuple[tuple[int, ...] | None, str]:
    """The version of NCCL and where it is seen: the package that torch brings, a library in the image, the image's own word.

    packages: folders of Python packages.
    """
    for folder in packages:
        for name in names(folder):
            found = re.fullmatch(r"nvidia_nccl_cu\d+-([\d.]+)\.dist-info", name)
            if found:
                return _version(found[1]), f"{folder}/{name}"
    for name in _libraries(root, "libnccl.so."):
        found = re.fullmatch(r"libnccl\.so\.(\d+\.\d+\.\d+)", name)
        if found:
            return _version(found[1]), name
    said = re.match(r"(\d+\.\d+(\.\d+)?)", environment_version)
    return (_version(said[1]), "NCCL_VERSION of the image") if said else (None, "")


def torch_version(packages: Iterable[Path]) -> tuple[int, ...] | None:
    """The version of torch by its package; None where there is none. packages: folders of Python packages."""
    for folder in packages:
        for name in names(folder):
            found = re.fullmatch(r"torch-(\d+\.\d+(?:\.\d+)?)\S*\.dist-info", name)
            if found:
                return _version(found[1])
    return None


def has_verbs(root: Path) -> bool:
    """Whether the image has libibverbs, without which NCCL finds no adapter."""
    return any(True for _ in _libraries(root, "libibverbs.so"))


def has_plugin(root: Path, search: str) -> bool:
    """Whether the image has a network plugin of NCCL. search: LD_LIBRARY_PATH."""
    said = tuple(folder.strip("/") for folder in search.split(":") if folder.startswith("/"))
    return any(True for _ in _libraries(root, "libnccl-net", (*said, *PLUGIN_FOLDERS)))


def too_old(nccl: tuple[int, ...], *, has_gpudirect: bool | None) -> Iterator[str]:
    """What a version is known to get wrong."""
    if nccl <= (2, 22, 3) and has_gpudirect:
        yield (
            f"NCCL {_said(nccl)}: may overlook that GPUDirect is there and run at a tenth of the rate; 2.22.4 does not"
        )


def memlock_doubt(limit_bytes: int | None) -> str | None:
    """limit_bytes: None: no limit."""
    if limit_bytes is None or limit_bytes >= MIN_MEMLOCK_BYTES:
        return None
    return (
        f"locked memory is limited to {_size(limit_bytes)}, and adapters need {_size(MIN_MEMLOCK_BYTES)}: registering memory "
        "will fail with 'Cannot allocate memory'; give the container the capability IPC_LOCK"
    )


def shm_doubt(size_bytes: int | None) -> str | None:
    """size_bytes: of /dev/shm; None where there is none."""
    if size_bytes is not None and size_bytes >= MIN_SHM_BYTES:
        return None
    has = "there is no /dev/shm" if size_bytes is None else f"/dev/shm has {_size(size_bytes)}"
    return (
        f"{has}, and processes of a node share {_size(MIN_SHM_BYTES)} or more in it: expect bus errors; mount an emptyDir with "
        "medium Memory at /dev/shm"
    )


def topology_doubt(path: Path, value: str, accelerators: Iterable[str], *, whole: bool) -> str | None:
    """What is wrong with a file of NCCL_TOPO_FILE. path: where it is. accelerators: PCI addresses of the pod's. whole: it has
    all of the machine."""
    said = text(path)
    if not said:
        return f"NCCL_TOPO_FILE: {value} is not in this pod; NCCL then goes by what it sees"
    if not whole:
        return f"NCCL_TOPO_FILE: {value} describes a whole machine, and this pod has only some of its accelerators"
    described = {address.lower() for address in re.findall(r'busid="([0-9a-fA-F:.]+)"', said)}
    missing = sorted(address for address in accelerators if not _in(address.lower(), described))
    if missing:
        return f"NCCL_TOPO_FILE: {value} is of another machine: it does not hold {', '.join(missing[:4])}"
    return None


def _in(address: str, described: set[str]) -> bool:
    # /sys writes a domain of 4 digits, nvidia and some files one of 8.
    return any(address.lstrip("0") == other.lstrip("0") for other in described)


def _libraries(root: Path, prefix: str, folders: Iterable[str] = LIBRARY_FOLDERS) -> Iterator[str]:
    for folder in folders:
        base = root / folder
        for name in names(base):
            if name.startswith(prefix):
                yield name
            elif name.endswith("-linux-gnu"):
                yield from (inner for inner in names(base / name) if inner.startswith(prefix))


def _version(said: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", said)[:3])


def _said(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"
