"""A folder of images in the OCI layout: which there are, what they are made of, and a tar of what somebody lacks of one.

Blobs are named by their hash, so images share their layers in the folder, and a node that has an image's large layers
already is given the small ones alone.
"""

import json
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

REFERENCE = "org.opencontainers.image.ref.name"
CONTAINERD_NAME = "io.containerd.image.name"
VERSION = {"imageLayoutVersion": "1.0.0"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a layout.

    name: as nodes shall call it (docker.io/...). manifest: its digest, which is the image's version.
    layers: digest -> bytes, the lowest first.
    """

    name: str
    folder: Path
    manifest: str
    config: str
    layers: dict[str, int]

    @property
    def blobs(self) -> tuple[str, ...]:
        return (self.manifest, self.config, *self.layers)


def find(folder: Path, reference: str, name: str) -> Image | None:
    """The image that was put there under this reference."""
    for entry in _entries(folder):
        if entry.get("annotations", {}).get(REFERENCE) == reference:
            manifest = json.loads(_blob(folder, entry["digest"]).read_text())
            return Image(
                name=name,
                folder=folder,
                manifest=entry["digest"],
                config=manifest["config"]["digest"],
                layers={layer["digest"]: layer["size"] for layer in manifest["layers"]},
            )
    return None


def keep_newest(folder: Path, versions: int) -> None:
    """Forget all but so many versions of each image, and remove what only the older ones were made of.

    An image's versions are the references that differ in their tag alone, in the order in which they were put there.
    """
    entries = _entries(folder)
    names = [_name(entry) for entry in entries]
    kept = [entry for place, entry in enumerate(entries) if names[place + 1 :].count(names[place]) < versions]
    needed: set[str] = set()
    for entry in kept:
        image = find(folder, entry["annotations"][REFERENCE], "")
        assert image is not None
        needed.update(image.blobs)
    index = json.loads((folder / "index.json").read_text()) | {"manifests": kept}
    (folder / "index.json").write_text(json.dumps(index))
    for blob in (folder / "blobs" / "sha256").iterdir():
        if f"sha256:{blob.name}" not in needed:
            blob.unlink()


def _name(entry: dict[str, Any]) -> str:
    return str(entry["annotations"][REFERENCE]).rpartition(":")[0]


def write_tar(path: Path, image: Image, there: Collection[str]) -> None:
    """The image as an archive for `ctr images import`, without the blobs that are `there` already."""
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": image.manifest,
        "size": _blob(image.folder, image.manifest).stat().st_size,
        "annotations": {CONTAINERD_NAME: image.name},
    }
    with tarfile.open(path, "w") as tar:
        for name, content in (("oci-layout", VERSION), ("index.json", {"schemaVersion": 2, "manifests": [entry]})):
            written = json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(written)
            tar.addfile(member, BytesIO(written))
        for digest in image.blobs:
            if digest in there:
                continue
            tar.add(_blob(image.folder, digest), f"blobs/sha256/{digest.removeprefix('sha256:')}")


def _entries(folder: Path) -> list[dict[str, Any]]:
    index = folder / "index.json"
    entries: list[dict[str, Any]] = json.loads(index.read_text())["manifests"] if index.exists() else []
    return entries


def _blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")
