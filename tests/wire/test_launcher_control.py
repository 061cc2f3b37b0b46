"""The launcher's endpoint: what it answers, whom it refuses, and that no client can hold it up."""

import http.client
import json
import os
import signal
import socket
import time
from contextlib import ExitStack, contextmanager
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.launching import KEY, POD_UID, a_plan, launched, until
from trainyard.contract import requests
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis, Member, digest, encode
from trainyard.contract.status import decode_status
from trainyard_trainer.launch import control
from trainyard_trainer.launch.control import Control

TRAINING = "step(1); save(1); step(2); until_stopped(); save_and_leave(2)"
STOP = requests.encode_stop(requests.Stop(attempt=1, deadline=time.time() + 600, reason="preempted"))


@contextmanager
def training(folder, script=TRAINING, **changes):
    with launched(folder, script, **changes) as launcher:
        launcher.reaches(lambda status: status.step == 2)
        yield launcher


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One launcher for all requests that it is to refuse: none of them may change anything."""
    with training(tmp_path_factory.mktemp("launcher")) as launcher:
        yield launcher
        assert launcher.status.notice_time is None
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.YIELDED


def test_a_status_says_who_speaks_and_how_far_it_is(running):
    status = running.status
    assert (status.pod_uid, status.attempt, status.node_rank) == (POD_UID, 1, 0)
    assert status.plan_digest == digest(a_plan())
    assert (status.phase, status.step, status.loss) == ("training", 2, 2.5)
    assert status.tokens_per_second == pytest.approx(100 / 0.01)
    assert (status.commit.step, status.commit.bytes, status.commit.path) == (1, 1000, "/ckpt/1")
    assert 0.5 <= status.durable_seconds <= 0.51
    assert status.first_step_time <= time.time()


def test_metrics_are_there_for_each_rank(running):
    code, body = running.request("GET", "/metrics")
    lines = body.decode().splitlines()
    assert code == 200
    assert 'trainyard_trainer_step{rank="0"} 2' in lines
    assert 'trainyard_trainer_loss{rank="0"} 2.5' in lines
    assert 'trainyard_trainer_worker_up{rank="0"} 1.0' in lines
    assert 'trainyard_trainer_checkpoint_bytes{rank="0"} 1000' in lines
    assert 'trainyard_trainer_phase{rank="0",phase="train"} 1.0' in lines


def test_it_is_healthy(running):
    assert running.request("GET", "/healthz") == (200, b"ok\n")


def test_a_stop_is_accepted_and_answered_with_the_status(tmp_path):
    with training(tmp_path, TRAINING.replace("save_and", "wait_for('told-twice'); save_and")) as launcher:
        code, answer = launcher.stop(reason="preempted by U")
        status = decode_status(json.dumps(answer))
        assert code == 202
        assert (status.phase, status.notice_reason) == ("stopping", "preempted by U")
        code, again = launcher.stop(reason="once more")
        assert code == 202
        assert again["notice_reason"] == "preempted by U"
        assert again["notice_time"] == status.notice_time
        launcher.opens("told-twice")
        assert launcher.wait() == Exit.YIELDED


def test_a_save_is_asked_of_the_workers_and_training_goes_on(tmp_path):
    script = """
