"""The environment of the trainer container: who the pod is, what the network wants, what the user says.

Kubernetes expands `$(NAME)` in a value from the variables before it, and lets the later of two equal names win. So each name is
written once, ours come before the user's, and the user's keep their order: whatever their values refer to stands before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.api import names
from trainyard.contract import env
from trainyard.network.settings import Settings, Source

Variable = Mapping[str, Any]
"""An entry of a container's env."""


def identity() -> list[Variable]:
    """Who the pod is, and where its plan and its key are; the same text in every pod of a job."""
    return [
        {"name": env.POD, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        {"name": env.POD_UID, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
        {"name": env.PLAN, "value": f"{names.PLAN_FOLDER}/{names.PLAN_KEY}"},
        {"name": env.CONTROL_KEY_FILE, "value": f"{names.CONTROL_FOLDER}/{names.CONTROL_KEY}"},
        {"name": env.PORT, "value": str(names.LAUNCHER_PORT)},
    ]


def environment(settings: Settings, of_template: Sequence[Variable]) -> list[Variable]:
    """The whole environment in order: identity, the fabric's settings and additions, spec.network.env, the template's env.

    Of two that say the same name the later in this list wins, except that spec.network.env wins over the template's and that
    identity is nobody's to change. Within the template's own the last of a name counts, as in Kubernetes.
    """
    of_fabric = [_plain(s.name, s.value) for s in settings.settings if s.source is not Source.JOB]
    of_job = [_plain(s.name, s.value) for s in settings.settings if s.source is Source.JOB]
    users = [*of_job, *without(_last_of_each(of_template), of_job)]
    added = without(_last_of_each([*of_fabric, *settings.additions.env]), users)
    given, own = ([v for v in of if not names.is_reserved_env(str(v["name"]))] for of in (added, users))
    whose = [_plain(env.GIVEN, ",".join(str(v["name"]) for v in given))] if given else []
    return [*identity(), *whose, *given, *own]


def without(variables: Iterable[Variable], others: Iterable[Variable]) -> list[Variable]:
    """Those whose names the others do not have."""
    taken = {variable["name"] for variable in others}
    return [variable for variable in variables if variable["name"] not in taken]


def _last_of_each(variables: Sequence[Variable]) -> list[Variable]:
    last = {variable["name"]: n for n, variable in enumerate(variables)}
    return [variable for n, variable in enumerate(variables) if last[variable["name"]] == n]


def _plain(name: str, value: str) -> Variable:
    return {"name": name, "value": value}
