"""The operator's client and the real launcher, beside each other: the contract as both of them read it."""

import asyncio
import time

from support.api import wait_until
from support.launching import POD_UID, a_plan, launched
from trainyard.contract import env, requests
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Member, decode, digest, encode
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


async def test_a_real_launcher_goes_over_to_the_plan_that_its_own_operator_gives_it(tmp_path):
    key = tmp_path / "control-key"
    key.write_bytes(requests.job_key(OPERATOR_KEY, POD.membership.job_uid))
    script = """
if os.environ["TORCHELASTIC_RUN_ID"].endswith("-1"): step(1); save(1); wait_for("asked"); raise RuntimeError("a bad day")
step(2); until_stopped(); save_and_leave(2)
"""
    members = tuple(Member(n, f"{'node' * 12}-{n:05}") for n in range(5000))
    later = encode(a_plan(attempt=2, nodes=5000, members=members)).encode()
    with launched(tmp_path, script, environment={env.CONTROL_KEY_FILE: str(key)}, stays=60) as launcher:
        address = "127.0.0.1", launcher.port
        async with (
            LauncherClient(OPERATOR_KEY, address=lambda _: address) as operator,
            LauncherClient(b"x" * 32, address=lambda _: address) as stranger,
        ):

            async def status():
                return await operator.status(POD)

            await wait_until(status, lambda s: isinstance(s, Status), what="an answer")
            launcher.opens("asked")
            said = await wait_until(status, lambda s: isinstance(s, Status) and s.ended is not None, what="the end")
            assert (said.ended.attempt, said.ended.exit, said.ended.commit.step) == (1, Exit.FAILURE, 1)
            refused = await stranger.plan(POD, later)
            assert (refused.refused, "HTTP 403" in refused.error) == (True, True)
            assert isinstance(await operator.plan(POD, later), Status)
            said = await wait_until(status, lambda s: isinstance(s, Status) and s.step == 2, what="the next attempt")
            assert (said.attempt, said.plan_digest, said.ended) == (2, digest(decode(later)), None)
            assert isinstance(await operator.plan(POD, later), Status), "sent once more, it is what the launcher does"
            other = encode(a_plan(attempt=2, rendezvous_port=29501)).encode()
            refused = await operator.plan(POD, other)
            assert (refused.refused, "attempt: 2 is not after 2" in refused.error) == (True, True)
        launcher.process.kill()
