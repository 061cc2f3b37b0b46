"""The operator's client and the real launcher, beside each other: the contract as both of them read it."""

import asyncio
import time

from support.api import wait_until
from support.launching import POD_UID, launched
from trainyard.contract import env, requests
from trainyard.contract.exits import Exit
from trainyard.contract.status import Status
from trainyard.kube.launchers import LauncherClient
from trainyard.world.records import Membership, Pod

OPERATOR_KEY = b"o" * 32
POD = Pod(
    namespace="lab",
    name="train-0",
    uid=POD_UID,
    created=0.0,
    node="node-0",
    phase="Running",
    requests={},
    membership=Membership("job-uid", 1, 0, 0, "node-0", ""),
)


async def test_a_real_launcher_answers_obeys_its_own_operator_and_yields(tmp_path):
    key = tmp_path / "control-key"
    key.write_bytes(requests.job_key(OPERATOR_KEY, POD.membership.job_uid))
    script = "step(1); until_stopped(); save_and_leave(1)"
    with launched(tmp_path, script, environment={env.CONTROL_KEY_FILE: str(key)}) as launcher:
        address = "127.0.0.1", launcher.port
        async with (
            LauncherClient(OPERATOR_KEY, address=lambda _: address) as operator,
            LauncherClient(b"x" * 32, address=lambda _: address) as stranger,
        ):

            async def status():
                return await operator.status(POD)

            said = await wait_until(status, lambda s: isinstance(s, Status) and s.step == 1, what="the first step")
            assert (said.pod_uid, said.attempt, said.node_rank) == (POD_UID, 1, 0)
            stop = requests.Stop(attempt=1, deadline=time.time() + 20, reason="Preempted")
            refused = await stranger.stop(POD, stop)
            assert "HTTP 403" in refused.error
            taken = await operator.stop(POD, stop)
            assert isinstance(taken, Status)
            assert taken.notice_reason == "Preempted"
        assert await asyncio.to_thread(launcher.wait) == Exit.YIELDED
        assert launcher.words.commit.step == 1
