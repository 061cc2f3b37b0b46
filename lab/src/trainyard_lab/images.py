"""The lab's images: made on this machine from the project's own Dockerfiles, kept in the cache, imported into nodes.

No registry is asked. The base is a Debian root file system by debootstrap, from the mirror that this machine's apt
uses; it stands where elsewhere a registry's Python image does. What a build needs from the package index is fetched as
wheels on the machine and handed in as a build context: the base has no pip, and the build no network of its own.

An archive is named by a hash of all that goes into it; one that exists is never made again. torch is in no image:
`torch_folder` makes a folder of it once, which the lab's Fabric mounts into pods.
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
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from trainyard_lab import mounts, shell
from trainyard_lab.build import lock
from trainyard_lab.node import SANDBOX_IMAGE
from trainyard_lab.progress import step

REPOSITORY = Path(__file__).resolve().parents[3]
SUITE = "bookworm"
BASE_PACKAGES = ("python3", "ca-certificates")
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

BASE_IMAGE = "localhost/trainyard/base:latest"
OPERATOR_IMAGE = "docker.io/trainyard/operator:0.1.0"
TRAINER_IMAGE = "docker.io/trainyard/trainer:0.1.0"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APT_SOURCES = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class Archive:
    """An image in a file (docker-archive: layers are not compressed, which is what makes its import quick)."""

    image: str
    path: Path


@dataclass(frozen=True, slots=True)
class Built:
    """An image that is made from a Dockerfile of the project.

    sources: what of the repository it holds; extra: its optional dependencies in pyproject.toml; without: those of
    them that do not come into the image.
    """

    image: str
    dockerfile: str
    sources: tuple[str, ...]
    extra: str
    without: tuple[str, ...] = ()


BUILT = (
    Built(OPERATOR_IMAGE, "operator/Dockerfile", sources=("operator/src",), extra="operator"),
    Built(
        TRAINER_IMAGE,
        "trainer-image/Dockerfile",
        sources=("operator/src", "trainer-image/src"),
        extra="trainer",
        without=("torch",),
    ),
)


def archives(cache: Path) -> tuple[Archive, ...]:
    """All images that nodes need, the smallest first; makes those that the cache lacks."""
    folder = cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    root = _debian(folder)
    pause = _made(folder, SANDBOX_IMAGE, root.stem, lambda path: _build_pause(cache, root, path))
    base = _made(folder, BASE_IMAGE, root.stem, lambda path: _build_base(cache, root, path))
    return (pause, *(_project_archive(cache, folder, base, built) for built in BUILT))


def torch_folder(cache: Path) -> Path:
    """A folder with torch and what it needs, in the version of this Python environment; made once."""
    version = metadata.version("torch")
    folder = cache / f"torch-{version}"
    if not folder.is_dir():
        with lock("torch", "another run unpacks torch"):
            if not folder.is_dir():
                unfinished = folder.with_name(folder.name + ".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                with step(f"unpack torch {version} (5.4 GB) for the pods"):
                    for name in sorted(_closure("torch")):
                        _link_distribution(metadata.distribution(name), unfinished)
                unfinished.rename(folder)
    return folder


def _closure(root: str) -> set[str]:
    """A distribution and all that it needs here, by canonical name."""
    found: set[str] = set()
    waiting = [root]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # needed on another platform or Python only
        found.add(name)
        waiting += [match[0] for need in needs if "extra ==" not in need and (match := re.match(r"[\w.-]+", need))]
    return found


def _link_distribution(distribution: metadata.Distribution, target: Path) -> None:
    """Hard links where the file system allows, so that 5.4 GB are there once; copies where it does not."""
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        there = target / file
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, there)
        except FileExistsError:
            pass
        except OSError:
            shutil.copy2(source, there)


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


def _debian(folder: Path) -> Path:
    """The tar of a minimal Debian with Python."""
    path = folder / f"debian-{SUITE}-{_hash(name.encode() for name in (SUITE, *BASE_PACKAGES, *LEFT_OUT))}.tar"
    if path.exists():
        return path
    with lock("images", "another run makes the images"):
        if path.exists():
            return path
        root = folder / "debian.unfinished"
        shutil.rmtree(root, ignore_errors=True)
        with step(f"make a Debian {SUITE} root file system with debootstrap"):
            wanted = ",".join(BASE_PACKAGES)
            shell.run("debootstrap", "--variant=minbase", f"--include={wanted}", SUITE, str(root), mirror())
            unfinished = path.with_suffix(".unfinished")
            excluded = [f"--exclude=./{name}" for name in LEFT_OUT]
            shell.run("tar", "-C", str(root), "-cf", str(unfinished), *excluded, ".")
        unfinished.rename(path)
        shutil.rmtree(root)
    return path


def _project_archive(cache: Path, folder: Path, base: Archive, built: Built) -> Archive:
    needs = requirements(built, tomllib.loads((REPOSITORY / "pyproject.toml").read_text()))
    version = _hash([base.path.stem.encode(), *(need.encode() for need in needs), *_contents(built)])
    return _made(folder, built.image, version, lambda path: _build_project(cache, base, built, needs, path))


def requirements(built: Built, project: Mapping[str, Any]) -> list[str]:
    """What goes into the image from the package index, as pip reads it."""
    table = project["project"]
    wanted = [*table["dependencies"], *table["optional-dependencies"][built.extra]]
    return sorted(need for need in wanted if re.split(r"[^\w.-]", need)[0] not in built.without)


def _contents(built: Built) -> Iterable[bytes]:
    """Names and contents of all files of the repository that go into an image."""
    for path in _files(built):
        yield path.relative_to(REPOSITORY).as_posix().encode()
        yield path.read_bytes()


def _files(built: Built) -> list[Path]:
    files = [REPOSITORY / name for name in ("pyproject.toml", "README.md", "LICENSE", built.dockerfile)]
    for folder in built.sources:
        files += sorted(path for path in (REPOSITORY / folder).rglob("*") if path.is_file() and not _is_made(path))
    return files


def _is_made(path: Path) -> bool:
    """Whether a file beside the sources is none: compiled, or left by an installation."""
    return "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts)


def _made(folder: Path, image: str, version: str, make: Callable[[Path], None]) -> Archive:
    """The archive of this image and version; `make` writes it if it is not there, older versions go."""
    name = image.rpartition("/")[2].partition(":")[0]
    path = folder / f"{name}-{version}.tar"
    if not path.exists():
        with lock("images", "another run makes the images"):
            if not path.exists():
                unfinished = path.with_suffix(".unfinished")
                unfinished.unlink(missing_ok=True)
                with step(f"build image {image}"):
                    make(unfinished)
                unfinished.rename(path)
                for old in folder.glob(f"{name}-*.tar"):
                    if old != path:
                        old.unlink()
    return Archive(image, path)


def _build_pause(cache: Path, root: Path, path: Path) -> None:
    """The image whose one process holds a pod's namespaces: `sleep` and the two libraries that it is linked with."""
    parts = ["./bin", "./lib", "./lib64", "./usr/bin/sleep", "./usr/lib/x86_64-linux-gnu/libc.so.6"]
    with Buildah(cache) as buildah:
        files = buildah.work / "root"
        files.mkdir()
        shell.run("tar", "-C", str(files), "-xf", str(root), "--wildcards", *parts, "*/ld-linux-x86-64.so.2")
        container = buildah("from", "scratch").strip()
        buildah("add", container, str(files), "/")
        buildah("config", "--entrypoint", json.dumps(["/usr/bin/sleep", "infinity"]), container)
        buildah("commit", container, SANDBOX_IMAGE)
        buildah("push", SANDBOX_IMAGE, f"docker-archive:{path}:{SANDBOX_IMAGE}")


