"""NVIDIA's DRA driver for NVLink beyond the node, as far as the API server sees it: its kind, its devices, its templates.

The definition is that of NVIDIA/k8s-dra-driver-gpu v25.8, without descriptions.
"""

from support.api import Api, Object

DRIVER = "compute-domain.nvidia.com"

_TEMPLATE = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_CHANNEL = {
    "type": "object",
    "required": ["resourceClaimTemplate"],
    "properties": {
        "allocationMode": {"type": "string", "enum": ["All", "Single"], "default": "Single"},
        "resourceClaimTemplate": _TEMPLATE,
    },
}
_SPEC = {
    "type": "object",
    "required": ["channel"],
    "properties": {"channel": _CHANNEL, "numNodes": {"type": "integer", "minimum": 0, "default": 0}},
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}],
}
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "computedomains.resource.nvidia.com"},
    "spec": {
        "group": "resource.nvidia.com",
        "names": {
            "kind": "ComputeDomain",
            "listKind": "ComputeDomainList",
            "plural": "computedomains",
            "singular": "computedomain",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC}}},
            }
        ],
    },
}


def a_slice(node: str) -> Object:
    """What the driver of a node has to give: one channel, as long as nobody claims it."""
    channel = {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-channels"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [channel],
        },
    }


def a_device_class(name: str) -> Object:
    """By which a claim asks for a channel."""
    rule = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'channel'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": rule}}]},
    }


async def template_of(api: Api, domain: Object, device_class: str) -> None:
    """Make the template of a ComputeDomain, as the driver's controller does when one appears."""
    request = {"name": "channel", "exactly": {"deviceClassName": device_class}}
    await api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": domain["spec"]["channel"]["resourceClaimTemplate"]["name"],
                "namespace": domain["metadata"]["namespace"],
            },
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
    )
