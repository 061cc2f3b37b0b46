"""The trainer's figures: which there are, the plans that are measured, and what the model says of a sum by levels."""

from dataclasses import replace

import pytest
from support.gradients import places
from trainyard.planner.machines import NETWORKS
from trainyard_lab.fabric import MBIT, Topology
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.report import SentInStep, StepDone

from benchmarks import trainer, trainer_network
from benchmarks.figures import Figure, as_table
from benchmarks.trainer_network import DDP, PLANNED, modelled, over_said, plan_of
from benchmarks.trainer_step import Moment, loader_ratio


def test_a_figure_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        trainer.main(["step_over_bear"])
    assert "no figure is called step_over_bear; there are step_over_bare, loader_ratio, " in capsys.readouterr().err


def test_ranks_are_on_the_nodes_of_their_order_with_the_domains_of_the_fabric():
    planned = Places.of(plan_of(Topology(), PLANNED, DDP, {}), 8, 1)
    assert planned.crossed((0, 4)) == "spine"
    assert planned.crossed((0, 2)) == "leaf"
    assert planned.crossed((0, 1)) == "node"
    alternating = Places.of(plan_of(Topology(), (0, 4, 1, 5, 2, 6, 3, 7), DDP, {}), 8, 1)
    assert alternating.crossed((0, 1)) == "spine"
    assert alternating.crossed((0, 2)) == "node"
    assert places(8).crossed((0, 1)) == "inside the node"


def test_the_models_time_of_a_sum_by_levels_is_what_each_link_carries_over_its_rate():
    usable, message = NETWORKS["TCP"].usable / 8, trainer_network.MEBIBYTES * 2**20
    node, leaf, spine = (rate * MBIT * usable for rate in (2000, 400, 100))
    expected = message / node + message / leaf + message / spine
    assert modelled(Topology(spine_bits_per_second=100 * MBIT), (2, 2, 2)) == pytest.approx(expected, rel=0.01)


def test_what_an_interface_sent_is_compared_with_what_the_ledger_counted_and_not_with_the_formulas():
    line = SentInStep(
        at=0.0,
        rank=0,
        axis="replicate",
        data="gradients",
        collective="all-reduce",
        bytes=100,
        count=1,
        predicted_bytes=50.0,
        wire_bytes=60.0,
        predicted_wire_bytes=20.0,
    )
    counted = [line, replace(line, axis="shard", wire_bytes=40.0)]
    sent = (0, 5, 9, 1000, 1102, 1204)  # before each step; what begins and the step that is counted go first
    assert over_said(sent, counted) == pytest.approx(0.02)


def test_a_loader_that_takes_the_processor_from_the_step_is_seen_though_nobody_waits_for_it():
    step = StepDone(
        at=0.0, rank=0, step=1, loss=1.0, tokens=1, step_seconds=2.0, grad_norm=1.0, digest="", data_seconds=0.0
    )
    eats, idles = ([Moment(wall=1.5, cpu=cpu)] * 3 for cpu in (0.5, 0.001))
    found = loader_ratio(eats, [step] * 3)
    assert (found.value, found.holds) == (0.25, False)
    assert "500.00 ms of the processor's time and 1500.00 ms on the wall" in found.against
    assert loader_ratio(idles, [step] * 3).holds


def test_a_figure_with_two_bars_is_to_lie_between_them():
    low, within, high = (Figure("ratio", value, "", 1.35, at_least=0.75) for value in (0.7, 1.0, 1.4))
    assert (low.holds, within.holds, high.holds) == (False, True, False)
    assert "0.75 to 1.35" in as_table([within])
