"""How one operator process is to run. The chart sets the environment; the flags of `trainyard operator` win over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainyard.kube.launchers import read_operator_key
from trainyard.world.records import Marks

PREFIX: Final = "TRAINYARD_"

Seconds = Annotated[float, Field(gt=0)]


class SettingsError(ValueError):
    """A setting that makes no sense. The text names each by its variable and says what would be right."""


class Settings(BaseModel):
    """Each field is read from the variable of its name: lease_seconds from TRAINYARD_LEASE_SECONDS."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    identity: Annotated[str, Field(min_length=1)] = Field(default_factory=lambda: os.uname().nodename)
    """Who holds the Lease, if this process does; the pod's name."""
    namespace: Annotated[str, Field(min_length=1)] = "trainyard-system"
    """Where the Lease is."""
    lease: Annotated[str, Field(min_length=1)] = "trainyard"
    """Name of the Lease."""
    lease_seconds: Seconds = 15.0
    """After how long without a renewal another process may lead."""
    renew_seconds: Seconds = 10.0
    """After how long without success the leader gives up."""
    retry_seconds: Seconds = 2.0
    """Between two tries."""
    key_file: Path
    """File with the operator's key, from which the keys of all jobs are derived."""
    host: str = "0.0.0.0"
    """Address of /metrics, /healthz and /readyz."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Their port; 0 takes a free one and logs it."""
    launcher_image: str = ""
    """Image that carries the launcher into pods whose own image has none; empty: every image is to have it."""
    mark_nodes: bool = False
    """Whether nodes whose network several jobs found unfit are marked by a condition, so that no new gang gets them."""
    administrators: str = ""
    """Namespaces, separated by commas, of whose jobs one is enough for that."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                f"retry_seconds ({self.retry_seconds:g}) must be less than renew_seconds ({self.renew_seconds:g}), and that less "
                f"than lease_seconds ({self.lease_seconds:g}): otherwise two processes lead at once"
            )
        return self

    def marks(self) -> Marks | None:
        """By whose verdicts nodes are marked; None where none are."""
        namespaces = frozenset(name for name in (part.strip() for part in self.administrators.split(",")) if name)
        return Marks(namespaces) if self.mark_nodes else None

    def key(self) -> bytes:
        """The operator's key; SettingsError where the file is missing or its content too short to be one."""
        try:
            return read_operator_key(self.key_file)
        except OSError as error:
            raise SettingsError(f"{PREFIX}KEY_FILE: {self.key_file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise SettingsError(f"{PREFIX}KEY_FILE: {error}") from None


def read(environment: Mapping[str, str], flags: Mapping[str, object] | None = None) -> Settings:
    """Settings from environment variables and flags; SettingsError names every one that is wrong.

    flags: by field name; None: not given. Variables of the prefix that are no setting are left alone.
    """
    known: dict[str, object] = {
        name: environment[variable(name)] for name in Settings.model_fields if environment.get(variable(name))
    }
    known |= {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return Settings.model_validate(known)
    except ValidationError as error:
        wrong = (f"{variable(str(e['loc'][0])) if e['loc'] else 'settings'}: {e['msg']}" for e in error.errors())
        raise SettingsError("; ".join(wrong)) from None


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()
