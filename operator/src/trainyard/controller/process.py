"""One operator process, from its first watch to its last breath.

Every replica watches and answers probes; one holds the Lease, and only that one judges and acts. It ends in one of three ways:
asked to (SIGTERM: the Lease is released, exit code 0), by a bug in one of its tasks (the Lease is released, the traceback is in
the log, exit code 1), or by losing the Lease (exit code 1 without another instruction, since somebody else acts now).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from functools import partial
from typing import Final

import kopf
from aiohttp import web

from trainyard import __version__
from trainyard.controller.loop import Loop
from trainyard.controller.registry import operator_settings, registry
from trainyard.controller.settings import Settings
from trainyard.cycle import cycle
from trainyard.kube.client import KubeClient
from trainyard.kube.events import Recorder
from trainyard.kube.launchers import Address, LauncherClient, Poller, pod_address
from trainyard.kube.lease import Elector, Terms
from trainyard.kube.mirror import Mirror
from trainyard.kube.writer import Writer
from trainyard.telemetry.health import Health, application
from trainyard.telemetry.metrics import Metrics
from trainyard.world.inventory import Inventory

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1

log = logging.getLogger(__name__)


class Stopped(Exception):
    """A signal asked the process to stop."""


async def run(settings: Settings, key: bytes, address: Address = pod_address) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code.

    key: the operator's own, from which those of the jobs are derived. address: where the launcher of a pod is reached.
    """
    stopping = asyncio.Event()
    _listen(stopping)
    metrics = Metrics(__version__)
    code = EXIT_STOPPED
    async with (
        await KubeClient.from_environment(metrics) as client,
        LauncherClient(key, address=address) as launchers,
    ):
        mirror = Mirror(client, metrics, launcher_image=settings.launcher_image, marks=settings.marks())
        health = Health(mirror.informers, metrics)
        server = web.AppRunner(application(health), access_log=None)
        try:
            await _serve(server, settings)
            # A task that ends is the end of all: none has a reason to.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_stop_when_asked(stopping), name="stop")
                tasks.create_task(health.heartbeat(), name="heartbeat")
                tasks.create_task(mirror.run(), name="mirror")
                tasks.create_task(_lead(settings, client, mirror, launchers, metrics, stopping), name="lead")
        except* Stopped:
            log.info("stopped")
        except* Exception:
            log.exception("the operator failed")
            code = EXIT_FAILED
        finally:
            await server.cleanup()
    return code


async def _lead(
    settings: Settings,
    client: KubeClient,
    mirror: Mirror,
    launchers: LauncherClient,
    metrics: Metrics,
    stopping: asyncio.Event,
) -> None:
    """Wait for the caches, then for the Lease; then act until cancelled."""
    await mirror.wait_synced()
    log.info("the caches are synced")
    _settle_memory()
    terms = Terms(lease=settings.lease_seconds, renew=settings.renew_seconds, retry=settings.retry_seconds)
    async with Elector(client, settings.namespace, settings.lease, settings.identity, terms) as election:
        await election.acquired.wait()
        metrics.leader.set(1)
        recorder = Recorder(client, settings.identity)
        writer = Writer(client, mirror, launchers, recorder, leading=lambda: election.leading)
        loop = Loop(mirror, partial(cycle, inventory=Inventory()), writer.perform, metrics)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_leave_when_lost(election), name="lost")
            tasks.create_task(recorder.run(), name="events")
            tasks.create_task(Poller(launchers, mirror, metrics).run(), name="poller")
            tasks.create_task(loop.run(), name="loop")
            # The last: when kopf ends, it cancels whatever was started after it.
            tasks.create_task(_run_kopf(loop, settings.identity, stopping), name="kopf")


async def _leave_when_lost(election: Elector) -> None:
    """Without the Lease nothing more may be done, not even tidying up: another process acts now."""
    await election.lost.wait()
    log.critical("the Lease is lost")
    logging.shutdown()
    os._exit(EXIT_FAILED)


async def _run_kopf(loop: Loop, identity: str, stopping: asyncio.Event) -> None:
    """Run kopf until cancelled. It takes the signals for itself when it starts, and ends with seconds of waiting when one comes:
    so they are taken back."""
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_listen_again(started, stopping), name="signals")
        await kopf.operator(
            registry=registry(loop.wake),
            settings=operator_settings(),
            standalone=True,
            clusterwide=True,
            ready_flag=started,
            # Else it makes one of the user's name, and the user of a container has none.
            identity=identity,  # type: ignore[arg-type]
        )
    raise RuntimeError("kopf ended, though nobody asked it to")


async def _listen_again(started: asyncio.Event, stopping: asyncio.Event) -> None:
    await started.wait()
    _listen(stopping)


def _listen(stopping: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def _stop_when_asked(stopping: asyncio.Event) -> None:
    await stopping.wait()
    log.info("asked to stop")
    raise Stopped


async def _serve(server: web.AppRunner, settings: Settings) -> None:
    await server.setup()
    site = web.TCPSite(server, settings.host, settings.port)
    await site.start()
    addresses = [f"{host}:{port}" for host, port, *_ in server.addresses]
    log.info("serving /healthz, /readyz and /metrics at %s", ", ".join(addresses))


def _settle_memory() -> None:
    """Take what the caches hold out of the garbage collector's sight: its whole passes are a third of the time of decoding
    JSON, and find nothing in records that refer to nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
