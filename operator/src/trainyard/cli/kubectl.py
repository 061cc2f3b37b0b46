"""kubectl trainyard: what kubectl itself cannot say about jobs and nodes.

It only reads, with the rights of whoever calls it; but for `measure`, which makes a job, takes it away again, and stores what it
found in the Fabric's status.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from trainyard import __version__
from trainyard.api.model import duration_seconds
from trainyard.cli import data, env, measure, observed, planned, plot, simulate, why
from trainyard.cli.launchers import ask_launchers
from trainyard.cli.layout import WIDTH, page
from trainyard.cli.manifests import ManifestError, of_file, read_jobs
from trainyard.cli.measured import compared, measured_page, read_sizes
from trainyard.cli.page import status_page
from trainyard.cli.question import ask
from trainyard.cli.reading import namespace_of, read_job, read_world, read_yard
from trainyard.cli.turns import waits
from trainyard.cli.yard import MOST_NODES, topology_page
from trainyard.cycle.outlook import site_of
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.lifecycle.gang import is_open
from trainyard.world.inventory import Inventory
from trainyard.world.records import World

CLUSTER: Final = "cluster"
"""Where nodes come from unless a file is named."""

FORBIDDEN: Final = 403
PLANNER: Final = (
    "an administrator binds the ClusterRole of the chart that ends in -planner to whoever may see the whole cluster"
)
INTERRUPTED: Final = 130
"""Exit code: 128 and the number of SIGINT."""

Said = tuple[str, int]
"""A page and the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for what went wrong, 2 for wrong usage, 3 for a planned job that would wait, 130
    where it was interrupted."""
    options = _parser().parse_args(arguments)
    try:
        text, code = asyncio.run(options.page(options))
    except (ApiError, ManifestError) as error:
        print(f"kubectl trainyard: {error}{_hint(error)}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("kubectl trainyard: interrupted", file=sys.stderr)
        return INTERRUPTED
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
    measuring = commands.add_parser(
        "measure", help="how fast collectives are on some nodes, by a job of low priority that is deleted afterwards"
    )
    where = measuring.add_mutually_exclusive_group(required=True)
    where.add_argument("--nodes", type=_names, metavar="NODE,...", help="on these nodes and no others")
    where.add_argument("--gang", type=_number, metavar="N", help="on so many nodes, placed as any job's")
    measuring.add_argument(
        "--sizes", type=_sizes, default=measure.SIZES, metavar="SIZE,...", help="of messages; otherwise %(default)s"
    )
    measuring.add_argument("--like", metavar="JOB", help="in pods like those of this TrainingJob")
    measuring.add_argument("--image", default=measure.IMAGE, help="without --like; otherwise %(default)s")
    measuring.add_argument(
        "--processes", type=_number, metavar="N", help="on each node; otherwise as many as it has accelerators"
    )
    measuring.add_argument("--priority-class", metavar="CLASS", help="otherwise the lowest that there is")
    measuring.add_argument("--timeout", type=_duration, default=1800.0, metavar="TIME", help="otherwise 30m")
    measuring.add_argument("--plot", type=Path, metavar="FILE", help="SVG; otherwise the job's name with .svg")
    measuring.add_argument("--keep", action="store_true", help="leave the job")
    measuring.add_argument(
        "--store",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write what was measured into the status of the nodes' Fabric; otherwise it is done",
    )
    measuring.set_defaults(page=_measure)
    fabrics = commands.add_parser(
        "fabric", help="a Fabric's links as declared and as observed, and what was measured on it"
    )
    fabrics.add_argument("fabric", metavar="FABRIC", nargs="?", help="its name; otherwise all")
    fabrics.set_defaults(page=_fabric)
    for command in (status, plan, topology):
        command.add_argument("-o", "--output", choices=("json",), help="for programs; otherwise a page")
    _where(parser, None)
    for command in (status, reasons, variables, plan, simulation, measuring, topology, fabrics):
        _where(command, argparse.SUPPRESS)  # what was said before the command stays where nothing is said after it
    return parser


def _where(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Which cluster and namespace, as kubectl has it; before the command or after it."""
    add = partial(parser.add_argument, default=default)
    add("-n", "--namespace", help="the job's; otherwise that of the kubeconfig's context")
    add("--context", metavar="NAME", help="of the kubeconfig; otherwise its current context")
    add("--kubeconfig", type=Path, metavar="FILE", help="otherwise that of KUBECONFIG, or ~/.kube/config")


def _hint(error: Exception) -> str:
    """What somebody lacks who may not look at the whole cluster."""
    if isinstance(error, ApiError) and error.code == FORBIDDEN and "at the cluster scope" in error.message:
        return f"; {PLANNER}"
    return ""


async def _client(options: argparse.Namespace) -> KubeClient:
    return await KubeClient.from_kubeconfig(options.kubeconfig, context=options.context)


