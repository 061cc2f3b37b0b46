"""NVLink beyond the node: the ComputeDomain of a job, and the channel that each of its pods claims from it.

NVIDIA's DRA driver makes a template for claims of each ComputeDomain, and its daemons run on the nodes of the pods that claim
(NVIDIA/k8s-dra-driver-gpu v25.8, api/nvidia.com/resource/v1beta1/computedomain.go).
"""

from __future__ import annotations

from typing import Any, Final

from trainyard.api import names
from trainyard.network.settings import Settings
from trainyard.render.objects import metadata
from trainyard.world.records import Job, Manifest

CLAIM: Final = "trainyard-nvlink"


def compute_domain(job: Job) -> Manifest:
    """One for all attempts of a job: pods that stay from one to the next keep their channels, and its specification is immutable.

    numNodes is what drivers before v25.8 wait for; later ones only show by it when all are ready, and want 0 where the number may
    change.
    """
    assert job.spec is not None
    fixed = job.spec.min_nodes is None
    return {
        "apiVersion": names.COMPUTE_DOMAINS,
        "kind": names.KIND_COMPUTE_DOMAIN,
        "metadata": metadata(job, names.channel_name(job.name)),
        "spec": {
            "numNodes": job.spec.nodes if fixed else 0,
            "channel": {"resourceClaimTemplate": {"name": names.channel_name(job.name)}},
        },
    }


def of_pod(job: Job, settings: Settings) -> dict[str, Any]:
    """What a pod's specification gets. A template that claims devices itself sees to its channel as well."""
    if not settings.channel:
        return {}
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": names.channel_name(job.name)}]}


def of_container(settings: Settings) -> dict[str, Any]:
    """What the resources of the container that trains get."""
    return {"claims": [{"name": CLAIM}]} if settings.channel else {}
