"""The launcher looks at the pod's network before it starts workers: what it found reaches workers, status and metrics."""

import json
import signal
from pathlib import Path

import pytest
from support.launching import a_plan, launched, until
from support.machines import Machine
from trainyard.contract.exits import Exit
from trainyard.contract.network import decode_network

ON = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.machines import GIB, Surroundings
from trainyard_trainer.launch.network import finding
finding.surroundings = lambda: Surroundings(
    root=Path({root!r}), addresses={addresses!r}, address_of=lambda name: {rank0!r},
    source_of=lambda address: {source!r}, shm_bytes=32 * GIB,
)
"""


def on(machine, rank0="10.0.0.1", source="10.0.0.7"):
    """Lets the launcher see a fake machine."""
    tests = str(Path(__file__).parents[1])
    return ON.format(
        tests=tests, root=str(machine.root), addresses=dict(machine.around.addresses), rank0=rank0, source=source
    )


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "machine").interface("eth0", "10.0.0.7")
    return machine.interface("pod-id-link0", "169.254.170.23")


SHOW = """
names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
print("env", json.dumps({name: os.environ.get(name) for name in names}))
print("file", open(os.environ["TRAINYARD_NETWORK_FILE"]).read())
wait_for("gate")
"""


def shown(launcher, word):
    line = next(line for line in launcher.says(word).splitlines() if line.startswith(f"{word} ".encode()))
    return line.partition(b" ")[2]


def test_workers_are_given_what_was_found_and_the_status_says_so(tmp_path, machine):
    machine.gpu(0).hca("mlx5_0").hca("mlx5_bond_0", rate=100)
    machine.write("sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent", "7")
    plan = a_plan(nodes=2)
    with launched(tmp_path, SHOW, plan=plan, before=on(machine), environment={"NCCL_IB_HCA": ""}) as launcher:
        assert json.loads(shown(launcher, "env")) == {
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "=eth0",
            "NCCL_IB_HCA": "=mlx5_0",
        }
        status = launcher.status
        assert status.network is not None
        assert status.network == decode_network(shown(launcher, "file"))
        assert (status.network.interface, status.network.adapters) == ("eth0", ("mlx5_0",))
        launcher.opens("gate")
        assert launcher.wait() == Exit.DONE


def test_what_the_user_sets_is_what_workers_get(tmp_path, machine):
    given = {"GLOO_SOCKET_IFNAME": "eth0,eth0", "NCCL_SOCKET_IFNAME": "eth"}
    machine.gpu(0)
    with launched(tmp_path, SHOW, plan=a_plan(nodes=2), before=on(machine), environment=given) as launcher:
        assert json.loads(shown(launcher, "env")) == {**given, "NCCL_IB_HCA": None}


def test_case_13_a_wrong_interface_ends_the_attempt_before_any_worker_starts(tmp_path, machine):
    given = {"GLOO_SOCKET_IFNAME": "eth9"}
    plan = a_plan(nodes=2)
    with launched(tmp_path, "print('started')", plan=plan, before=on(machine), environment=given) as launcher:
        assert launcher.wait() == Exit.CONFIGURATION
    assert launcher.out == b""
    assert launcher.words.cause == (
        "GLOO_SOCKET_IFNAME: 'eth9' is no interface here: pod train-0 on node-0 has eth0 (10.0.0.7), lo (127.0.0.1, loopback), "
        "pod-id-link0 (169.254.170.23, no other node is reached by it); write eth0, or leave it out"
    )
    assert launcher.words.fault.rank == -1


def test_a_wrong_interface_that_the_job_did_not_say_is_heard_of_and_then_fails_the_node(tmp_path, machine):
    given = {"GLOO_SOCKET_IFNAME": "eth9", "TRAINYARD_GIVEN": "GLOO_SOCKET_IFNAME"}
    before = on(machine) + "from trainyard_trainer.launch import starting\nstarting.HEARD_SECONDS = 3.0\n"
    with launched(tmp_path, "print('started')", plan=a_plan(nodes=2), before=before, environment=given) as launcher:
        status = launcher.reaches(lambda status: status.network is not None)
        assert status.network.stranded
        assert "'eth9' is no interface here" in status.network.faults[0]
        assert launcher.wait() == Exit.PREFLIGHT
    assert launcher.out == b""
    assert launcher.words.cause == status.network.faults[0]


def test_such_a_pod_leaves_at_once_where_it_is_told_to(tmp_path, machine):
    given = {"GLOO_SOCKET_IFNAME": "eth9", "TRAINYARD_GIVEN": "GLOO_SOCKET_IFNAME"}
    with launched(
        tmp_path, "print('started')", plan=a_plan(nodes=2), before=on(machine), environment=given
    ) as launcher:
        launcher.reaches(lambda status: status.network is not None)
        assert launcher.stop(seconds=60.0)[0] == 202
        assert launcher.wait() == Exit.PREFLIGHT


def test_a_machine_that_cannot_be_looked_at_trains_all_the_same(tmp_path, machine):
    before = on(machine) + "def surroundings(): raise RuntimeError('no /sys')\nfinding.surroundings = surroundings\n"
    with launched(tmp_path, "wait_for('gate')", plan=a_plan(nodes=2), before=before) as launcher:
        status = launcher.reaches(lambda status: status.network is not None)
        assert status.network.warnings == ("the network could not be looked at: RuntimeError: no /sys",)
        launcher.opens("gate")
        assert launcher.wait() == Exit.DONE


def test_a_name_server_that_is_slow_keeps_no_signal_waiting(tmp_path, machine):
    before = on(machine) + "import time\nfinding.surroundings = lambda: time.sleep(100)\n"
    with launched(tmp_path, "print('started')", plan=a_plan(nodes=2), before=before) as launcher:
        launcher.reaches(lambda status: status.network is None)
        assert launcher.stop(seconds=0.2)[0] == 202
        assert launcher.wait() == Exit.FAILURE
    assert launcher.out == b""


def test_workers_start_without_what_is_not_found_in_time(tmp_path, machine):
    before = on(machine) + (
        "import time\nfinding.surroundings = lambda: time.sleep(100)\n"
        "from trainyard_trainer.launch import starting\nstarting.FIND_SECONDS = 0.2\n"
    )
    with launched(tmp_path, "print('started')", plan=a_plan(nodes=2), before=before) as launcher:
        assert launcher.wait() == Exit.DONE
    assert b"started" in launcher.out


COMPLAINS = """
if LOCAL == 1:
    print("h:1:1 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.9<54862> with status=12 opcode=0 len=0 vendor err 129 "
          "(Recv) localGid fe80::1 remoteGidsfe80::2 hca mlx5_3", flush=True)
    wait_for("gate")
    sys.exit("RuntimeError: NCCL error")
