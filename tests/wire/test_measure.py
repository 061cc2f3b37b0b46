"""`kubectl trainyard measure` that is interrupted while the API server is about to make its job."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from trainyard.api import names
from trainyard.cli.measure import run
from trainyard.kube.client import KubeClient

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