def _build_base(cache: Path, root: Path, path: Path) -> None:
    """The image that the project's Dockerfiles begin from."""
    with Buildah(cache) as buildah:
        container = buildah("from", "scratch").strip()
        buildah("add", container, str(root), "/")
        buildah("config", "--env", f"PATH={SEARCH_PATH}", "--cmd", "python3", container)
        buildah("commit", container, BASE_IMAGE)
        buildah("push", BASE_IMAGE, f"docker-archive:{path}:{BASE_IMAGE}")


def _build_project(cache: Path, base: Archive, built: Built, needs: list[str], path: Path) -> None:
    """An image of the project, by its Dockerfile."""
    with Buildah(cache) as buildah:
        wheels = buildah.work / "wheels"
        shutil.copytree(_third_party(cache, built.extra, needs), wheels)
        # Built from a copy: setuptools leaves a build folder beside the sources, and packs what lies in an older one.
        source = buildah.work / "source"
        for file in _files(built):
            copy = source / file.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir")
        shell.run(*pip, str(wheels), "--no-deps", str(source))
        buildah("pull", f"docker-archive:{base.path}")
        buildah(
            "bud", "--isolation", "chroot", "--pull-never", "--file", str(REPOSITORY / built.dockerfile),
            "--build-arg", f"BASE={BASE_IMAGE}", "--build-context", f"wheels={buildah.work}", "--tag", built.image,
            str(source),
        )  # fmt: skip
        buildah("push", built.image, f"docker-archive:{path}:{built.image}")


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
    """buildah with a store of its own for one build, gone afterwards with all that it mounted.

    work: an empty folder for the build's own files, gone with it.
    """

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "buildah.unfinished"
        self.work = self._folder / "work"

    def __enter__(self) -> Self:
        self._remove()
        self.work.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def __call__(self, *arguments: str) -> str:
        store = ("--root", str(self._folder / "root"), "--runroot", str(self._folder / "run"))
        return shell.run("buildah", *store, *arguments)

    def _remove(self) -> None:
        mounts.unmount_below(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
