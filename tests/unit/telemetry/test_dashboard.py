"""The dashboard and the alerts ask only for what the operator serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from trainyard.telemetry import alerts, dashboard, panels
from trainyard.telemetry.health import Health
from trainyard.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[3]


def families() -> list[Metric]:
    """Everything that an operator serves, whether or not it has a value now."""
    return list(Health([], Metrics("0")).metrics.registry.collect())


def served() -> set[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    return {family.name + end for family in families() for end in suffixes[family.type]}


def all_panels() -> Iterator[panels.Panel]:
    for row in panels.ROWS:
        yield from row.panels


def test_every_metric_it_names_is_served() -> None:
    asked = {
        name
        for panel in all_panels()
        for query in panel.queries
        for name in re.findall(r"trainyard_[a-z_]+", query.expression)
    }
    assert asked <= served()


def test_every_series_of_the_operator_is_on_it() -> None:
    text = " ".join(query.expression for panel in all_panels() for query in panel.queries)
    assert [family.name for family in families() if family.name not in text] == []


def test_every_panel_says_what_to_look_for_and_in_which_unit() -> None:
    assert [panel.title for panel in all_panels() if not panel.unit or not panel.text.endswith(".")] == []


def test_the_file_is_what_the_table_says() -> None:
    assert json.loads((ROOT / dashboard.FILE).read_text()) == dashboard.dashboard()


def test_every_alert_asks_for_what_is_served_and_says_what_to_do() -> None:
    for alert in alerts.ALERTS:
        asked = set(re.findall(r"trainyard_[a-z_]+", alert.expression))
        assert asked, alert.name
        assert asked <= served(), alert.name
        assert alert.description.endswith("."), alert.name
        assert alert.severity in ("critical", "warning", "info"), alert.name
    assert (ROOT / alerts.FILE).read_text() == alerts.text()


@pytest.mark.parametrize("made", [alerts, dashboard], ids=["alerts", "dashboard"])
def test_a_file_that_differs_is_named_with_the_command_that_writes_it(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert made.main(["--check"]) == 1
    assert capsys.readouterr().err == f"{made.FILE} is out of date; run python -m {made.__name__}\n"
    assert (made.main([]), made.main(["--check"])) == (0, 0)
    assert (tmp_path / made.FILE).read_text() == (ROOT / made.FILE).read_text()


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
