"""What a job makes besides its pods: the Service under which members find each other, the plan, the control key's Secret.

Each belongs to the job by an owner reference that blocks its deletion, so that the garbage collector takes it away with the job.
"""

from __future__ import annotations

from typing import Any

from trainyard.api import names
from trainyard.contract.plan import Plan, encode
from trainyard.world.records import Job, Manifest


def service(job: Job) -> Manifest:
    """One headless Service: `<pod>.<job>` resolves within the namespace, whatever the cluster's domain is.

    Addresses that are not ready are published as well: members must find each other before any of them can be ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB_UID: job.uid},
            "ports": [
                {"name": names.LAUNCHER_PORT_NAME, "port": names.LAUNCHER_PORT},
                {"name": "rendezvous", "port": names.RENDEZVOUS_PORT},
            ],
        },
    }


def plan_map(job: Job, plan: Plan) -> Manifest:
    """The ConfigMap of an attempt. Immutable: kubelets need not watch it, and a later plan has a map of its own."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.plan_name(job.name, plan.attempt), {names.LABEL_ATTEMPT: str(plan.attempt)}),
        "immutable": True,
        "data": {names.PLAN_KEY: encode(plan)},
    }


def control(job: Job) -> Manifest:
    """The Secret of the control key, without the key: that is derived where the operator's own key is known."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.control_name(job.name, job.uid)),
        "type": "Opaque",
    }


def metadata(job: Job, name: str, labels: Manifest | None = None) -> dict[str, Any]:
    """Name, namespace, labels and owner of an object that a job makes."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid, **(labels or {})},
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND_JOB,
                "name": job.name,
                "uid": job.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
