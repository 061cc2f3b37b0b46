"""kubectl trainyard: what kubectl itself cannot say about jobs and nodes.

It only reads, with the rights of whoever calls it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainyard import __version__
from trainyard.api.model import duration_seconds
from trainyard.cli import env, planned, simulate, why
from trainyard.cli.launchers import ask_launchers
from trainyard.cli.layout import WIDTH
from trainyard.cli.manifests import ManifestError, read_jobs, read_text
from trainyard.cli.page import status_page
from trainyard.cli.question import ask
from trainyard.cli.reading import namespace_of, read_job, read_world, read_yard
from trainyard.cli.turns import waits
from trainyard.cli.yard import MOST_NODES, topology_page
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.lifecycle.gang import is_open
from trainyard.world.inventory import Inventory
from trainyard.world.records import World

CLUSTER: Final = "cluster"
"""Where nodes come from unless a file is named."""

FORBIDDEN: Final = 403

Said = tuple[str, int]
"""A page and the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for what went wrong, 2 for wrong usage, 3 for a planned job that would wait."""
    options = _parser().parse_args(arguments)
    try:
        text, code = asyncio.run(options.page(options))
    except (ApiError, ManifestError) as error:
        print(f"kubectl trainyard: {error}", file=sys.stderr)
        return 1
    print(text, end="")
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl trainyard", description="What kubectl itself cannot say about jobs and nodes."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="a job on one page: why it waits, how far it is, who runs where")
    status.add_argument("job", metavar="JOB", help="name of the TrainingJob")
    status.set_defaults(page=_status)
    reasons = commands.add_parser("why", help="why a job waits and what would start it, or why it has its nodes")
    reasons.add_argument("job", metavar="JOB", help="name of the TrainingJob")
    reasons.set_defaults(page=_why)
    variables = commands.add_parser("env", help="every variable of a job's trainer container, with who said it and why")
    variables.add_argument("job", metavar="JOB", help="name of the TrainingJob")
    variables.add_argument(
        "--rank", type=int, metavar="N", help="only those of one node rank; otherwise all, told apart"
    )
    variables.set_defaults(page=_env)
    plan = commands.add_parser(
        "plan",
        help=f"what would become of a job if it were applied now; exit code {planned.WOULD_WAIT} if it would wait",
    )
    plan.add_argument("-f", "--filename", required=True, metavar="FILE", help="its manifest; - for standard input")
    plan.set_defaults(page=_plan)
    simulation = commands.add_parser(
        "simulate", help="when the jobs of a file would start, and where, if they were all there is"
    )
    simulation.add_argument(
        "-f", "--filename", required=True, metavar="FILE", help="their manifests; - for standard input"
    )
    simulation.add_argument(
        "--nodes-from",
        default=CLUSTER,
        metavar="FILE",
        help="what kubectl get nodes -o yaml wrote; otherwise the cluster",
    )
    simulation.add_argument(
        "--until", type=_duration, default=86400.0, metavar="TIME", help="how far to look; otherwise 24h"
    )
    simulation.set_defaults(page=_simulate)
    topology = commands.add_parser("topology", help="the network as its labels tell it, with room and gangs by domain")
    topology.add_argument(
        "--nodes",
        action=argparse.BooleanOptionalAction,
        help=f"a line for each node; otherwise in clusters of up to {MOST_NODES} nodes alone",
    )
    topology.set_defaults(page=_topology)
    for command in (status, reasons, variables, plan, simulation):
        command.add_argument("-n", "--namespace", help="the job's; otherwise that of the kubeconfig's current context")
    for command in (status, reasons, variables, plan, simulation, topology):
        command.add_argument("--kubeconfig", type=Path, help="otherwise that of KUBECONFIG, or ~/.kube/config")
    return parser


async def _status(options: argparse.Namespace) -> Said:
    namespace = options.namespace or namespace_of(options.kubeconfig)
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        job, members = await read_job(client, namespace, options.job)
    return status_page(job, members, time.time()), 0


async def _why(options: argparse.Namespace) -> Said:
    namespace = options.namespace or namespace_of(options.kubeconfig)
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        job, members = await read_job(client, namespace, options.job)
        if not is_open(job) and not waits(job):
            return why.other_page(job, _width()), 0
        try:
            world = await (read_yard(client) if is_open(job) else read_world(client, namespace))
        except ApiError as error:
            if error.code != FORBIDDEN:
                raise
            world = None
    now = time.time()
    if is_open(job):
        tree = Inventory.of(world or World()).tree
        return why.running_page(job, members, tree, now, _width()), 0
    if world is None:
        return why.recorded_page(job, now, _width()), 0
    return why.waiting_page(ask(world, world.jobs.get(job.uid, job), now), now, _width()), 0


async def _env(options: argparse.Namespace) -> Said:
    namespace = options.namespace or namespace_of(options.kubeconfig)
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        job, members = await read_job(client, namespace, options.job)
        if job.spec is None:
            return why.other_page(job, _width()), 1
        world = await read_yard(client)
        seated = await ask_launchers(client, env.seats(job, members), options.rank)
    try:
        return env.env_page(job, env.settings_of(world, job, seated), seated, options.rank, _width()), 0
    except ValueError as error:
        raise ManifestError(str(error)) from error


async def _plan(options: argparse.Namespace) -> Said:
    namespace, now = options.namespace or namespace_of(options.kubeconfig), time.time()
    jobs = read_jobs(read_text(options.filename), namespace, now)
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        world = await read_world(client, jobs[0].namespace)
    return planned.planned_pages(world, jobs, now, _width())


async def _simulate(options: argparse.Namespace) -> Said:
    namespace, now = options.namespace or namespace_of(options.kubeconfig), float(int(time.time()))
    queue = simulate.read_submissions(read_text(options.filename), namespace, now)
    if options.nodes_from == CLUSTER:
        async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
            world = await read_world(client, namespace)
    else:
        world = simulate.read_nodes(read_text(options.nodes_from))
    return simulate.simulated_page(world, queue, now, options.until, _width()), 0


async def _topology(options: argparse.Namespace) -> Said:
    async with await KubeClient.from_kubeconfig(options.kubeconfig) as client:
        return topology_page(await read_yard(client), options.nodes), 0


def _duration(text: str) -> float:
    try:
        return duration_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _width() -> int:
    """Columns of the terminal, as far as there is one."""
    return min(120, max(60, shutil.get_terminal_size((WIDTH, 24)).columns))


if __name__ == "__main__":
    sys.exit(main())