step(1)
asked = os.environ["TRAINYARD_CHECKPOINT_FILE"]
while not (os.path.exists(asked) and json.load(open(asked))["number"] == 2): time.sleep(0.01)
step(2); save(2)
until_stopped(); save_and_leave(2)
"""
    body = requests.encode_checkpoint(requests.Checkpoint(attempt=1, reason="drain soon"))
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        first = time.time() + 20
        assert launcher.post(requests.PATH_CHECKPOINT, body, expires=first)[0] == 202
        code, answer = launcher.post(requests.PATH_CHECKPOINT, body, expires=first)
        assert (code, answer["error"]) == (403, "obeyed before: a save that is asked for once more is signed anew")
        assert launcher.post(requests.PATH_CHECKPOINT, body, expires=first + 1)[0] == 202
        assert launcher.reaches(lambda status: status.commit).commit.step == 2
        assert launcher.status.notice_time is None
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED


def test_what_was_obeyed_is_known_while_it_could_be_replayed_and_no_longer(monkeypatch):
    monkeypatch.setattr(control, "MOST_OBEYED", 2)
    server = Control(0, KEY, POD_UID, lambda question: control.error(HTTPStatus.OK, ""))
    try:
        assert server.obeys_once("a", now=100.0)
        assert not server.obeys_once("a", now=159.0)
        assert server.obeys_once("b", now=130.0)
        assert not server.obeys_once("c", now=130.0), "no more than so many are kept"
        assert server.obeys_once("c", now=161.0)
    finally:
        server.shutdown()
        server.server_close()


def test_an_unsigned_request_is_refused(running):
    code, body = running.request("POST", requests.PATH_STOP, STOP)
    assert (code, json.loads(body)) == (401, {"error": "X-Trainyard-Signature: missing"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": b"another"}, "the signature does not verify"),
        ({"path": requests.PATH_CHECKPOINT}, "the signature does not verify"),
        ({"body": b"{}"}, "the signature does not verify"),
        ({"pod_uid": "another-pod"}, "signed for pod another-pod, not for this one"),
        ({"expires": time.time() - 1}, "expired, or the clocks differ"),
        ({"expires": time.time() + 3600}, "expired, or the clocks differ"),
        ({"expires": float("nan")}, "expired, or the clocks differ"),
        ({"expires": float("inf")}, "expired, or the clocks differ"),
    ],
)
def test_a_request_that_was_not_signed_for_this_is_refused(running, changes, why):
    code, answer = running.post(requests.PATH_STOP, STOP, **changes)
    assert code == 403
    assert answer["error"].startswith(why)


def test_a_stop_of_another_attempt_is_a_conflict(running):
    for attempt in (0, 2):
        code, answer = running.stop(attempt=attempt)
        assert code == 409
        assert answer["error"] == f"attempt: {attempt} was meant, but this is attempt 1"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", "Stop: not JSON"),
        (b"[]", "Stop: expected an object, got list"),
        (b'{"attempt": 1, "reason": "r"}', "Stop.deadline: missing"),
        (b'{"attempt": "1", "deadline": 1, "reason": "r"}', "Stop.attempt: expected int, got str"),
        (b'{"attempt": 1, "deadline": NaN, "reason": "r"}', "Stop: not JSON"),
        (b'{"attempt": 1, "deadline": 1' + b"0" * 400 + b', "reason": "r"}', "Stop.deadline: expected a finite number"),
        (b'{"attempt": 1, "deadline": 20, "reason": "a duration?"}', "deadline: passed "),
        (b"[" * 60_000, "Stop: not JSON"),
        (b"\xff\xfe", "Stop: not JSON"),
    ],
)
def test_a_malformed_request_is_answered_with_the_field(running, body, names):
    code, answer = running.post(requests.PATH_STOP, body)
    assert (code, answer["error"][: len(names)]) == (400, names)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/status/../stop", 404),
        ("GET", requests.PATH_STOP, 405),
        ("POST", requests.PATH_STATUS, 405),
        ("POST", "/v1/shell", 404),
        ("PUT", requests.PATH_STOP, 501),
    ],
)
def test_what_is_not_there_says_so(running, method, path, code):
    assert running.request(method, path)[0] == code


NEXT = a_plan(attempt=2, rendezvous_port=29777)


def test_a_later_plan_is_taken_in_place_with_the_identity_that_it_gives(tmp_path):
    script = """
