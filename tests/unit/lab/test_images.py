"""Which mirror, which wheels, which mounts, which links: the parts of images and their stores that are decided here."""

import json
import os
import re
import tarfile
import tomllib
from hashlib import sha256
from io import StringIO
from pathlib import Path

import pytest
from trainyard_lab import debian, images, mounts, oci, store
from trainyard_lab.node import Folders

DEB822 = """\
Types: deb
# a mirror nearby
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb http://security.example/debian-security bookworm-security main
deb [arch=amd64 signed-by=/k.gpg] http://lines.example/debian bookworm main contrib
"""


@pytest.mark.parametrize(
    ("name", "content", "mirror"),
    [
        ("sources.list.d/debian.sources", DEB822, "http://mirror.example/debian"),
        ("sources.list", ONE_LINE, "http://lines.example/debian"),
        ("sources.list.d/other.list", "deb http://other.example/apt stable main\n", "http://deb.debian.org/debian"),
    ],
)
def test_debian_comes_from_the_mirror_that_apt_uses(tmp_path: Path, name: str, content: str, mirror: str):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    assert debian.mirror(tmp_path) == mirror


def test_the_trainer_image_needs_all_of_its_extra_but_torch():
    project = tomllib.loads((images.REPOSITORY / "pyproject.toml").read_text())
    trainer = next(built for built in images.BUILT if built.image == images.TRAINER_IMAGE)
    names = {need.partition(">")[0] for need in images.requirements(trainer, project)}
    assert {"pydantic", "numpy"} <= names
    assert "torch" not in names


def test_the_trainer_image_has_what_nccl_and_torch_compile_load_and_the_labs_is_built_without():
    trainer = next(built for built in images.BUILT if built.image == images.TRAINER_IMAGE)
    stages = (images.REPOSITORY / trainer.dockerfile).read_text().split("\nFROM ")
    packages = re.search(r'^ARG PACKAGES="(.*)"$', stages[-1], re.MULTILINE)
    assert packages is not None
    assert set(packages[1].split()) == {"g++", "ibverbs-providers", "libibverbs1", "librdmacm1"}
    assert trainer.arguments == ("PACKAGES=",)


def test_the_operators_image_is_another_when_the_launcher_that_it_carries_is():
    operator = next(built for built in images.BUILT if built.image == images.OPERATOR_IMAGE)
    assert b"trainer-image/src/trainyard_trainer/launch/main.py" in set(images._contents(operator))


def test_mounts_below_a_folder_are_found_the_last_first_and_no_neighbours():
    table = "\n".join(
        f"{number} 1 0:1 / {point} rw - tmpfs tmpfs rw"
        for number, point in enumerate(["/run/lab", "/run/lab-2/a", r"/run/lab/a\040b", "/run", "/run/lab/a\\040b/c"])
    )
    assert mounts.below(Path("/run/lab"), table) == [Path("/run/lab/a b/c"), Path("/run/lab/a b"), Path("/run/lab")]


def test_a_nodes_store_shares_layers_and_has_databases_of_its_own(tmp_path: Path):
    prepared = tmp_path / "prepared"
    (prepared / "layers").mkdir(parents=True)
    (prepared / "layers" / "libc.so.6").write_text("code")
    os.symlink("libc.so.6", prepared / "layers" / "libc.so")
    (prepared / "meta.db").write_text("database")
    place = Folders(tmp_path / "node-0")
    store.begin(prepared, place)
    own = place.containerd_root
    assert (own / "layers" / "libc.so.6").samefile(prepared / "layers" / "libc.so.6")
    assert os.readlink(own / "layers" / "libc.so") == "libc.so.6"
    assert not (own / "meta.db").samefile(prepared / "meta.db")
    assert (own / "meta.db").read_text() == "database"


def a_layout(folder: Path, **contents: str) -> Path:
    """A layout with one image for each name: a config and two layers, the first of which all share."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: str) -> dict[str, object]:
        digest = sha256(content.encode()).hexdigest()
        (blobs / digest).write_text(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    entries = []
    for name, content in contents.items():
        manifest = {"config": put(f"config of {content}"), "layers": [put("base"), put(content)]}
        tag = f"docker.io/trainyard/{name.replace('_', ':')}"
        entries.append(put(json.dumps(manifest)) | {"annotations": {oci.REFERENCE: tag}})
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    return folder


def test_a_node_is_given_only_the_layers_that_it_lacks(tmp_path: Path):
    image = oci.find(a_layout(tmp_path / "images", trainer_1="code"), "docker.io/trainyard/trainer:1", "trainer:0.1.0")
    assert image is not None
    base, code = image.layers
    oci.write_tar(tmp_path / "import.tar", image, there=[base])
    with tarfile.open(tmp_path / "import.tar") as tar:
        names = {Path(name).name for name in tar.getnames()}
        index = json.load(tar.extractfile("index.json") or StringIO())
    digests = {digest.removeprefix("sha256:") for digest in (image.manifest, image.config, code)}
    assert names == {"oci-layout", "index.json", *digests}
    assert index["manifests"][0]["annotations"] == {oci.CONTAINERD_NAME: "trainer:0.1.0"}


def test_old_versions_go_and_what_newer_ones_share_with_them_stays(tmp_path: Path):
    layout = a_layout(tmp_path / "images", trainer_1="one", operator_1="other", trainer_2="two", trainer_3="three")
    oci.keep_newest(layout, versions=2)
    assert oci.find(layout, "docker.io/trainyard/trainer:1", "") is None
    for name in ("trainer:2", "trainer:3", "operator:1"):
        image = oci.find(layout, f"docker.io/trainyard/{name}", "")
        assert image is not None, name
        assert all((layout / "blobs" / blob.replace(":", "/")).exists() for blob in image.blobs)
    contents = {path.read_text() for path in (layout / "blobs" / "sha256").iterdir()}
    assert "one" not in contents
    assert {"base", "two", "three", "other"} <= contents
