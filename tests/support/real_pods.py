"""Pods that really run: a Python script on a node of the lab, or a command that waits."""

from collections.abc import Mapping, Sequence

from support.api import Object

IMAGE = "trainyard/trainer:0.1.0"
FOREVER = "import signal; signal.pause()"


def a_script(
    name: str,
    namespace: str,
    node: str,
    script: str = FOREVER,
    *,
    service: str | None = None,
    claims: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    limits: Mapping[str, str] | None = None,
    never_ready: bool = False,
) -> Object:
    """A pod that runs a Python script once, on this node.

    service: the headless Service under which its host name, the pod's own, is found.
    claims: mount path -> name of a claim.
    """
    claims = claims or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"service": service or "none"},
            "finalizers": list(finalizers),
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "hostname": name,
            **({"subdomain": service} if service else {}),
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _only(node)}},
            "volumes": [
                {"name": f"claim-{index}", "persistentVolumeClaim": {"claimName": claim}}
                for index, claim in enumerate(claims.values())
            ],
            "containers": [
                {
                    "name": "trainer",
                    "image": IMAGE,
                    "command": ["python3", "-c", script],
                    "resources": {"limits": dict(limits or {})},
                    "volumeMounts": [
                        {"name": f"claim-{index}", "mountPath": path} for index, path in enumerate(claims)
                    ],
                    **({"readinessProbe": {"exec": {"command": ["false"]}}} if never_ready else {}),
                }
            ],
        },
    }


def a_headless_service(name: str, namespace: str) -> Object:
    """Names its pods from the start, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"service": name},
            "ports": [{"name": "http", "port": 9400}],
        },
    }


def _only(node: str) -> Object:
    match = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [match]}]}
