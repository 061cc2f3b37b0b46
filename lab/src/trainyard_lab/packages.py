"""The programs that real nodes and image builds need from the machine's own package manager."""

import os
import shutil
from pathlib import Path

from trainyard_lab import shell
from trainyard_lab.progress import step

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
}
"""What must be there (a program, or a file by its path) -> the Debian package that brings it."""

SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


class PackagesMissing(Exception):
    """This machine cannot be given what the lab needs."""


def missing() -> list[str]:
    """The Debian packages of which something is not there."""
    return [package for thing, package in PACKAGES.items() if not _is_there(thing)]


def ensure_packages() -> None:
    """Install what is missing with apt; does nothing and needs no network where nothing is."""
    if not (wanted := missing()):
        return
    if shutil.which("apt-get") is None:
        raise PackagesMissing(
            f"this machine lacks {', '.join(wanted)} and has no apt-get: install them, then try again"
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with step(f"install {', '.join(wanted)}"):
        shell.run("apt-get", "update", "-q", env=environment)
        shell.run("apt-get", "install", "-q", "-y", "--no-install-recommends", *wanted, env=environment)
    if still := missing():
        raise PackagesMissing(f"apt-get installed {', '.join(still)}, but what the lab needs of them is not there")


def _is_there(thing: str) -> bool:
    return Path(thing).exists() if thing.startswith("/") else shutil.which(thing, path=SEARCH_PATH) is not None
