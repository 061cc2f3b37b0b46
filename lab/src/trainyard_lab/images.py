"""The lab's images: made on this machine from the project's own Dockerfiles, without a registry.

What a build needs from the package index is fetched as wheels on the machine and handed in as a build context: the base
has no pip, and the build no network of its own. An image is known by a hash of all that goes into it, and one that is there
under its hash is never made again. buildah's store is kept with its layers, so what changed is all that a new build makes:
seconds for a change of the project's sources.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainyard_lab import debian, mounts, oci, shell
from trainyard_lab.build import lock
from trainyard_lab.node import SANDBOX_IMAGE
from trainyard_lab.oci import Image
from trainyard_lab.progress import step

REPOSITORY = Path(__file__).resolve().parents[3]
OPERATOR_IMAGE = "docker.io/trainyard/operator:0.1.0"
TRAINER_IMAGE = "docker.io/trainyard/trainer:0.1.0"
BARE_IMAGE = "docker.io/trainyard/bare:0.1.0"
"""Python, numpy and nothing of Trainyard, as somebody's own image might be; torch comes from the Fabric as to all pods."""
BARE_NEEDS = ("numpy>=2",)
BARE_PACKAGES = "/usr/local/lib/python3.11/dist-packages"
LAUNCHER_SOURCES = ("operator/src", "trainer-image/src")
VERSIONS_KEPT = 3
"""Of each image in the cache: another run may be importing the one before."""

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Built:
    """An image that is made from a Dockerfile of the project.

    sources: what of the repository it holds; extra: its optional dependencies in pyproject.toml; without: those of
    them that do not come into the image. launcher: whether it carries the launcher for other images. arguments: of the build.
    """

    image: str
    dockerfile: str
    sources: tuple[str, ...]
    extra: str
    without: tuple[str, ...] = ()
    launcher: bool = False
    arguments: tuple[str, ...] = ()


BUILT = (
    Built(OPERATOR_IMAGE, "operator/Dockerfile", sources=("operator/src",), extra="operator", launcher=True),
    Built(
        TRAINER_IMAGE,
        "trainer-image/Dockerfile",
        sources=("operator/src", "trainer-image/src"),
        extra="trainer",
        without=("torch",),
        arguments=("PACKAGES=",),  # the lab's nodes have no adapters, and a build no network
    ),
)


def made(cache: Path) -> tuple[Image, ...]:
    """All images that nodes need, the smallest first; those that the cache lacks are made."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    root = debian.root_tar(cache)
    recipes = [
        _Recipe(SANDBOX_IMAGE, debian.version(), lambda buildah: _build_pause(buildah, root)),
        _Recipe(
            BARE_IMAGE,
            _hash([text.encode() for text in (debian.version(), *BARE_NEEDS)]),
            lambda buildah: _build_bare(buildah, cache, root),
        ),
        *(_project_recipe(cache, root, built, project) for built in BUILT),
    ]
    layout = cache / "images"
    found = [oci.find(layout, recipe.reference, recipe.image) for recipe in recipes]
    if None in found:
        with lock("images", "another run makes the images"):
            found = [_make(cache, layout, recipe) for recipe in recipes]
            oci.keep_newest(layout, VERSIONS_KEPT)
    return tuple(image for image in found if image)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """version: hash of all that goes into the image. build: makes it in buildah's store, under its name."""

    image: str
    version: str
    build: Callable[["Buildah"], None]

    @property
    def reference(self) -> str:
        return f"{self.image.rpartition(':')[0]}:{self.version}"


def _make(cache: Path, layout: Path, recipe: _Recipe) -> Image | None:
    if not (found := oci.find(layout, recipe.reference, recipe.image)):
        with step(f"build image {recipe.image}"), Buildah(cache) as buildah:
            recipe.build(buildah)
            layout.mkdir(parents=True, exist_ok=True)
            buildah("push", recipe.image, f"oci:{layout}:{recipe.reference}")
        found = oci.find(layout, recipe.reference, recipe.image)
    return found


def _project_recipe(cache: Path, root: Path, built: Built, project: Mapping[str, Any]) -> _Recipe:
    needs = requirements(built, project)
    said = (debian.version(), *built.arguments, *needs)
    version = _hash([*(text.encode() for text in said), *_contents(built)])
    return _Recipe(built.image, version, lambda buildah: _build_project(buildah, cache, root, built, needs))


def requirements(built: Built, project: Mapping[str, Any]) -> list[str]:
    """What goes into the image from the package index, as pip reads it."""
    table = project["project"]
    wanted = [*table["dependencies"], *table["optional-dependencies"][built.extra]]
    return sorted(need for need in wanted if re.split(r"[^\w.-]", need)[0] not in built.without)


