"""The two commands print what they say they do, at a size at which nobody waits; whether a time holds its bar is not asked
here."""

import json
from pathlib import Path

import pytest

from benchmarks import lingjun, placement, planner
from benchmarks.figures import Figure, as_table, failed
from benchmarks.policies import policies
from benchmarks.speed import slope

SPEED = {
    "plan_cold_seconds",
    "plan_event_seconds",
    "plan_512_seconds",
    "verdict_seconds",
    "why_seconds",
    "preempt_seconds",
    "repair_seconds",
    "stream_plans_per_second",
    "stream_5000_plans_per_second",
    "world_bytes",
    "growth_exponent",
}


def read(text: str) -> dict[str, dict[str, object]]:
    figures = json.loads(text)
    assert all({"name", "value", "unit", "bar", "holds"} <= figure.keys() for figure in figures)
    return {figure["name"]: figure for figure in figures}


def test_the_planner_prints_every_figure_with_its_bar(capsys: pytest.CaptureFixture[str]):
    code = planner.main(["--json", "--scale", "0.01", "--runs", "1"])
    figures = read(capsys.readouterr().out)
    assert figures.keys() == SPEED
    assert all(isinstance(figure["bar"], float | int) for figure in figures.values())
    assert code == int(not all(figure["holds"] for figure in figures.values()))


def test_one_figure_may_be_asked_for(capsys: pytest.CaptureFixture[str]):
    planner.main(["--scale", "0.01", "--runs", "1", "plan_512_seconds"])
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["name", "value", "unit"]
    assert line.startswith("plan_512_seconds")


def test_a_figure_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        planner.main(["plan_513_seconds"])
    assert "no figure is called plan_513_seconds" in capsys.readouterr().err


def test_without_data_the_real_cluster_is_left_out_and_the_others_are_there(capsys: pytest.CaptureFixture[str]):
    code = placement.main(["--json", "--draws", "1", "--instances", "2"])
    said = capsys.readouterr()
    figures = read(said.out)
    assert figures.keys() == {
        f"{site}.{name}"
        for site in ("fat_tree", "rail", "nvl72")
        for name in ("edges_over_minimum", "edges_over_best_fit", "cost_over_optimum", "cost_over_best_fit")
    } | {"nvl72.segments_in_one_rack"}
    assert "left out" in said.err
    assert code == int(not all(figure["holds"] for figure in figures.values()))


def test_with_data_every_policy_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hosts = [f"h-{n},G1,P{n // 80},S{n // 8 % 10}" for n in range(160)]
    (tmp_path / lingjun.TOPOLOGY).write_text("\n".join(["host,core,aggregation,access", *hosts]))
    jobs = [f"2017-10-09 07:{n:02}:00,{60 * (n % 7 + 1)},{2 ** (n % 6)},0,a" for n in range(60)]
    (tmp_path / lingjun.JOBS).write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *jobs]))
    arguments = ["--data", str(tmp_path), "--draws", "1", "--instances", "2", "--jobs", "40"]
    placement.main([*arguments, "--json"])
    figures = read(capsys.readouterr().out)
    assert {"edges_over_minimum", "edges_over_best_fit", "cost_over_optimum"} <= figures.keys()
    measures = ("spread", "communication", "waiting", "waiting_p90", "waiting_2", "utilisation")
    assert {f"replay.{policy.name}.{of}" for policy in policies(1) for of in measures} <= figures.keys()
    assert figures["replay.trainyard.communication"]["bar"] is not None
    placement.main(arguments)
    table = capsys.readouterr().out
    assert table.count("\n\n") == 1
    assert [line.split()[0] for line in table.split("\n\n")[1].splitlines()] == [
        "replay",
        *(p.name for p in policies(1)),
    ]


def test_a_bar_is_the_most_or_the_least_that_holds():
    low, high = Figure("a", 2.0, "s", 1.0), Figure("b", 2.0, "1/s", 1.0, most=False)
    assert (low.holds, high.holds) == (False, True)
    assert (failed([high]), failed([low, high])) == (1 - 1, 1)
    assert [line.split()[-1] for line in as_table([low, high]).splitlines()[1:]] == ["NO", "yes"]


def test_the_slope_is_the_exponent():
    assert slope({n: 3e-6 * n**1.25 for n in (10, 100, 1000)}) == pytest.approx(1.25)
