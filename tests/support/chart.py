"""The chart, rendered by the Helm that installs it, as objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "trainyard"
RELEASE = "trainyard"
NAMESPACE = "trainyard-system"

Object = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """Reads numbers as Helm and the API server do: 1e-06 is one, though YAML 1.1 wants a point in it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def render(values: Object | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE) -> list[Object]:
    """All objects, hooks included, in the order of their files. Values that the schema refuses raise HelmValuesError."""
    import helm_python  # here, since it loads a large library that most tests do without

    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name=name, namespace=namespace)
    texts = (text for path, text in sorted(files.items()) if path.endswith(".yaml"))
    return [document for text in texts for document in yaml.load_all(text, _Loader) if document]


def one(objects: list[Object], kind: str, name: str) -> Object:
    """The only object of that kind and name."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def is_hook(rendered: Object) -> bool:
    """Whether Helm makes the object at an event instead of installing it."""
    return "helm.sh/hook" in rendered["metadata"].get("annotations", {})


def rights(role: Object) -> set[tuple[str, str, str]]:
    """Every (group, resource, verb) that a role gives; one object is written resource[name]."""
    return {
        (group, resource + "".join(f"[{name}]" for name in rule.get("resourceNames", ())), verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
