"""The real control plane, once for all tests of a run, and what each test needs on it."""

import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import crds
from support.api import Api, ApiError, wait_until
from support.nodes import Nodes
from support.operator import Operators, installed
from trainyard_lab import build
from trainyard_lab import kubectl as kubectl_program
from trainyard_lab.controlplane import ControlPlane, Settings

Kubectl = Callable[..., str]

CONTROL_PLANE_FAMILIES = (build.KUBE, build.ETCD, build.KWOK)

# How long an example takes is the machine's affair.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the servers before the first test, if any test wants them: a cold build would outlast a test's time limit."""
    wanted = any("control_plane" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            build.build_all(CONTROL_PLANE_FAMILIES)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server, controller manager, scheduler and kwok, with the project's CRDs; gone with this process."""
    run_dir = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(run_dir, Settings(with_kwok=True), dies_with_parent=True) as plane:
        crds.install(plane)
        yield plane


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """The API server, as the administrator."""
    async with Api(control_plane.server, control_plane.ssl_context()) as client:
        yield client


@pytest.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    """A namespace of the test's own, in which pods can be created. No job and no pod is left in it.

    It stays, since the control plane goes: to take one away costs the API server more than most tests do.
    """
    name = f"t-{secrets.token_hex(4)}"
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Until its service account is there, the API server refuses every pod.
    await api.wait_for("ServiceAccount", "default", name, lambda _: True)
    yield name
    await _empty(api, "TrainingJob", name)
    await _empty(api, "Pod", name)


@pytest.fixture
async def nodes(api: Api, namespace: str) -> AsyncIterator[Nodes]:
    """Pretended nodes of the test's own; they and all pods on them are gone after it."""
    own = Nodes(api, namespace, names=[])
    yield own
    # The pods first: without its node nobody would end a pod.
    await _empty(api, "TrainingJob", namespace)
    await _empty(api, "Pod", namespace)
    await own.remove(*own.names)


@pytest.fixture
async def operators(
    api: Api, control_plane: ControlPlane, namespace: str, nodes: Nodes, tmp_path: Path
) -> AsyncIterator[Operators]:
    """Starts operators with the chart's rights; they end before the test's nodes and pods do."""
    async with installed(api, control_plane, namespace, tmp_path) as own:
        yield own


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """``kubectl("get", "pods", "-n", namespace)`` returns what it printed; a failure raises with what it said."""

    def run(*arguments: str | Path, stdin: str | None = None) -> str:
        command = [kubectl_program.program(), f"--kubeconfig={control_plane.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise AssertionError(f"{' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    return run


async def _empty(api: Api, kind: str, namespace: str) -> None:
    """Delete all objects of a kind, whoever holds them back."""

    async def remaining() -> list[str]:
        try:
            items = await api.list(kind, namespace)
        except ApiError as error:
            if error.code == 404:
                return []
            raise
        for item in items:
            name = item["metadata"]["name"]
            await api.delete(kind, name, namespace, grace_seconds=0)
            if item["metadata"].get("finalizers"):
                try:
                    await api.patch(kind, name, namespace, {"metadata": {"finalizers": None}})
                except ApiError as error:
                    if error.code != 404:
                        raise
        return [item["metadata"]["name"] for item in items]

    await wait_until(remaining, lambda names: not names, what=f"the end of every {kind} in {namespace}")
