"""`kubectl trainyard measure` between an API server and others who speak to it in the meantime."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from support.clusters import a_cluster, a_tree
from trainyard.api import names
from trainyard.api.fabric import FabricSpec
from trainyard.api.training_job import TrainingJobStatus
from trainyard.cli.measure import Outcome, run
from trainyard.cli.observed import store
from trainyard.contract.measured import Edge, Gang, Measured
from trainyard.kube.client import KubeClient
from trainyard.world.records import Fabric, Job, World

JOB = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND_JOB,
    "metadata": {"name": "measure-1", "namespace": "team"},
    "spec": {"nodes": 2},
}


@pytest.mark.parametrize("keep", [False, True])
async def test_a_job_that_is_made_after_the_interruption_is_taken_away_unless_it_is_to_be_kept(keep: bool) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()
    deleted: list[object] = []

    async def create(request: web.Request) -> web.Response:
        made = await request.json()
        asked.set()
        await goes_on.wait()
        return web.json_response({**made, "metadata": {**made["metadata"], "uid": "uid-1"}}, status=201)

    async def delete(request: web.Request) -> web.Response:
        deleted.append(json.loads(await request.read())["preconditions"])
        return web.json_response({"kind": "Status", "status": "Success"})

    app = web.Application()
    jobs = f"/apis/{names.API_VERSION}/namespaces/team/trainingjobs"
    app.router.add_post(jobs, create)
    app.router.add_delete(f"{jobs}/measure-1", delete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with KubeClient(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
        running = asyncio.create_task(run(client, JOB, 60.0, keep=keep, say=lambda _: None))
        await asyncio.wait_for(asked.wait(), 10)
        running.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    await runner.cleanup()
    assert deleted == ([] if keep else [{"uid": "uid-1"}])


@pytest.mark.parametrize(
    ("current", "said"),
    [
        (
            {"spec": {"kind": "carrier-pigeon"}},
            "Not stored: the Fabric lab makes no sense any more: spec.kind: ",
        ),
        (
            {"spec": {}, "status": {"observed": {"links": [{"level": "leaf", "bandwidth": 1.0, "by": "telepathy"}]}}},
            "Not stored: a newer operator wrote the table of the Fabric lab; use its plugin.",
        ),
        ({"spec": {}}, "Stored in the Fabric lab, "),
    ],
    ids=["wrong", "newer", "plain"],
)
async def test_a_measurement_is_stored_in_a_table_that_is_understood_and_no_other_is_overwritten(
    current: dict[str, object], said: str
) -> None:
    written: list[object] = []
    meta = {"name": "lab", "uid": "uid", "resourceVersion": "8"}

    async def read(_: web.Request) -> web.Response:
        return web.json_response({"apiVersion": names.API_VERSION, "kind": "Fabric", "metadata": meta, **current})

    async def write(request: web.Request) -> web.Response:
        written.append(json.loads(await request.read()))
        return web.json_response({"metadata": meta})

    app = web.Application()
    app.router.add_get(f"/apis/{names.API_VERSION}/fabrics/lab", read)
    app.router.add_patch(f"/apis/{names.API_VERSION}/fabrics/lab/status", write)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    nodes = a_cluster()
    job = Job("team", "measure-1", "uid-1", 1, "1", 0.0, None, TrainingJobStatus())
    outcome = Outcome(job, tuple(nodes), Measured(Gang(8, 1, "nccl", 2), (), (Edge(0, 20e6, 1),)))
    world = World(nodes=nodes, fabrics={"lab": Fabric("lab", FabricSpec(), "uid", "7")})
    async with KubeClient(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
        sentence = await store(client, world, a_tree(nodes), outcome, 1_000_000.0)
    await runner.cleanup()
    assert sentence.startswith(said)
    assert len(written) == (1 if said.startswith("Stored") else 0)