def _contents(built: Built) -> Iterable[bytes]:
    """Names and contents of all files of the repository that go into an image."""
    launcher = _sources(LAUNCHER_SOURCES) if built.launcher else []
    for path in sorted({*_files(built), *launcher}):
        yield path.relative_to(REPOSITORY).as_posix().encode()
        yield path.read_bytes()


def _files(built: Built) -> list[Path]:
    files = [REPOSITORY / name for name in ("pyproject.toml", "README.md", "LICENSE", built.dockerfile)]
    return files + _sources(built.sources)


def _sources(folders: Iterable[str]) -> list[Path]:
    found = (path for folder in folders for path in (REPOSITORY / folder).rglob("*"))
    return sorted(path for path in found if path.is_file() and not _is_made(path))


def _is_made(path: Path) -> bool:
    """Whether a file beside the sources is none: compiled, or left by an installation."""
    return "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts)


def _build_pause(buildah: "Buildah", root: Path) -> None:
    """The image whose one process holds a pod's namespaces: `sleep` and the two libraries that it is linked with."""
    parts = ["./bin", "./lib", "./lib64", "./usr/bin/sleep", "./usr/lib/x86_64-linux-gnu/libc.so.6"]
    files = buildah.work / "root"
    files.mkdir()
    shell.run("tar", "-C", str(files), "-xf", str(root), "--wildcards", *parts, "*/ld-linux-x86-64.so.2")
    container = buildah("from", "scratch").strip()
    buildah("add", container, str(files), "/")
    buildah("config", "--entrypoint", json.dumps(["/usr/bin/sleep", "infinity"]), container)
    buildah("commit", "--rm", container, SANDBOX_IMAGE)


def _base(buildah: "Buildah", root: Path) -> str:
    """The image that the project's Dockerfiles begin from, in buildah's store; made there if it is not."""
    name = f"localhost/trainyard/base:{debian.version()}"
    if not buildah("images", "--quiet", "--filter", f"reference={name}").strip():
        container = buildah("from", "scratch").strip()
        buildah("add", container, str(root), "/")
        buildah("config", "--env", f"PATH={SEARCH_PATH}", "--cmd", "python3", container)
        buildah("commit", "--rm", container, name)
    return name


def _build_bare(buildah: "Buildah", cache: Path, root: Path) -> None:
    """The base with packages unpacked where its Python looks."""
    packages = buildah.work / "packages"
    for wheel in _third_party(cache, "bare", list(BARE_NEEDS)).glob("*.whl"):
        if not wheel.name.startswith("pip-"):
            shutil.unpack_archive(wheel, packages, "zip")
    container = buildah("from", "--pull-never", _base(buildah, root)).strip()
    buildah("add", container, str(packages), BARE_PACKAGES)
    buildah("commit", "--rm", container, BARE_IMAGE)


def _build_project(buildah: "Buildah", cache: Path, root: Path, built: Built, needs: list[str]) -> None:
    """An image of the project, by its Dockerfile."""
    shutil.copytree(_third_party(cache, built.extra, needs), buildah.work / "wheels")
    # Built from a copy: setuptools leaves a build folder beside the sources, and packs what lies in an older one.
    source = buildah.work / "source"
    for file in _files(built):
        copy = source / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)
    project = str(buildah.work / "project")
    shell.run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", project, str(source))
    if built.launcher:
        archive = (sys.executable, "-m", "trainyard_trainer.launch.archive", str(buildah.work / "launcher"))
        paths = os.pathsep.join(str(REPOSITORY / folder) for folder in LAUNCHER_SOURCES)
        shell.run(*archive, env={**os.environ, "PYTHONPATH": paths})
    arguments = [word for argument in built.arguments for word in ("--build-arg", argument)]
    buildah(
        "bud", "--layers", "--isolation", "chroot", "--pull-never", "--file", str(REPOSITORY / built.dockerfile),
        "--build-arg", f"BASE={_base(buildah, root)}", *arguments, "--build-context", f"built={buildah.work}",
        "--tag", built.image, str(source),
    )  # fmt: skip


def _third_party(cache: Path, name: str, needs: list[str]) -> Path:
    """A folder of wheels: these requirements, all that they need, and pip itself."""
    folder = cache / "wheels" / f"{name}-{_hash([need.encode() for need in needs])}"
    if not folder.is_dir():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shell.run(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(unfinished), "pip", *needs)
        unfinished.rename(folder)
    return folder


class Buildah:
    """buildah with a store in the cache. Between builds nothing of it is mounted.

    work: an empty folder for the build's own files, gone with it.
    """

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "buildah"
        self.work = self._folder / "work"

    def __enter__(self) -> Self:
        self._clear()
        self.work.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __call__(self, *arguments: str) -> str:
        store = ("--root", str(self._folder / "root"), "--runroot", str(self._folder / "run"))
        return shell.run("buildah", *store, *arguments)

    def _clear(self) -> None:
        mounts.unmount_below(self._folder)
        shutil.rmtree(self.work, ignore_errors=True)


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
