"""What was observed on a Fabric, written into its status: by the operator, and by whoever measures."""

from __future__ import annotations

from trainyard.cycle.actions import WriteObserved
from trainyard.kube import resources
from trainyard.kube.client import KubeClient, Object


async def write_observed(client: KubeClient, action: WriteObserved) -> Object:
    """The Fabric as it is then. ApiError, with conflict, where somebody else wrote it since it was read."""
    patch = {
        "metadata": {"uid": action.uid, "resourceVersion": action.resource_version},
        "status": {"observed": action.observed.to_manifest()},
    }
    return await client.patch(resources.FABRICS, None, action.name, patch, subresource="status")
