"""What this worker is to do: by the operator's plan.json, or by a file or defaults where a researcher tries.

Whatever is wrong here is the user's to put right, and no restart helps: BadConfiguration becomes exit code 78.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard.contract import env
from trainyard.contract.codec import ContractError
from trainyard.contract.plan import Checkpoints, Plan, decode

if TYPE_CHECKING:
    from trainyard.api.trainer import TrainerConfig


class BadConfiguration(ValueError):
    """What was asked for cannot work, whoever tries it and how often. The message begins with the field's path."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """plan: None outside a cluster. checkpoints: None where nothing is to be saved."""

    trainer: TrainerConfig
    checkpoints: Checkpoints | None
    plan: Plan | None = None


def read_plan(environment: Mapping[str, str]) -> Plan | None:
    """The plan that TRAINYARD_PLAN names; None where there is none."""
    path = environment.get(env.PLAN)
    if not path:
        return None
    try:
        return decode(Path(path).read_bytes())
    except (OSError, ContractError) as error:
        raise BadConfiguration(f"{env.PLAN}={path}: {error}") from None


def assignment(
    environment: Mapping[str, str],
    config_file: str | None = None,
    checkpoints: Checkpoints | None = None,
) -> Assignment:
    """What the built-in trainer is to do. With a plan, config_file and checkpoints are ignored: the plan says both."""
    from trainyard.api.trainer import (
        InvalidTrainerConfig,
        parse,
    )  # needs pydantic, which an image of one's own may not have

    plan = read_plan(environment)
    try:
        if plan is not None:
            return Assignment(parse(plan.trainer or {}), plan.checkpoints, plan)
        return Assignment(parse(_document(config_file), config_file or "configuration"), checkpoints)
    except InvalidTrainerConfig as error:
        raise BadConfiguration(str(error)) from None


def _document(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise BadConfiguration(f"{path}: holds a {type(document).__name__}; write an object, as in spec.trainer")
    return document


class Local(NamedTuple):
    """Which process this is. ranks: of all nodes; local_rank, local_ranks: of this one."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int


def local_environment(environment: Mapping[str, str] = os.environ) -> Local:
    """As torchrun and our launcher give it, or of a single process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    given = [environment.get(name) for name in names]
    if given[0] is None and given[1] is None:
        return Local(0, 1, 0, 1)
    try:
        rank, world, local_rank, local_world = (
            int(value or default) for value, default in zip(given, "0101", strict=True)
        )
    except ValueError:
        raise BadConfiguration(f"{', '.join(names)}: {given} are not all numbers") from None
    return Local(rank, world, local_rank, local_world)
