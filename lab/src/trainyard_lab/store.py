"""The images in the nodes' containerds, imported once for all of them.

An import unpacks every layer, which takes each node seconds of a processor that all of them share. So one containerd
imports into a folder in the cache, and a new node's store begins as hard links to it: images and unpacked layers are
never written to, only the two databases are, and those are copied. The nodes' layers are then also the same files to
the kernel, and in its page cache once. A node that has a store already imports what is missing by itself.
"""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from trainyard_lab import mounts, processes
from trainyard_lab.build import lock
from trainyard_lab.images import Archive
from trainyard_lab.node import Folders, answers, containerd_settings, ctr
from trainyard_lab.progress import step

ARCHIVE_LABEL = "trainyard.dev/archive"
"""On an image in a containerd: the archive it came from. A tag alone would not tell a rebuilt image from the one before."""

SEEN_LABEL = "io.cri-containerd.image=managed"
"""Set by containerd's CRI plugin once it knows the image."""


def prepared(cache: Path, archives: Sequence[Archive]) -> Path:
    """A containerd root folder that holds these images; made if the cache lacks it, older ones go."""
    version = sha256("\n".join(archive.path.stem for archive in archives).encode()).hexdigest()[:16]
    folder = cache / "stores" / version
    if not folder.is_dir():
        with lock("stores", "another run imports the images"):
            if not folder.is_dir():
                with step("import the images, once for all nodes"):
                    _import_into(folder, archives)
                for other in folder.parent.iterdir():
                    if other != folder:
                        shutil.rmtree(other)
    return folder


def _import_into(folder: Path, archives: Iterable[Archive]) -> None:
    place = Folders(folder.with_name(folder.name + ".unfinished"))
    _remove(place)
    place.settings.mkdir(parents=True)
    settings = place.settings / "containerd.toml"
    settings.write_text(containerd_settings(place))
    containerd = processes.start(place.top, "containerd", ["containerd", "--config", settings])
    try:
        processes.wait_until(lambda: answers(place), "containerd", deadline_seconds=60, needs=[containerd])
        import_missing(place, archives)
        processes.wait_until(
            lambda: all(SEEN_LABEL in line for line in ctr(place, "images", "list").splitlines()[1:]),
            "the images' registration",
            deadline_seconds=60,
            needs=[containerd],
        )
    finally:
        processes.stop(containerd)
    place.containerd_root.rename(folder)
    _remove(place)


def _remove(place: Folders) -> None:
    for left in processes.find(place.top).values():
        processes.stop(left)
    mounts.unmount_below(place.top)
    shutil.rmtree(place.top, ignore_errors=True)


def begin(store: Path, place: Folders) -> None:
    """Give a node that has no store yet one that begins with the prepared images."""
    if place.containerd_root.exists():
        return
    unfinished = place.containerd_root.with_name("root.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(store, unfinished, symlinks=True, copy_function=_link_or_copy)
    unfinished.rename(place.containerd_root)


def _link_or_copy(source: str, target: str) -> None:
    if not source.endswith(".db"):
        try:
            os.link(source, target, follow_symlinks=False)
            return
        except OSError:
            pass  # another file system, or one without hard links
    shutil.copy2(source, target, follow_symlinks=False)


def import_missing(place: Folders, archives: Iterable[Archive]) -> tuple[Archive, ...]:
    """Import into a running containerd what it does not have in this very version; returns what was imported."""
    there = imported(place)
    missing = tuple(archive for archive in archives if there.get(archive.image) != archive.path.stem)
    for archive in missing:
        ctr(place, "images", "import", str(archive.path))
        ctr(place, "images", "label", archive.image, f"{ARCHIVE_LABEL}={archive.path.stem}")
    return missing


def imported(place: Folders) -> dict[str, str]:
    """Image -> the archive it came from, as the node's containerd has them."""
    found = {}
    for line in ctr(place, "images", "list").splitlines()[1:]:
        if archive := re.search(rf"{re.escape(ARCHIVE_LABEL)}=([^,\s]+)", line):
            found[line.split()[0]] = archive[1]
    return found
