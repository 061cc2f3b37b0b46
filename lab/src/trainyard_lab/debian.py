"""A minimal Debian with Python, made by debootstrap: the base of the lab's images where no registry is asked for one."""

import re
import shutil
from hashlib import sha256
from pathlib import Path

from trainyard_lab import shell
from trainyard_lab.build import lock
from trainyard_lab.progress import step

SUITE = "bookworm"
PACKAGES = ("python3", "ca-certificates")
LEFT_OUT = (
    "proc/*",
    "sys/*",
    "var/cache/*",
    "var/lib/apt/lists/*",
    "var/log/*",
    "usr/share/man/*",
    "usr/share/locale/*",
)
"""What of the root file system no program reads; a third of its files."""

APT_SOURCES = Path("/etc/apt")


def version() -> str:
    """What decides what is made, as 16 hex digits."""
    return sha256("\n".join((SUITE, *PACKAGES, "", *LEFT_OUT)).encode()).hexdigest()[:16]


def mirror(apt: Path = APT_SOURCES) -> str:
    """Where this machine's apt finds its Debian release."""
    sources = [
        *sorted(apt.glob("sources.list.d/*.sources")),
        apt / "sources.list",
        *sorted(apt.glob("sources.list.d/*.list")),
    ]
    for source in sources:
        if not source.exists():
            continue
        text = source.read_text()
        for line in text.splitlines():
            if (deb := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", line)) and deb[2] == SUITE:
                return deb[1]
        for stanza in re.split(r"\n\s*\n", text):
            fields: dict[str, str] = dict(re.findall(r"^(\w[\w-]*):\s*(.+)$", stanza, re.MULTILINE))
            if SUITE in fields.get("Suites", "").split():
                return fields["URIs"].split()[0]
    return "http://deb.debian.org/debian"


def root_tar(folder: Path) -> Path:
    """The tar of the root file system, in this folder; made if it is not there."""
    path = folder / f"{SUITE}-{version()}.tar"
    if path.exists():
        return path
    with lock("debian", "another run makes the root file system"):
        if path.exists():
            return path
        root = folder / "debian.unfinished"
        shutil.rmtree(root, ignore_errors=True)
        with step(f"make a Debian {SUITE} root file system with debootstrap"):
            wanted = ",".join(PACKAGES)
            shell.run("debootstrap", "--variant=minbase", f"--include={wanted}", SUITE, str(root), mirror())
            unfinished = path.with_suffix(".unfinished")
            excluded = [f"--exclude=./{name}" for name in LEFT_OUT]
            shell.run("tar", "-C", str(root), "-cf", str(unfinished), *excluded, ".")
        unfinished.rename(path)
        shutil.rmtree(root)
    return path
