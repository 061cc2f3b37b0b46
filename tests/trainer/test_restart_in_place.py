"""A killed worker costs neither a pod nor a step: the next attempt of the real trainer, in the same two pods."""

import json
import os
import signal
import sys
from contextlib import ExitStack

import pytest
from support.launching import a_plan, launched, until
from support.processes import TINY, plan_file, run
from trainyard.contract import env, requests
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Checkpoints, Lineage, Mark, encode
from trainyard_trainer.train import main

STEPS = 24
SLOW = 240.0
"""Two launchers import torch, each for its worker: seconds on a machine of its own, minutes on one that others use."""
TRAINER = {**TINY, "steps": STEPS}
COMMAND = [sys.executable, "-m", "trainyard_trainer.train"]


def losses(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}


@pytest.mark.timeout(600)
def test_the_next_attempt_in_the_same_pods_learns_what_an_undisturbed_one_does(tmp_path):
    alone = tmp_path / "undisturbed"
    alone.mkdir()
    environment = plan_file(tmp_path / "alone.json", alone, ranks=2, trainer=TRAINER, every_steps=2)
    run(lambda rank: main([]), 2, tmp_path / "ranks", environments=dict.fromkeys(range(2), environment))

    folder = tmp_path / "checkpoints"
    given = {"nodes": 2, "trainer": TRAINER, "checkpoints": Checkpoints(str(folder), every_steps=2, grace_seconds=30.0)}
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost train-0.train train-1.train\n")
    under = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    with ExitStack() as stack:
        pods = []
        for number in range(2):
            place = tmp_path / f"pod-{number}"
            place.mkdir()
            who = {env.POD: f"train-{number}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            plan = a_plan(rendezvous_port=29601, **given)
            pod = launched(place, plan=plan, command=COMMAND, environment=who, under=under, stays=60)
            pods.append(stack.enter_context(pod))
        until(lambda: list(folder.glob("attempt-0001/*/commit.json")), "a checkpoint", seconds=SLOW)
        for pod in pods:
            pod.reaches(lambda status: status.step)
        (parent, *_, worker) = sorted(pods[1].children())
        os.kill(worker, signal.SIGKILL)
        said = [pod.reaches(lambda status: status.ended) for pod in pods]
        assert said[1].ended.fault.signal == "SIGKILL"
        later = a_plan(attempt=2, rendezvous_port=29602, lineage=Lineage((Mark(1, -1),)), **given)
        for pod in pods:
            assert pod.post(requests.PATH_PLAN, encode(later).encode())[0] == 202
        assert parent in pods[1].children(), "nothing was imported again"
        assert [pod.process.wait(SLOW) for pod in pods] == [Exit.DONE, Exit.DONE]
    assert [pod.words.attempt for pod in pods] == [2, 2]
    assert pods[0].words.resumed.attempt == 1
    assert losses(folder) == losses(alone)
    assert set(losses(folder)) == set(range(1, STEPS + 1))
