"""Helm, the real one: it comes as a library in a Python package, so no program has to be fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RELEASE = "trainyard"
NAMESPACE = "trainyard-system"
READY_SECONDS = 300


def install(kubeconfig: Path, chart: Path, values: dict[str, Any] | None = None) -> None:
    """Install the chart or upgrade what is installed, and wait until the operators are ready."""
    import helm_python  # here: it loads a large library that most of the lab does without

    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as config:
        installed = {release["name"] for release in config.list(all_states=True)}
        if RELEASE in installed:
            config.upgrade(chart, RELEASE, values, namespace=NAMESPACE, wait="watcher", timeout=READY_SECONDS)
        else:
            config.install(
                chart,
                RELEASE,
                values,
                namespace=NAMESPACE,
                wait="watcher",
                timeout=READY_SECONDS,
                create_namespace=True,
            )


def uninstall(kubeconfig: Path) -> None:
    """Uninstall the release; the chart's hook lets go of everything that Trainyard held."""
    import helm_python

    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as config:
        config.uninstall(RELEASE, ignore_not_found=True, wait="watcher", timeout=READY_SECONDS)
