"""The images in the nodes' containerds, imported once for all of them.

An import unpacks every layer, which takes each node seconds of a processor that all of them share. So one containerd
imports into a folder in the cache, and a new node's store begins as hard links to it: images and unpacked layers are
never written to, only the two databases are, and those are copied. The nodes' layers are then also the same files to
the kernel, and in its page cache once. A node that has a store already imports what is missing by itself.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from trainyard_lab import mounts, oci, processes
from trainyard_lab.build import lock
from trainyard_lab.node import Folders, answers, containerd_settings, ctr
from trainyard_lab.oci import Image
from trainyard_lab.progress import step

LARGE_BYTES = 5_000_000
"""A layer below is imported sooner than a store is made anew for it: those of the project's own sources."""

SEEN_LABEL = "io.cri-containerd.image=managed"
"""Set by containerd's CRI plugin once it knows the image."""


def prepared(cache: Path, images: Sequence[Image]) -> Path:
    """A containerd root folder that holds these images' large layers; made if the cache lacks it, older ones go.

    Its images may be older: what is missing a node imports itself, and that is little.
    """
    large = {digest for image in images for digest, size in image.layers.items() if size >= LARGE_BYTES}
    folder = cache / "stores" / sha256("\n".join(sorted(large)).encode()).hexdigest()[:16]
    if not folder.is_dir():
        with lock("stores", "another run imports the images"):
            if not folder.is_dir():
                with step("import the images, once for all nodes"):
                    _import_into(folder, images)
                for other in folder.parent.iterdir():
                    if other != folder:
                        shutil.rmtree(other)
    return folder


def _import_into(folder: Path, images: Iterable[Image]) -> None:
    place = Folders(folder.with_name(folder.name + ".unfinished"))
    _remove(place)
    place.settings.mkdir(parents=True)
    settings = place.settings / "containerd.toml"
    settings.write_text(containerd_settings(place))
    containerd = processes.start(place.top, "containerd", ["containerd", "--config", settings])
    try:
        processes.wait_until(lambda: answers(place), "containerd", deadline_seconds=60, needs=[containerd])
        import_missing(place, images)
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


def has_one(place: Folders) -> bool:
    """Whether a node has a store already."""
    return place.containerd_root.exists()


def begin(store: Path, place: Folders) -> None:
    """Give a node a store that begins with the prepared images."""
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


def import_missing(place: Folders, images: Iterable[Image]) -> tuple[Image, ...]:
    """Import into a running containerd what it does not have in this very version; returns what was imported."""
    there = imported(place)
    missing = tuple(image for image in images if there.get(image.name) != image.manifest)
    for image in missing:
        archive = place.top / "import.tar"
        oci.write_tar(archive, image, ctr(place, "content", "list", "--quiet").split())
        ctr(place, "images", "import", str(archive))
        archive.unlink()
    return missing


def imported(place: Folders) -> dict[str, str]:
    """Name of an image -> digest of its manifest, as the node's containerd has them."""
    lines = [line.split() for line in ctr(place, "images", "list").splitlines()[1:]]
    return {words[0]: words[2] for words in lines}


def names(place: Folders) -> tuple[str, ...]:
    """The images that a pod on this node can name, as one writes them."""
    # Each has a second entry under its digest alone.
    return tuple(sorted(name.removeprefix("docker.io/") for name in imported(place) if not name.startswith("sha256:")))
