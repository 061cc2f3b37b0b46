"""The CustomResourceDefinitions, made from the models.

pydantic emits JSON Schema 2020-12; a CRD takes a structural OpenAPI 3.0 schema, which is narrower: no references, no null, no
unions but int-or-string. What cannot be said in it is an error here rather than a surprise in a cluster.

    python -m trainyard.api.crd            write manifests/crds/*.yaml
    python -m trainyard.api.crd --check    fail where they differ from the models
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from trainyard.api import names, rules
from trainyard.api.fabric import Fabric
from trainyard.api.model import ApiModel
from trainyard.api.training_job import TrainingJob

FOLDER: Final = Path("manifests/crds")
MAX_BYTES: Final = 128 * 1024
"""Half of what an object's annotations may be (256 KiB), since `kubectl apply` keeps all of it in one."""
HEADER: Final = (
    "# Generated from the models in trainyard.api by `python -m trainyard.api.crd`; change them, not this file.\n"
)

Schema = dict[str, Any]

_FIRST: Final = ("type", "format", "description", "default")
_DROPPED: Final = frozenset({"title", "examples", "deprecated", "$defs"})
_KEPT: Final = frozenset(
    {
        "type",
        "format",
        "description",
        "enum",
        "required",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
        "uniqueItems",
    }
)


class NotStructural(TypeError):
    """A model says something that a CRD cannot."""


def structural_schema(model: type[ApiModel]) -> Schema:
    """The structural schema of a model, without CEL rules. Raises NotStructural, naming the field."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(raw, raw.get("$defs", {}), model.__name__, ())


def _convert(node: Mapping[str, Any], defs: Mapping[str, Any], at: str, inside: tuple[str, ...]) -> Schema:
    node, inside = _resolve(node, defs, at, inside)
    schema: Schema = {}
    for key, value in node.items():
        match key:
            case "properties":
                required = node.get("required", ())
                schema[key] = {
                    name: _property(part, name in required, _convert(part, defs, f"{at}.{name}", inside))
                    for name, part in value.items()
                }
            case "items":
                schema[key] = _convert(value, defs, f"{at}[]", inside)
            case "additionalProperties" if isinstance(value, Mapping):
                schema[key] = _convert(value, defs, f"{at}{{}}", inside)
            case "additionalProperties":  # false: pruning says as much; true: kept as it is
                if value and "properties" not in node:
                    schema["x-kubernetes-preserve-unknown-fields"] = True
            case "const":
                schema["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum":
                bound = "minimum" if key == "exclusiveMinimum" else "maximum"
                if node.get("type") == "integer":
                    schema[bound] = value + (1 if bound == "minimum" else -1)
                else:
                    schema |= {bound: value, key: True}
            case "description":
                schema[key] = " ".join(value.split())
            case "default":
                if value not in (None, "", [], {}) and not isinstance(value, Mapping):
                    schema[key] = value
            case _ if key in _KEPT or key.startswith("x-kubernetes-"):
                schema[key] = copy.deepcopy(value)
            case _ if key not in _DROPPED:
                raise NotStructural(f"{at}: {key} cannot be said in a CRD")
    schema = {key: schema[key] for key in (*_FIRST, *schema) if key in schema}
    match schema.get("type"):
        case "integer":
            schema.setdefault("format", "int64")
        case "number":
            schema.setdefault("format", "double")
        case None if not schema.get("x-kubernetes-int-or-string"):
            raise NotStructural(f"{at}: has no type")
    return schema


def _property(raw: Mapping[str, Any], required: bool, schema: Schema) -> Schema:
    """A part of an object. One that is made by a default of its own gets `{}`, which the API server fills from within;
    one that may be absent (its default is null) stays absent."""
    absent_means_default = not required and raw.get("default", {}) is not None
    if absent_means_default and any("default" in part for part in schema.get("properties", {}).values()):
        return {**schema, "default": {}}
    return schema


def _resolve(
    node: Mapping[str, Any], defs: Mapping[str, Any], at: str, inside: tuple[str, ...]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Follow references and take Optional apart. What stands beside a reference wins over what it refers to."""
    while "$ref" in node or "anyOf" in node or "allOf" in node or "oneOf" in node:
        siblings = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "allOf", "oneOf")}
        if "$ref" in node:
            name = str(node["$ref"]).rsplit("/", 1)[-1]
            if name in inside:
                raise NotStructural(f"{at}: {name} contains itself; a CRD has no references")
            inside = (*inside, name)
            target = defs[name]
        else:
            choices = [c for key in ("anyOf", "allOf", "oneOf") for c in node.get(key, ()) if c.get("type") != "null"]
            if len(choices) != 1:
                raise NotStructural(
                    f"{at}: a union of {len(choices)} types; only int-or-string and Optional can be said"
                )
            target = choices[0]
        node = {**target, **siblings}
    return node, inside


def _with_rules(schema: Schema, found: Iterable[rules.Rule]) -> Schema:
    """The schema with each rule at its place; KeyError where there is no such place."""
    ruled = copy.deepcopy(schema)
    for rule in found:
        place = ruled
        for step in filter(None, rule.at.replace("[]", ".[]").split(".")):
            place = place["items"] if step == "[]" else place["properties"][step]
        place.setdefault("x-kubernetes-validations", []).append(rule.schema())
    return ruled


