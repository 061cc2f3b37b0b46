"""The figures of the network: what needs no lab, and what is made of what the lab's pods write."""

import json
import os

import pytest
from trainyard_lab.fabric import Topology

from benchmarks import network
from benchmarks.fabric import Ran

NODES = tuple(node.name for node in Topology().nodes)
APART = (0, 4, 2, 6, 1, 5, 3, 7)


def a_log(planned: float, random: list[float]) -> str:
    orders = [list(range(8)), list(APART), list(APART)][: len(random)]
    said = {
        "mebibytes": 16.0,
        "planned": planned,
        "random": random,
        "orders": orders,
        "alternating": 5.0,
        "apart": list(APART),
    }
    return f"a warning\n{json.dumps(said)}\n"


def test_where_there_can_be_no_lab_it_says_so_and_prints_what_needs_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.main(["--json"]) == network.NO_LAB
    said = capsys.readouterr()
    assert [figure["name"] for figure in json.loads(said.out)] == ["derive_1024_seconds"]
    assert "the lab needs root" in said.err


def test_the_planned_order_is_compared_with_the_median_of_the_random_ones_and_with_the_worst() -> None:
    (found,) = network.read(Ran(NODES, a_log(1.3, [1.4, 5.2, 4.0]), {}), Topology())
    assert found.over_random == pytest.approx(1.3 / 4.0)
    assert found.worst == 5.2
    assert found.error == pytest.approx(abs(found.modelled[0] - 1.3) / 1.3)


def test_the_model_knows_that_an_order_which_leaves_a_spine_at_every_step_shares_its_uplink_four_times() -> None:
    (found,) = network.read(Ran(NODES, a_log(1.3, [1.4]), {}), Topology())
    assert found.modelled[-1] / found.modelled[0] == pytest.approx(4.0, rel=0.01)
    assert found.modelled[1] == found.modelled[0]


def test_the_time_of_the_preflight_is_what_the_status_says() -> None:
    status = {"network": {"preflight": {"finding": "passed", "seconds": 2.5, "message": "fast"}}}
    figure = network.preflight(Ran(NODES, "", status))
    assert (figure.value, figure.holds, figure.against) == (2.5, True, "8 pods; fast")
    with pytest.raises(network.CannotRun, match="says nothing of a preflight"):
        network.preflight(Ran(NODES, "", {}))
