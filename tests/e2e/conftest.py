"""The lab of real kubelets, once for all tests of a run."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest
from support.api import Api
from trainyard_lab import __main__ as commands
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.layout import Lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker(pytest.mark.e2e)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build servers and images before the first test: made cold, they would outlast a test's time limit."""
    wanted = any("lab" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            commands.prepare(Lab())


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The whole lab. One that was there is repaired and left running, else it is taken down in the end."""
    if os.geteuid() != 0:
        pytest.fail("the lab needs root: it makes network namespaces and mounts")
    lab = Lab()
    was_there = lab.run.exists()
    commands.up(lab)
    yield lab
    if not was_there:
        commands.down(lab)


@pytest.fixture(scope="session")
def control_plane(lab: Lab) -> ControlPlane:
    """The lab's: what tests elsewhere do on a control plane with pretended nodes is done here on real ones."""
    return commands.control_plane(lab)


@pytest.fixture
async def namespace(api: Api, namespace: str) -> AsyncIterator[str]:
    """As elsewhere, and gone after the test: the lab may outlive it."""
    yield namespace
    await api.delete("Namespace", namespace)