print("waiting", flush=True)
time.sleep(100)
"""


def test_case_42_what_any_rank_complains_of_is_the_cause_in_status_metrics_and_last_words(tmp_path):
    with launched(tmp_path, COMPLAINS, plan=a_plan(procs=2)) as launcher:
        (trouble,) = launcher.reaches(lambda status: status.trouble).trouble
        assert (trouble.sign, trouble.rank, trouble.device, trouble.peer) == ("FabricError", 1, "mlx5_3", "10.0.0.9")
        metrics = launcher.request("GET", "/metrics")[1].decode()
        assert 'trouble_total{reason="FabricError",device="mlx5_3",peer="10.0.0.9",rank="1"} 1.0' in metrics
        launcher.opens("gate")
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.trouble == trouble
    assert launcher.words.cause.startswith(
        "rank 1 exited 1: RuntimeError: NCCL error; FabricError (mlx5_3, peer 10.0.0.9): "
    )


def test_a_script_that_reports_a_failed_preflight_leaves_by_its_code(tmp_path):
    script = """
from trainyard.contract.preflight import PreflightResult
say.preflight(PreflightResult("failed", "node-3: 1 MB/s", 2.0, 1e6, 1e8, ("node-3",), (0.0, 1e6)))
say.failed(RuntimeError("node-3: 1 MB/s"), preflight=True)
sys.exit(1)
"""
    with launched(tmp_path, script) as launcher:
        assert launcher.wait() == Exit.PREFLIGHT
    words = launcher.words
    assert words.cause == "RuntimeError: node-3: 1 MB/s"
    assert (words.preflight.finding, words.preflight.nodes) == ("failed", ("node-3",))
    assert words.preflight.edge_bytes_per_second == (0.0, 1e6)


def test_a_preflight_that_passed_is_in_the_status(tmp_path):
    script = """
from trainyard.contract.preflight import PreflightResult
say.preflight(PreflightResult("passed", "as fast as predicted", 0.5, 9e7, 1e8))
wait_for("gate")
"""
    with launched(tmp_path, script) as launcher:
        status = launcher.reaches(lambda status: status.preflight)
        assert (status.preflight.finding, status.preflight.bus_bandwidth) == ("passed", 9e7)
        assert b'trainyard_trainer_preflight{finding="passed"} 1.0' in launcher.request("GET", "/metrics")[1]
        launcher.opens("gate")
        assert launcher.wait() == Exit.DONE
    assert launcher.words.preflight is None


def test_case_3_another_attempt_in_the_same_pod_looks_again(tmp_path, machine):
    from trainyard.contract import requests
    from trainyard.contract.plan import encode

    script = """
if os.environ["TORCHELASTIC_RUN_ID"].endswith("-1"):
    time.sleep(100)
print("second", os.environ.get("GLOO_SOCKET_IFNAME"), flush=True)
wait_for("gate")
"""
    before = on(machine) + (
        "first = finding.surroundings()\nseen = []\n"
        "def surroundings():\n"
        "    seen.append(1)\n"
        "    changed = {**first.addresses, 'eth0': ()} if len(seen) > 1 else first.addresses\n"
        "    return replace(first, addresses={**changed, 'eth1': ('10.0.0.8',)} if len(seen) > 1 else changed)\n"
        "finding.surroundings = surroundings\n"
    )
    machine.interface("eth1")
    with launched(tmp_path, script, plan=a_plan(nodes=2), before=before) as launcher:
        launcher.reaches(lambda status: status.network is not None)
        assert launcher.post(requests.PATH_PLAN, encode(a_plan(nodes=2, attempt=2)).encode())[0] == 202
        assert b"second eth1" in launcher.says("second")
        until(lambda: launcher.status.attempt == 2)
        changed = "the interface that reaches rank 0 was eth0, and is eth1"
        assert launcher.status.warnings == (changed,)
        assert changed in launcher.status.network.warnings, "where the operator looks for what to tell"
        launcher.signal(signal.SIGKILL)


def test_a_script_that_starts_after_the_notice_is_told_too(tmp_path, machine):
    before = (
        on(machine)
        + "import time\nready = finding.surroundings()\ndef later():\n    time.sleep(0.5)\n    return ready\n"
    )
    before += "finding.surroundings = later\n"
    with launched(tmp_path, "time.sleep(100)", plan=a_plan(nodes=2), before=before) as launcher:
        launcher.reaches(lambda status: status.network is None)
        assert launcher.stop(seconds=15.0)[0] == 202
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.cause == "asked to stop (preempted), and ended by that signal without a save"
