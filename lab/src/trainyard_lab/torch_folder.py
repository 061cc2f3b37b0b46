"""torch for the pods: a folder on the machine, made once, mounted read-only by the lab's Fabric.

5.4 GB in every image and every node would be most of the lab. The folder is made of hard links to this Python environment's
own installation, so it costs a second and no disk, and pods run the very version that the tests do.
"""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trainyard_lab.build import lock
from trainyard_lab.progress import step

IMPORT = "from trainyard_trainer import preload; preload.preload(); import trainyard_trainer.train, trainyard_trainer.measure"


def torch_folder(cache: Path) -> Path:
    """A folder with torch and what it needs, in the version of this Python environment; made once."""
    needed = sorted(closure("torch"))
    version = metadata.version("torch")
    content = [IMPORT, *(f"{name} {metadata.version(name)}" for name in needed)]
    stamp = sha256("\n".join(content).encode()).hexdigest()[:12]
    folder = cache / f"torch-{version}-{stamp}"
    if not folder.is_dir():
        with lock("torch", "another run unpacks torch"):
            if not folder.is_dir():
                unfinished = folder.with_name(folder.name + ".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                with step(f"unpack torch {version} (5.4 GB) for the pods"):
                    for name in needed:
                        _link_distribution(metadata.distribution(name), unfinished)
                    _compile(unfinished)
                unfinished.rename(folder)
    return folder


def closure(root: str) -> set[str]:
    """A distribution and all that it needs here, by canonical name. Extras count: torch has its CUDA libraries from the extras of
    another package."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(root), "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # needed on another platform or Python only
        found.add(name)
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                wanted = canonicalize_name(need.name)
                waiting += [(wanted, ""), *((wanted, chosen) for chosen in need.extras)]
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


def _compile(folder: Path) -> None:
    """Leave the compiled modules beside the sources, for all that the trainer imports: the pods' mount is read-only, so each of
    them would compile torch anew at every start, for several seconds of a core."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", IMPORT], env=environment, check=True, capture_output=True)
