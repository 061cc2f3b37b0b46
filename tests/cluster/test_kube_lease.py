"""Who leads, by a Lease on a real API server, in terms a fifth as long as usual."""

import asyncio
import secrets
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from support import kube
from support.api import PATIENCE_SECONDS
from trainyard.kube.lease import Elector, Terms

QUICK = Terms(lease=3.0, renew=2.0, retry=0.1)
ENDLESS = Terms(lease=3600.0, renew=3000.0, retry=0.1)
"""Nobody lives to see such a lease run out: who takes it over was given it."""
NAMESPACE = "default"

CANDIDATE = """
import asyncio, sys
from pathlib import Path
from trainyard.kube.client import KubeClient
from trainyard.kube.lease import Elector, Terms

async def main(kubeconfig, name):
    async with await KubeClient.from_kubeconfig(Path(kubeconfig)) as client:
        async with Elector(client, "default", name, "frozen", Terms(3.0, 2.0, 0.1)) as elector:
            await elector.acquired.wait()
            print("acquired", flush=True)
            while elector.leading:
                await asyncio.sleep(0.01)
            print("lapsed", flush=True)
            await elector.lost.wait()
            print("lost", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def lease_name() -> str:
    return f"test-{secrets.token_hex(4)}"


async def holder(api, name: str) -> str:
    lease = await api.find("Lease", name, NAMESPACE)
    return lease["spec"].get("holderIdentity", "") if lease else ""


async def test_as_long_as_one_renews_no_other_leads(control_plane, api, lease_name):
    async with (
        kube.a_client(control_plane.kubeconfig) as client,
        Elector(client, NAMESPACE, lease_name, "one", QUICK) as one,
    ):
        await asyncio.wait_for(one.acquired.wait(), PATIENCE_SECONDS)
        async with Elector(client, NAMESPACE, lease_name, "two", QUICK) as two:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(two.acquired.wait(), QUICK.lease * 1.2)
            assert (one.leading, two.leading) == (True, False)
            assert await holder(api, lease_name) == "one"


async def test_a_leader_that_leaves_is_followed_without_a_wait(control_plane, api, lease_name):
    async with kube.a_client(control_plane.kubeconfig) as client:
        async with AsyncExitStack() as second:
            async with Elector(client, NAMESPACE, lease_name, "one", ENDLESS) as one:
                await asyncio.wait_for(one.acquired.wait(), PATIENCE_SECONDS)
                two = await second.enter_async_context(Elector(client, NAMESPACE, lease_name, "two", ENDLESS))
            assert not one.leading
            await asyncio.wait_for(two.acquired.wait(), PATIENCE_SECONDS)
            assert await holder(api, lease_name) == "two"
        lease = await api.get("Lease", lease_name, NAMESPACE)
        assert lease["spec"]["leaseTransitions"] == 1
        assert lease["spec"].get("holderIdentity", "") == ""


async def test_a_leader_that_leaves_before_it_hears_of_its_renewal_gives_the_lease_back(control_plane, api, lease_name):
    async with kube.a_client(control_plane.kubeconfig) as client:
        async with Elector(client, NAMESPACE, lease_name, "one", replace(ENDLESS, retry=2000.0)) as one:
            await asyncio.wait_for(one.acquired.wait(), PATIENCE_SECONDS)
            renewed = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
            await api.patch("Lease", lease_name, NAMESPACE, renewed)
        assert await holder(api, lease_name) == ""


async def test_of_many_that_come_at_once_one_leads(control_plane, lease_name):
    async with kube.a_client(control_plane.kubeconfig) as client, AsyncExitStack() as all_of_them:
        electors = [
            await all_of_them.enter_async_context(Elector(client, NAMESPACE, lease_name, f"e{n}", QUICK))
            for n in range(5)
        ]
        await asyncio.wait(
            [asyncio.create_task(e.acquired.wait()) for e in electors],
            return_when="FIRST_COMPLETED",
            timeout=PATIENCE_SECONDS,
        )
        assert sum(e.leading for e in electors) == 1


async def test_a_leader_that_is_frozen_is_replaced_and_knows_it_when_it_thaws(control_plane, api, lease_name):
    arguments = [sys.executable, "-c", CANDIDATE, str(control_plane.kubeconfig), lease_name]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"acquired\n"
        async with (
            kube.a_client(control_plane.kubeconfig) as client,
            Elector(client, NAMESPACE, lease_name, "successor", QUICK) as successor,
        ):
            process.send_signal(signal.SIGSTOP)
            await asyncio.wait_for(successor.acquired.wait(), PATIENCE_SECONDS)
            process.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"lapsed\n"
            assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"lost\n"
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0
            # Leaving, it gave back nothing that was not its own.
            assert await holder(api, lease_name) == "successor"
            assert successor.leading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_lease_that_is_taken_away_is_lost(control_plane, api, lease_name):
    async with (
        kube.a_client(control_plane.kubeconfig) as client,
        Elector(client, NAMESPACE, lease_name, "one", QUICK) as one,
    ):
        await asyncio.wait_for(one.acquired.wait(), PATIENCE_SECONDS)
        await api.patch("Lease", lease_name, NAMESPACE, {"spec": {"holderIdentity": "usurper"}})
        await asyncio.wait_for(one.lost.wait(), PATIENCE_SECONDS)
        assert not one.leading
    assert await holder(api, lease_name) == "usurper"
