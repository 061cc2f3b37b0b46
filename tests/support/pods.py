"""Manifests of pods for pretended nodes."""

from collections.abc import Mapping, Sequence

from support.api import Object


def a_pod(
    name: str,
    namespace: str,
    *,
    selector: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    containers: Sequence[str] = ("trainer",),
    requests: Mapping[str, str] | None = None,
) -> Object:
    """A pod that is never restarted, with these containers; `requests` are the first one's."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": dict(annotations or {}),
            "finalizers": list(finalizers),
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": dict(selector or {}),
            "containers": [
                {
                    "name": container,
                    "image": "pretended",
                    "resources": {"limits": dict(requests or {}) if index == 0 else {}},
                }
                for index, container in enumerate(containers)
            ],
        },
    }


def is_running(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def terminated(pod: Object, container: str = "trainer") -> Object | None:
    """The container's terminated state (exitCode, message, ...), or None while it has none."""
    for status in pod["status"].get("containerStatuses", []):
        if status["name"] == container:
            state: Object | None = status["state"].get("terminated")
            return state
    return None