def _namespace(options: argparse.Namespace) -> str:
    return options.namespace or namespace_of(options.kubeconfig, options.context)


async def _status(options: argparse.Namespace) -> Said:
    namespace = _namespace(options)
    async with await _client(options) as client:
        job, members = await read_job(client, namespace, options.job)
    if options.output:
        return data.written(data.status_data(job, members)), 0
    return status_page(job, members, time.time()), 0


async def _why(options: argparse.Namespace) -> Said:
    namespace = _namespace(options)
    async with await _client(options) as client:
        job, members = await read_job(client, namespace, options.job)
        if not is_open(job) and not waits(job):
            return why.other_page(job, time.time(), _width()), 0
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
    namespace = _namespace(options)
    async with await _client(options) as client:
        job, members = await read_job(client, namespace, options.job)
        if job.spec is None:
            return why.other_page(job, time.time(), _width()), 1
        world = await read_yard(client)
        seated = await ask_launchers(client, env.seats(job, members), options.rank)
    try:
        return env.env_page(job, env.settings_of(world, job, seated), seated, options.rank, _width()), 0
    except ValueError as error:
        raise ManifestError(str(error)) from error


async def _plan(options: argparse.Namespace) -> Said:
    namespace, now = _namespace(options), time.time()
    jobs = of_file(options.filename, lambda text: read_jobs(text, namespace, now))
    async with await _client(options) as client:
        world = await read_world(client, jobs[0].namespace)
    if options.output:
        found, code = data.planned_data(world, jobs, now)
        return data.written(found), code
    return planned.planned_pages(world, jobs, now, _width())


async def _simulate(options: argparse.Namespace) -> Said:
    namespace, now = _namespace(options), float(int(time.time()))
    queue = of_file(options.filename, lambda text: simulate.read_submissions(text, namespace, now))
    if options.nodes_from == CLUSTER:
        async with await _client(options) as client:
            world = await read_world(client, namespace)
    else:
        world = of_file(options.nodes_from, simulate.read_nodes)
    return simulate.simulated_page(world, queue, now, options.until, _width()), 0


async def _measure(options: argparse.Namespace) -> Said:
    namespace, name = _namespace(options), f"measure-{secrets.token_hex(3)}"
    file = options.plot or Path(f"{name}.svg")
    unfit = plot.unwritable(file)
    if unfit:  # before anything is made: a measurement takes minutes
        raise ManifestError(f"--plot: {unfit}")
    async with await _client(options) as client:
        world = await read_world(client, namespace)
        on = measure.chosen(options.nodes or (), world.nodes)
        asked = measure.Asked(
            name=name,
            namespace=namespace,
            nodes=len(on) or options.gang,
            on=on,
            sizes=options.sizes,
            processes=options.processes,
            priority_class=options.priority_class or measure.lowest(world.priority_classes.values()),
            image=options.image,
        )
        if options.like is not None:
            asked = measure.with_devices(asked, *await measure.template_of(client, namespace, options.like))
        made = measure.manifest(asked, world.nodes.values())
        _end_on_signals()
        outcome = await measure.run(client, made, options.timeout, keep=options.keep, say=_tell)
        tree = Inventory.of(world).tree
        stored = await observed.store(client, world, tree, outcome, time.time()) if options.store else "Not stored."
    site = site_of(world, tree, outcome.job, outcome.nodes, as_said=True)  # not against what was measured before
    found = compared(outcome.measured, site)
    drawn = plot.draw(file, found, f"{found.gang.ranks} ranks on {len(outcome.nodes)} nodes, {found.gang.backend}")
    between = observed.edges_lines(outcome.measured, site.links)
    return page([measured_page(found, site, _width()).splitlines(), between, [drawn, stored]]), 0


async def _fabric(options: argparse.Namespace) -> Said:
    async with await _client(options) as client:
        world = await read_yard(client)
    try:
        return observed.fabrics_page(world, Inventory.of(world).tree, options.fabric, time.time(), _width()), 0
    except ValueError as error:
        raise ManifestError(str(error)) from error


def _end_on_signals() -> None:
    """As Ctrl-C does: what was made is taken away first. A terminal that is closed sends SIGHUP."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _topology(options: argparse.Namespace) -> Said:
    async with await _client(options) as client:
        world = await read_yard(client)
    return data.written(data.topology_data(world)) if options.output else topology_page(world, options.nodes), 0


def _duration(text: str) -> float:
    try:
        return duration_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError("names no node; write one or more, as in node-1,node-2")
    return found


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return read_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _width() -> int:
    """Columns of the terminal, as far as there is one."""
    return min(120, max(60, shutil.get_terminal_size((WIDTH, 24)).columns))


if __name__ == "__main__":
    sys.exit(main())