def _without_defaults(schema: Schema) -> Schema:
    """A status has none: what is not there has not been said."""
    bare = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in bare:
        bare["properties"] = {name: _without_defaults(part) for name, part in bare["properties"].items()}
    if "items" in bare:
        bare["items"] = _without_defaults(bare["items"])
    return bare


_TYPE_META: Final[Mapping[str, Schema]] = {
    "apiVersion": {"type": "string", "description": "Group and version of this object's schema."},
    "kind": {"type": "string", "description": "Kind of this object."},
    "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
}


def _root_schema(model: type[ApiModel], found: Iterable[rules.Rule]) -> Schema:
    schema = structural_schema(model)
    parts = {name: part for name, part in schema["properties"].items() if name not in _TYPE_META}
    if "status" in parts:
        parts["status"] = _without_defaults(parts["status"])
    schema["properties"] = {**_TYPE_META, **parts}
    return _with_rules(schema, found)


def _column(name: str, path: str, description: str, kind: str = "string", wide: bool = False) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": 1} if wide else column


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "Time since the object was made.", "date")

JOB_COLUMNS: Final = (
    _column("Phase", ".status.phase", "Where the job stands."),
    _column("Nodes", ".spec.nodes", "Nodes that it trains on.", "integer"),
    _column("Ready", ".status.readyNodes", "Members that train now.", "integer"),
    _column("Step", ".status.progress.step", "The last step that all members finished.", "integer"),
    _column("Span", ".status.plan.span", "The narrowest level one domain of which holds the gang."),
    _column("Restarts", ".status.restarts.failures", "Failures; yields are counted apart.", "integer"),
    _AGE,
    _column("Loss", ".status.progress.loss", "The last loss reported.", "number", wide=True),
    _column("Checkpoint", ".status.checkpoint.step", "Step of the newest durable checkpoint.", "integer", wide=True),
    _column(
        "Yields",
        ".status.restarts.preemptions",
        "How often it left because it was asked to.",
        "integer",
        wide=True,
    ),
    _column("Goodput", ".status.goodput.percent", "Percent of its time in new steps.", "integer", wide=True),
    _column("Priority", ".spec.priorityClassName", "Its PriorityClass.", wide=True),
    _column("Reason", ".status.pending.reason", "Why it waits.", wide=True),
)
FABRIC_COLUMNS: Final = (
    _column("Kind", ".spec.kind", "What the collectives run over."),
    _column("Levels", ".spec.levels[*].name", "Tiers of the network, broadest first."),
    _AGE,
    _column(
        "Observed",
        ".status.observed.summary",
        "By level, the share of what is declared that one node was seen to send.",
        wide=True,
    ),
    _column("Measured", ".status.observed.measurement.time", "When it was last measured.", "date", wide=True),
)


def _definition(plural: str, kind: str, scope: str, short: Sequence[str], version: Mapping[str, Any]) -> dict[str, Any]:
    singular = kind.lower()
    spoken = {"plural": plural, "singular": singular, "kind": kind, "listKind": f"{kind}List"}
    extra: dict[str, Any] = {"shortNames": list(short)} if short else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": scope,
            "names": {**spoken, **extra, "categories": ["trainyard"]},
            "versions": [{"name": names.VERSION, "served": True, "storage": True, **version}],
        },
    }


def training_job_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of TrainingJob."""
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(JOB_COLUMNS),
        "selectableFields": [{"jsonPath": ".status.phase"}],
        "schema": {"openAPIV3Schema": _root_schema(TrainingJob, rules.TRAINING_JOB)},
    }
    return _definition(names.JOBS, names.KIND_JOB, "Namespaced", ("tj",), version)


def fabric_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of Fabric."""
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(FABRIC_COLUMNS),
        "schema": {"openAPIV3Schema": _root_schema(Fabric, rules.FABRIC)},
    }
    return _definition(names.FABRICS, names.KIND_FABRIC, "Cluster", (), version)


class _Plain(yaml.SafeDumper):
    """YAML without anchors, which few readers expect in a manifest."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def files() -> dict[str, str]:
    """File name -> text of every generated manifest."""
    made = {names.JOBS: training_job_crd(), names.FABRICS: fabric_crd()}
    return {
        f"{name}.yaml": HEADER + yaml.dump(crd, Dumper=_Plain, sort_keys=False, width=140) for name, crd in made.items()
    }


def stale(folder: Path) -> list[Path]:
    """Files of the folder that are missing or say something else than the models do."""
    texts = {folder / name: text for name, text in files().items()}
    return [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifests, or check them. Exit code 1 where --check finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard.api.crd", description="Generate the CRDs from the models."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are (default: %(default)s)")
    options = parser.parse_args(arguments)
    changed = stale(options.folder)
    if options.check:
        for path in changed:
            print(f"{path}: differs from the models; run python -m trainyard.api.crd", file=sys.stderr)
        return 1 if changed else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in changed:
        path.write_text(files()[path.name])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
