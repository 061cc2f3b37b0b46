"""The Grafana dashboard, made from the table of panels in `panels`.

python -m trainyard.telemetry.dashboard            write manifests/dashboards/trainyard.json
python -m trainyard.telemetry.dashboard --check    fail where it differs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trainyard.telemetry.generated import written
from trainyard.telemetry.panels import ROWS, Panel

FILE: Final = Path("manifests/dashboards/trainyard.json")

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON."""
    return {
        "uid": "trainyard",
        "title": "Trainyard",
        "tags": ["trainyard"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("namespace", "label_values(trainyard_job_attempt, namespace)"),
                _variable("job", 'label_values(trainyard_job_attempt{namespace=~"$namespace"}, job)'),
            ]
        },
        "panels": list(_panels()),
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    every = {"includeAll": True, "multi": True, "current": {"text": ["All"], "value": ["$__all"]}}
    return {"name": name, "type": "query", "datasource": _DATASOURCE, "query": query, "refresh": 2, "sort": 1, **every}


def _panels() -> Iterator[dict[str, Any]]:
    number, x, y = 1, 0, 0
    for row in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
            "panels": [],
        }
        number, x, y = number + 1, 0, y + 1
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            yield _panel(panel, number, x, y)
            number, x = number + 1, x + panel.width
        y += _HEIGHT


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": _DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for n, query in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or compare it."""
    return written(FILE, text(), "trainyard.telemetry.dashboard", arguments)


if __name__ == "__main__":
    sys.exit(main())
