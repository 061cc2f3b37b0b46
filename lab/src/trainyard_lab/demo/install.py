"""Helm, the real one: it comes as a library in a Python package, so no program has to be fetched."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard_lab.api import Api
from trainyard_lab.controlplane import ControlPlane

RELEASE = "trainyard"
NAMESPACE = "trainyard-system"
READY_SECONDS = 300
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
BROKEN_OFF = "owner=helm,name=trainyard,status in (pending-install,pending-upgrade,pending-rollback,uninstalling)"
IMAGE_ANNOTATION = "trainyard.dev/image"


class HelmFailed(Exception):
    """Helm could not do it; the message is its own."""


def install(plane: ControlPlane, chart: Path, image: str) -> None:
    """Install the chart or upgrade what is installed, and wait until the operators are ready.

    image: names the operator image's content. Its tag stays the same when it is built anew, so the pods carry this, and are
    replaced when it changes.
    """
    import helm_python  # here: it loads a large library that most of the lab does without

    _forget_what_was_broken_off(Api(plane))
    values: dict[str, Any] = {"podAnnotations": {IMAGE_ANNOTATION: image}}
    options: dict[str, Any] = {"namespace": NAMESPACE, "wait": "watcher", "timeout": READY_SECONDS}
    try:
        with _quietly(), helm_python.Config(kubeconfig_path=plane.kubeconfig, namespace=NAMESPACE) as config:
            installed = {release["name"] for release in config.list(all_states=True)}
            if RELEASE in installed:
                config.upgrade(chart, RELEASE, values, **options)
            else:
                config.install(chart, RELEASE, values, create_namespace=True, **options)
    except helm_python.HelmError as error:
        raise HelmFailed(f"helm: {error}") from None


def uninstall(plane: ControlPlane) -> None:
    """Uninstall the release; the chart's hook lets go of everything that Trainyard held."""
    import helm_python

    try:
        with _quietly(), helm_python.Config(kubeconfig_path=plane.kubeconfig, namespace=NAMESPACE) as config:
            config.uninstall(RELEASE, ignore_not_found=True, wait="watcher", timeout=READY_SECONDS)
    except helm_python.HelmError as error:
        raise HelmFailed(f"helm: {error}") from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Helm's library writes notes on symbolic links to standard error; what goes wrong comes as an exception."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _forget_what_was_broken_off(api: Api) -> None:
    """A run that was killed while Helm worked leaves a revision that Helm waits for for ever; what it made is adopted."""
    for secret in api.get(SECRETS, labelSelector=BROKEN_OFF).get("items", []):
        api.delete(f"{SECRETS}/{secret['metadata']['name']}")