from trainyard.contract.plan import decode
plan = decode(open(os.environ["TRAINYARD_PLAN"]).read())
assert not os.path.exists(STOP)
print("attempt", plan.attempt, RANK, os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_RUN_ID"])
step(1); step(2); until_stopped(); save(2, plan.attempt); say.stop_acknowledged(2); sys.exit(75)
"""
    later = a_plan(nodes=2, attempt=2, members=(Member(5, "node-b"), Member(0, "node-a")), rendezvous_port=29777)
    with training(tmp_path, script) as launcher:
        code, answer = launcher.post(requests.PATH_PLAN, encode(later).encode())
        assert (code, answer["phase"]) == (202, "stopping")
        status = launcher.reaches(lambda status: status.attempt == 2 and status.step == 2)
        assert (status.node_rank, status.plan_digest, status.fault) == (1, digest(later), None)
        assert launcher.stop(attempt=1)[0] == 409
        assert launcher.stop(attempt=2)[0] == 202
        assert launcher.wait() == Exit.YIELDED
    assert b"attempt 1 0 29500 job-uid-1" in launcher.out
    assert b"attempt 2 1 29777 job-uid-2" in launcher.out
    assert (launcher.words.attempt, launcher.words.node_rank, launcher.words.worker_exits) == (2, 1, (75,))


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (a_plan(rendezvous_port=29777), "attempt: 1 is not after 1"),
        (a_plan(attempt=2, procs=2), "processes_per_node: 2, and this pod was made for 1"),
        (a_plan(attempt=2, uid="another"), "uid: the plan is of job lab/train (another)"),
        (a_plan(attempt=2, members=(Member(3, "node-c"),)), "members: pod train-0 is not a member of attempt 2"),
    ],
)
def test_a_plan_that_is_not_for_this_pod_is_a_conflict(running, plan, why):
    code, answer = running.post(requests.PATH_PLAN, encode(plan).encode())
    assert (code, answer["error"][: len(why)]) == (409, why)


def test_a_plan_that_contradicts_itself_is_malformed(running):
    code, answer = running.post(requests.PATH_PLAN, encode(a_plan(attempt=2, mesh=(Axis("shard", 3),))).encode())
    assert code == 400
    assert answer["error"] == "Plan.mesh: its axes multiply to 3, but members x processes is 1"


def test_a_pod_that_was_asked_to_stop_takes_no_later_plan(tmp_path):
    slow = TRAINING.replace("save_and_leave", "wait_for('refused'); save_and_leave")
    with training(tmp_path, slow) as launcher:
        assert launcher.stop()[0] == 202
        code, answer = launcher.post(requests.PATH_PLAN, encode(NEXT).encode())
        assert (code, answer["error"]) == (409, "this pod was asked to stop, and leaves")
        launcher.opens("refused")
        assert launcher.wait() == Exit.YIELDED


def test_a_stop_that_comes_between_two_attempts_is_obeyed(tmp_path):
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); step(1); step(2); time.sleep(100)"
    before = "import trainyard_trainer.launch.supervisor as s; s.TERM_SECONDS = 1"
    with training(tmp_path, script, before=before) as launcher:
        assert launcher.post(requests.PATH_PLAN, encode(NEXT).encode())[0] == 202
        assert launcher.stop(attempt=1)[0] == 409
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.attempt == 1
    assert launcher.words.cause == "asked to stop (SIGTERM), and ended by that signal without a save"


def raw(launcher, text):
    """Send bytes as they are; what comes back until the launcher hangs up."""
    with socket.create_connection(("127.0.0.1", launcher.port), timeout=15) as client:
        client.sendall(text)
        answer = b""
        try:
            while chunk := client.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    ("length", "code"),
    [(b"2000000", b"413"), (b"-1", b"411"), (b"ten", b"411"), (b"9" * 5000, b"411"), (b"\xb2", b"411")],
)
def test_a_body_of_no_honest_length_is_not_read(running, length, code):
    assert code in raw(running, b"POST /v1/stop HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n").split(b"\r\n")[0]


def test_a_chunked_body_is_not_read(running):
    request = b"POST /v1/stop HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert b" 411 " in raw(running, request).split(b"\r\n")[0]


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=300))
def test_noise_is_survived(running, noise):
    raw(running, noise + b"\r\n\r\n")
    assert running.request("GET", "/healthz")[0] == 200


def test_clients_that_drip_do_not_shut_others_out_and_are_cut(running):
    with ExitStack() as stack:
        drips = [stack.enter_context(socket.create_connection(("127.0.0.1", running.port))) for _ in range(50)]
        for drip in drips:
            drip.sendall(b"POST /v1/stop HTTP/1.1\r\nX-Slow: ")
        assert running.status.step == 2

        def all_cut():
            for drip in drips:
                try:
                    drip.send(b"a")
                except OSError:
                    continue
                return False
            return True

        until(all_cut, "the end of all drips")
        assert running.status.step == 2


def test_a_client_that_hangs_does_not_keep_it_from_leaving(tmp_path):
    before = """
import trainyard_trainer.launch.control as c
c.CONNECTION_SECONDS = 1000
c._Handler.timeout = None
"""
    with (
        training(tmp_path, before=before) as launcher,
        socket.create_connection(("127.0.0.1", launcher.port)) as client,
    ):
        client.sendall(b"GET /v1/status")
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED


def test_thawed_it_does_not_obey_a_request_that_has_expired_meanwhile(tmp_path):
    with training(tmp_path) as launcher:
        launcher.signal(signal.SIGSTOP)
        headers = requests.sign(KEY, "POST", requests.PATH_STOP, STOP, POD_UID, time.time() + 0.3)
        connection = http.client.HTTPConnection("127.0.0.1", launcher.port, timeout=10)
        connection.request("POST", requests.PATH_STOP, STOP, headers)
        sent = time.time()
        until(lambda: time.time() > sent + 0.4, "the expiry")
        launcher.signal(signal.SIGCONT)
        assert connection.getresponse().status == 403
        connection.close()
        assert launcher.status.notice_time is None
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED


def test_without_a_key_it_trains_and_obeys_nobody(tmp_path):
    with training(tmp_path, environment={"TRAINYARD_CONTROL_KEY_FILE": os.devnull}) as launcher:
        assert launcher.stop()[0] == 403
        assert "no control key" in launcher.status.warnings[0]
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.YIELDED


def test_a_worker_that_floods_its_report_pipe_holds_up_nobody(tmp_path):
    script = """
step(1); step(2)
fd = int(os.environ["TRAINYARD_REPORT_FD"])
os.set_blocking(fd, True)
while not os.path.exists(STOP): os.write(fd, b"x" * 60_000 + b"\\n" + b"{}\\n" * 1000)
save_and_leave(2)
"""
    with training(tmp_path, script) as launcher:
        unreadable = b'trainyard_trainer_unreadable_reports_total{rank="0"} '
        until(lambda: unreadable in launcher.request("GET", "/metrics")[1], "the count")
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED
