"""Which mirror, which wheels, which mounts, which links: the parts of images and their stores that are decided here."""

import os
import tomllib
from pathlib import Path

import pytest
from trainyard_lab import images, mounts, store
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
    assert images.mirror(tmp_path) == mirror


def test_the_trainer_image_needs_all_of_its_extra_but_torch():
    project = tomllib.loads((images.REPOSITORY / "pyproject.toml").read_text())
    trainer = next(built for built in images.BUILT if built.image == images.TRAINER_IMAGE)
    names = {need.partition(">")[0] for need in images.requirements(trainer, project)}
    assert {"pydantic", "numpy"} <= names
    assert "torch" not in names


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


def test_a_store_that_a_node_has_already_is_kept(tmp_path: Path):
    place = Folders(tmp_path / "node-0")
    place.containerd_root.mkdir(parents=True)
    (place.containerd_root / "meta.db").write_text("its own")
    store.begin(tmp_path / "prepared", place)
    assert (place.containerd_root / "meta.db").read_text() == "its own"
