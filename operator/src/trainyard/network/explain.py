"""Why each variable of a member's trainer container is there, for whoever asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trainyard.api.names import is_reserved_env
from trainyard.api.template import trainer_container
from trainyard.api.training_job import NetworkVariable, TrainingJobSpec
from trainyard.network.settings import Setting, Settings, Source
from trainyard.network.variables import VARIABLES

FROM_ELSEWHERE = "(from elsewhere)"
"""Stands for a value that a Secret, a ConfigMap or the pod itself gives."""

MOST_VARIABLES: Final = 96
"""As many as a job's status takes."""
MOST_VALUES: Final = 4
"""Of a variable that differs between nodes: there may be as many as nodes."""
REASON_CHARACTERS: Final = 200
"""The longest reason in a status, which is written often; the page has it whole."""


def of_template(spec: TrainingJobSpec) -> Sequence[Mapping[str, Any]]:
    """The entries of the template's env for the container that trains."""
    env = (trainer_container(spec.template) or {}).get("env")
    return [variable for variable in env if isinstance(variable, Mapping)] if isinstance(env, list) else []


def told(settings: Settings, spec: TrainingJobSpec, nodes: Sequence[str]) -> tuple[NetworkVariable, ...]:
    """What pods on these nodes are told, for the job's status."""
    template = of_template(spec)
    kinds = Counter(settings.by_node.get(node, ()) for node in nodes)
    example = {settings.by_node.get(node, ()): node for node in nodes}
    return together((count, explain(settings, template, example[kind])) for kind, count in kinds.items())


def together(of_nodes: Iterable[tuple[int, Iterable[Setting]]]) -> tuple[NetworkVariable, ...]:
    """The settings of so many nodes each: every name with its most frequent values, and with how many nodes have each where not
    all do."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[str, dict[str, Setting]] = {}
    nodes = 0
    for count, settings in of_nodes:
        nodes += count
        for setting in settings:
            counts[setting.name, setting.value] += count
            first.setdefault(setting.name, {}).setdefault(setting.value, setting)
    found = [
        setting
        for name, by_value in first.items()
        for setting in sorted(by_value.values(), key=lambda one: -counts[name, one.value])[:MOST_VALUES]
    ]
    return tuple(
        NetworkVariable(
            name=one.name,
            value=one.value,
            source=one.source,
            reason=one.reason[:REASON_CHARACTERS],
            nodes=counts[one.name, one.value] if counts[one.name, one.value] < nodes else None,
        )
        for one in found[:MOST_VARIABLES]
    )


def explain(settings: Settings, of_template: Sequence[Mapping[str, Any]], node: str) -> tuple[Setting, ...]:
    """The variables that act on the pod on a node, in the order in which they are written: Trainyard's, the Fabric's additions,
    the job's, and those of the template's env that network libraries read.

    What Trainyard would have written is in the reason where the job says otherwise. Who the pod is in its gang is not among them.
    """
    own = settings.on(node).settings
    replaced = {setting.name: setting for setting in settings.replaced}
    jobs = [setting for setting in own if setting.source is Source.JOB]
    said = {setting.name for setting in jobs} | {str(variable.get("name")) for variable in of_template}
    additions = {str(variable["name"]): variable for variable in settings.additions.env}
    added = [
        Setting(name, _value(variable), Source.FABRIC, "added by the Fabric object to every pod")
        for name, variable in additions.items()
        if name not in said and not is_reserved_env(name)
    ]
    ours = [setting for setting in own if setting.source is not Source.JOB and setting.name not in additions]
    wishes = {setting.name for setting in jobs}
    theirs = [
        Setting(name, _value(variable), Source.TEMPLATE, "set by the template's env")
        for name, variable in {str(variable.get("name")): variable for variable in of_template}.items()
        if name not in wishes and not is_reserved_env(name) and _of_a_library(name)
    ]
    return (*ours, *added, *(_instead(setting, replaced) for setting in (*jobs, *theirs)))


def _instead(setting: Setting, replaced: Mapping[str, Setting]) -> Setting:
    ours = replaced.get(setting.name)
    if ours is None:
        return setting
    why = f"{setting.reason}; Trainyard would write {ours.value}: {ours.reason}"
    return Setting(setting.name, setting.value, setting.source, why)


def _of_a_library(name: str) -> bool:
    return name in VARIABLES or name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "FI_", "OFI_", "UCX_"))


def _value(variable: Mapping[str, Any]) -> str:
    return str(variable["value"]) if "value" in variable else FROM_ELSEWHERE
