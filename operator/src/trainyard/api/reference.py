"""docs/reference/api.md: every field of the API, made from the same schemas as the CRDs.

python -m trainyard.api.reference            write the page
python -m trainyard.api.reference --check    fail where it differs from the models
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainyard.api import names, rules
from trainyard.api.crd import fabric_crd, training_job_crd

PAGE: Final = Path("docs/reference/api.md")

Schema = Mapping[str, Any]

_INTRODUCTION: Final = f"""\
<!-- Generated from the models in trainyard.api by `python -m trainyard.api.reference`; change them, not this page. -->
# Reference: TrainingJob and Fabric

For those who write either object. Group and version: `{names.API_VERSION}`. The same text is in the cluster:
`kubectl explain tj.spec`.

Times are written as Go writes them: `90s`, `2m`, `1h30m`. A field without a default may be left out unless it is marked
*needed*. What is wrong is answered by the API server when the object is applied, with the path of the field; what only
the operator can see is answered in the condition `Accepted`.
"""


def page() -> str:
    """The whole page in Markdown."""
    job, fabric = (_schema(definition) for definition in (training_job_crd(), fabric_crd()))
    return "\n".join(
        [
            _INTRODUCTION,
            *_section(names.KIND_JOB, "Namespaced; short name `tj`.", job, ("spec", "status"), rules.TRAINING_JOB),
            *_section(names.KIND_FABRIC, "Cluster-scoped; written by administrators.", fabric, ("spec",), rules.FABRIC),
        ]
    )


def _section(kind: str, scope: str, schema: Schema, parts: Sequence[str], found: Iterable[rules.Rule]) -> Iterator[str]:
    yield from (f"## {kind}", "", f"{schema['description']} {scope}", "")
    for part in parts:
        yield from (f"### {kind}.{part}", "", schema["properties"][part]["description"], "")
        yield from ("| field | type | default | meaning |", "|---|---|---|---|")
        yield from _rows(schema["properties"][part], "")
        yield ""
    yield from (f"### Rules of {kind}", "", "Checked when the object is applied, besides the bounds of the fields.", "")
    yield from ("| where | answer |", "|---|---|")
    yield from (f"| `{_blamed(rule)}` | {_answer(rule)} |" for rule in found)
    yield ""


def _rows(schema: Schema, at: str) -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        default = f"`{json.dumps(part['default'])}`" if part.get("default") not in (None, {}) else ""
        needed = "*needed*" if name in schema.get("required", ()) else default
        yield f"| `{path}` | {_type(part)} | {needed} | {_cell(part.get('description', ''))} |"
        yield from _rows(part, path)
        yield from _rows(part.get("items", {}), f"{path}[]")


def _type(part: Schema) -> str:
    """The type with its bounds, in words."""
    if part.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in part:
        return "one of " + ", ".join(f"`{choice}`" for choice in part["enum"])
    match part.get("type"):
        case "array":
            return f"list of {_type(part['items'])}s"
        case "object" if "additionalProperties" in part:
            return f"map of {_type(part['additionalProperties'])}s"
        case "string" if part.get("format") == "date-time":
            return "time"
        case kind:
            return f"{kind}{_bounds(part)}"


def _bounds(part: Schema) -> str:
    """The bounds of a number; one that only keeps it within 32 bits or more is left out."""
    low, high = part.get("minimum"), part.get("maximum")
    above = "above" if part.get("exclusiveMinimum") else "from"
    below = "below" if part.get("exclusiveMaximum") else "to"
    said = [
        f" {above} {json.dumps(low)}" if low is not None else "",
        f" {below} {json.dumps(high)}" if high is not None else "",
    ]
    return said[0] if high is not None and high >= 2**31 else "".join(said)


def _blamed(rule: rules.Rule) -> str:
    return f"{rule.at}{rule.field}".lstrip(".") or "the object"


def _answer(rule: rules.Rule) -> str:
    return _cell(f"(the name) {rule.message}" if rule.subject else rule.message)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _schema(definition: Schema) -> Schema:
    schema: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it. Exit code 1 where --check finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard.api.reference", description="Generate the page of all fields."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page differs")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.page.is_file() and options.page.read_text() == page():
        return 0
    if options.check:
        print(f"{options.page}: differs from the models; run python -m trainyard.api.reference", file=sys.stderr)
        return 1
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page())
    print(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
