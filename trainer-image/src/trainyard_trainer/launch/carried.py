"""The launcher in an image that has no Trainyard in it: one file, put beside the image's own (`archive` makes it).

What it brings it shares: a worker finds `trainyard_trainer.session` in it, and `torchrun` where a shell script calls it.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import zipimport
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "trainyard_trainer"


def carried(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with what the archive adds for workers; as it is where the launcher was not started from one."""
    loader = __spec__.loader
    if not isinstance(loader, zipimport.zipimporter):
        return dict(environment)
    archive = Path(loader.archive).absolute()
    added = dict(environment)
    stand_in = archive.parent / "bin"
    if (stand_in / "torchrun").exists():
        added["PATH"] = os.pathsep.join([str(stand_in), environment.get("PATH", os.defpath)])
    others = [place for place in sys.path if Path(place).absolute() != archive]
    if importlib.machinery.PathFinder.find_spec(PACKAGE, others) is None:  # what an image has itself is what it wants
        paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        added["PYTHONPATH"] = os.pathsep.join([*paths, str(archive)])
    return added
