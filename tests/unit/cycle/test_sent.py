"""What a step sends stands in the job's status, as rank 0 counted it."""

from dataclasses import replace

from support.pretend import Pretend
from trainyard.contract.sent import Sent

SENT = Sent(
    data={"control": 40.0, "gradients": 4096.0},
    predicted_bytes=4136.0,
    wire_bytes=7000.4,
    predicted_wire_bytes=7000.4,
    level_bytes={"leaf": 1000.4, "spine": 6000.0},
    level_seconds={"leaf": 0.0123456, "spine": 0.5},
    communication_seconds=0.51,
    exposed_seconds=0.25,
    step_seconds=1.0,
)


def running(sent=None):
    cluster = Pretend(sent=sent).with_nodes().with_class("low", 1)
    cluster.submit("v", 2, priorityClassName="low")
    return cluster.until(lambda: cluster.status("v").progress is not None).status("v").progress


def test_a_job_says_what_a_step_sends_by_class_and_by_level():
    sent = running(SENT).sent
    assert {one.data: one.bytes for one in sent.data} == {"control": 40, "gradients": 4096}
    assert (sent.bytes, sent.predicted_bytes, sent.wire_bytes, sent.predicted_wire_bytes) == (4136, 4136, 7000, 7000)
    assert [(one.level, one.wire_bytes, one.seconds) for one in sent.levels] == [
        ("leaf", 1000, 0.012346),
        ("spine", 6000, 0.5),
    ]
    assert (sent.communication_seconds, sent.exposed_seconds, sent.step_seconds) == (0.51, 0.25, 1.0)


def test_seconds_that_were_not_measured_are_left_out():
    levels = running(replace(SENT, level_seconds={"leaf": 0.25})).sent.levels
    assert [(one.level, one.seconds) for one in levels] == [("leaf", 0.25), ("spine", None)]


def test_a_script_of_ones_own_counts_nothing():
    assert running().sent is None


def test_a_sum_that_no_field_holds_is_the_most_that_it_can_hold():
    most = {f"name-{n}": 2.0**70 for n in range(8)}
    sent = running(Sent(data=most, wire_bytes=2.0**70, level_bytes=most)).sent
    figures = {sent.bytes, sent.wire_bytes, *(one.bytes for one in sent.data), *(one.wire_bytes for one in sent.levels)}
    assert figures == {2**63 - 1}
