"""kubectl trainyard: what kubectl itself cannot say about jobs and nodes.

It only reads, with the rights of whoever calls it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from trainyard import __version__
from trainyard.api import names
from trainyard.cli.page import status_page
from trainyard.cli.yard import MOST_NODES, topology_page
from trainyard.kube import decode, resources
from trainyard.kube.client import KubeClient, Object
from trainyard.kube.errors import ApiError
from trainyard.kube.shapes import CustomShape, NodeShape, PodShape, Shape
from trainyard.kube.slices import read_places
from trainyard.world.records import Job, Pod, World

_NODE: Final = Shape(NodeShape)
_OWN: Final = Shape(CustomShape)
_POD: Final = Shape(PodShape)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        print(asyncio.run(options.page(options)), end="")
    except ApiError as error:
        print(f"kubectl trainyard: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl trainyard", description="What kubectl itself cannot say about jobs and nodes."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="a job on one page: why it waits, how far it is, who runs where")
    status.add_argument("job", metavar="JOB", help="name of the TrainingJob")
    status.add_argument("-n", "--namespace", help="its namespace; otherwise that of the kubeconfig's current context")
    status.set_defaults(page=_status)
    topology = commands.add_parser("topology", help="the network as its labels tell it, with room and gangs by domain")
    topology.add_argument(
        "--nodes",
        action=argparse.BooleanOptionalAction,
        help=f"a line for each node; otherwise in clusters of up to {MOST_NODES} nodes alone",
    )
    topology.set_defaults(page=_topology)
    for command in (status, topology):
        command.add_argument("--kubeconfig", type=Path, help="otherwise that of KUBECONFIG, or ~/.kube/config")
    return parser


async def _status(options: argparse.Namespace) -> str:
    namespace = options.namespace or _namespace(options.kubeconfig)
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        job, members = await _read(client, namespace, options.job)
    return status_page(job, members, time.time())


async def _topology(options: argparse.Namespace) -> str:
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        nodes = [decode.node(_NODE.one.validate_python(raw)) for raw in await _all(client, resources.NODES)]
        pods = [decode.pod(_POD.one.validate_python(raw)) for raw in await _all(client, resources.PODS)]
        fabrics = [decode.fabric(_OWN.one.validate_python(raw)) for raw in await _all(client, resources.FABRICS)]
        placed = await read_places(client, {node.name: node for node in nodes})
    return topology_page(
        World(
            nodes=placed,
            pods={pod.uid: pod for pod in pods if pod is not None},
            fabrics={fabric.name: fabric for fabric in fabrics},
        ),
        options.nodes,
    )


async def _all(
    client: KubeClient, resource: resources.Resource, namespace: str | None = None, labels: str = ""
) -> list[Object]:
    items: list[Object] = json.loads(await client.list_page(resource, namespace=namespace, labels=labels))["items"]
    return items


async def _read(client: KubeClient, namespace: str, name: str) -> tuple[Job, Sequence[Pod]]:
    raw = await client.get(resources.JOBS, namespace, name)
    job = decode.job(_OWN.one.validate_python(raw))
    members = await _all(client, resources.PODS, namespace, f"{names.LABEL_JOB_UID}={job.uid}")
    pods = (decode.pod(_POD.one.validate_python(member)) for member in members)
    return job, [pod for pod in pods if pod is not None]


def _namespace(kubeconfig: Path | None) -> str:
    """The namespace of the current context, as kubectl finds it: the first file that names a current context counts."""
    usual = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [kubeconfig] if kubeconfig else [Path(path) for path in usual.split(os.pathsep) if path]
    read = [yaml.safe_load(file.read_text()) or {} for file in files if file.exists()]
    current = next((config["current-context"] for config in read if config.get("current-context")), "")
    contexts = [context for config in read for context in config.get("contexts") or () if context["name"] == current]
    return next((c["context"]["namespace"] for c in contexts if c["context"].get("namespace")), "default")


if __name__ == "__main__":
    sys.exit(main())
