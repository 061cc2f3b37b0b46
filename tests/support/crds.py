"""Install the project's CustomResourceDefinitions as a user would, and wait until they are served."""

import subprocess
from pathlib import Path

import yaml
from trainyard_lab import kubectl, processes
from trainyard_lab.controlplane import ControlPlane

FOLDER = Path(__file__).resolve().parents[2] / "manifests" / "crds"
SERVED_SECONDS = 30


def install(plane: ControlPlane) -> None:
    """Apply every manifest of ``manifests/crds`` and wait until the API server answers for each kind."""
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]
    if not definitions:
        return
    _kubectl(plane, "apply", "--server-side", "-f", str(FOLDER))
    for definition in definitions:
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        # At first 404, then for a moment 429 "storage is (re)initializing".
        processes.wait_until(
            lambda path=path: _kubectl(plane, "get", "--raw", path, check=False) == 0,
            path,
            deadline_seconds=SERVED_SECONDS,
        )


def _kubectl(plane: ControlPlane, *arguments: str, check: bool = True) -> int:
    command = [kubectl.program(), f"--kubeconfig={plane.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise AssertionError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.returncode
