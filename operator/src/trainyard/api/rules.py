"""What the API server answers at apply: rules in CEL, beside the bounds that the schemas hold.

`trainyard.api.validate` says the same in Python, for whoever has no API server at hand; a test puts one table of objects to both.
A message says what is wrong and what would be right; the API server puts the field's path in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trainyard.api import names
from trainyard.api.model import LABEL_PATTERN
from trainyard.api.parallelism import AXES, NO_DIVISOR, NO_PRODUCT
from trainyard.api.template import OUR_IMAGE_PATTERN


@dataclass(frozen=True, slots=True)
class Rule:
    """A validation of one place of a schema.

    at: path of the place from the root of the object, `[]` for the items of a list. rule: CEL, true where all is well.
    message: what is wrong and what would be right. field: the field to blame, relative to the place; the place itself where
    empty. subject: CEL for a text that the answer begins with, such as the name that is refused.
    """

    at: str
    rule: str
    message: str
    field: str = ""
    subject: str = ""

    def schema(self) -> dict[str, Any]:
        """As an entry of x-kubernetes-validations."""
        entry = {"rule": self.rule}
        if self.subject:
            entry["messageExpression"] = f"{self.subject} + ' {self.message}'"
        else:
            entry["message"] = self.message
        return {**entry, "fieldPath": self.field} if self.field else entry


NO_JOB_NAME: Final = (
    f"is not a name that host names can be made from; use at most {names.MAX_JOB_NAME} lower-case letters, digits and dashes, "
    "beginning with a letter and ending with a letter or digit"
)
ONE_TRAINER: Final = "of several containers exactly one must be named trainer: it is the one that trains"
NEVER_RESTARTS: Final = (
    "must be Never or left out: a member that ends ends its attempt, and what comes next is decided for the whole gang"
)
NEEDS_COMMAND: Final = (
    "the container that trains has no command; give it one, or use the image trainyard/trainer, "
    "or give spec.trainer for the built-in trainer"
)
COMMAND_OR_TRAINER: Final = (
    "configures the built-in trainer, but the container that trains has a command, which replaces it; leave one out"
)
MORE_THAN_NODES: Final = "is more than spec.nodes; use at most as many, or leave it out for a job of fixed size"
NOTHING_TO_RELAX: Final = (
    "relaxes a required level, and none is required; set spec.placement.within with required: true, or leave it out"
)
RELAXES_LATER: Final = "each entry must have a later time than the one before"
TORN_SEGMENT: Final = "does not divide spec.nodes; use a number that does, so that every segment is whole"
NO_SUCH_VOLUME: Final = "is not among spec.template.spec.volumes; add the volume there, or name one that is"
VOLUME_OR_URL: Final = "checkpoints are kept on a volume or at a URL, and both are given; leave one out"
NOT_MOUNTED: Final = (
    "is not mounted by the container that trains; add it to that container's volumeMounts, without readOnly"
)
UNSAFE: Final = "is not safe where nodes change; leave it out, or set spec.network.allowUnsafe"
RESERVED: Final = "says who a process is in the gang and is set by Trainyard; leave it out"
BANDWIDTH_SAID: Final = "the bandwidth is given as well, and the two may contradict each other; leave one out"
FIXED: Final = (
    "is fixed for the life of the job; delete the job and apply it again, or give the changed one another name"
)

_RESERVED_NAMES = ", ".join(f"'{name}'" for name in sorted(names.RESERVED_ENV))
_NOT_RESERVED = " && ".join(
    [f"!(self.name in [{_RESERVED_NAMES}])", *(f"!self.name.startsWith('{p}')" for p in names.RESERVED_ENV_PREFIXES)]
)
_CONTAINERS = "self.template.spec.containers"
_TRAINS = f"({_CONTAINERS}.size() == 1 || c.name == '{names.TRAINER_CONTAINER}')"
_MOUNTS = "has(c.volumeMounts) && c.volumeMounts.exists(m, m.name == self.checkpoint.volume && !(has(m.readOnly) && m.readOnly))"
_HAS_COMMAND = "(has(c.command) && c.command.size() > 0)"
_IS_OURS = f"(has(c.image) && c.image.matches('{OUR_IMAGE_PATTERN}'))"


_PROCESSES_UNSAID = "!has(self.parallelism) || !has(self.processesPerNode)"
"""Without a number the accelerators of the template count, which are not for CEL to read: the operator looks at those."""


def _not_reserved(at: str) -> Rule:
    return Rule(at, _NOT_RESERVED, RESERVED, field=".name", subject="self.name")


def _fixed(at: str, field: str) -> Rule:
    """An optional field that may be neither changed nor added nor taken away."""
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(at, same, FIXED, field=f".{field}")


TRAINING_JOB: Final = (
    Rule(
        "",
        f"size(self.metadata.name) <= {names.MAX_JOB_NAME} && self.metadata.name.matches('{LABEL_PATTERN}')",
        NO_JOB_NAME,
        field=".metadata.name",
        subject="self.metadata.name",
    ),
    Rule(
        "spec.template.spec",
        f"self.containers.size() <= 1 || self.containers.exists_one(c, c.name == '{names.TRAINER_CONTAINER}')",
        ONE_TRAINER,
        field=".containers",
    ),
    Rule(
        "spec.template.spec",
        "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        NEVER_RESTARTS,
        field=".restartPolicy",
    ),
    _not_reserved("spec.template.spec.containers[].env[]"),
    _not_reserved("spec.network.env[]"),
    Rule(
        "spec",
        f"has(self.trainer) || !{_CONTAINERS}.exists(c, {_TRAINS} && !{_HAS_COMMAND} && !{_IS_OURS})",
        NEEDS_COMMAND,
        field=".template.spec.containers",
    ),
    Rule(
        "spec",
        f"!has(self.trainer) || !{_CONTAINERS}.exists(c, {_TRAINS} && {_HAS_COMMAND})",
        COMMAND_OR_TRAINER,
        field=".trainer",
    ),
    Rule(
        "spec",
        "!has(self.checkpoint) || !has(self.checkpoint.volume) || (has(self.template.spec.volumes) && "
        "self.template.spec.volumes.exists(v, v.name == self.checkpoint.volume))",
        NO_SUCH_VOLUME,
        field=".checkpoint.volume",
    ),
    Rule("spec.checkpoint", "!has(self.volume) || !has(self.url)", VOLUME_OR_URL, field=".url"),
    Rule(
        "spec",
        "!has(self.checkpoint) || !has(self.checkpoint.volume) || !has(self.template.spec.volumes) || "
        "!self.template.spec.volumes.exists(v, v.name == self.checkpoint.volume) || "
        f"!{_CONTAINERS}.exists(c, {_TRAINS} && !({_MOUNTS}))",
        NOT_MOUNTED,
        field=".checkpoint.volume",
    ),
    *(
        Rule(
            "spec",
            f"{_PROCESSES_UNSAID} || type(self.parallelism.{axis}) != int || "
            f"(self.nodes * self.processesPerNode) % int(self.parallelism.{axis}) == 0",
            NO_DIVISOR,
            field=f".parallelism.{axis}",
        )
        for axis in AXES
    ),
    Rule(
        "spec",
        f"{_PROCESSES_UNSAID} || "
        + " || ".join(
            f"type(self.parallelism.{axis}) != int || (self.nodes * self.processesPerNode) % int(self.parallelism.{axis}) != 0"
            for axis in AXES
        )
        + f" || {' * '.join(f'int(self.parallelism.{axis})' for axis in AXES)} == self.nodes * self.processesPerNode",
        NO_PRODUCT,
        field=".parallelism.replicate",
    ),
    Rule("spec", "!has(self.minNodes) || self.minNodes <= self.nodes", MORE_THAN_NODES, field=".minNodes"),
    Rule(
        "spec.placement",
        "!has(self.relax) || self.relax.size() == 0 || (has(self.within) && has(self.within.required) && self.within.required)",
        NOTHING_TO_RELAX,
        field=".relax",
    ),
    Rule(
        "spec",
        "!has(self.placement) || !has(self.placement.segments) || self.nodes % self.placement.segments.nodes == 0",
        TORN_SEGMENT,
        field=".placement.segments.nodes",
    ),
    Rule("spec.placement.relax", "self.map(r, duration(r.after)).isSorted()", RELAXES_LATER),
    Rule("spec.nodes", "self == oldSelf", FIXED),
    Rule("spec.template", "self == oldSelf", FIXED),
    _fixed("spec", "processesPerNode"),
    _fixed("spec", "trainer"),
    _fixed("spec.checkpoint", "volume"),
    _fixed("spec.checkpoint", "url"),
)
"""Rules of the CRD of TrainingJob."""

FABRIC: Final = (
    Rule(
        "spec.levels[]",
        "!has(self.bandwidth) || !has(self.oversubscription)",
        BANDWIDTH_SAID,
        field=".oversubscription",
    ),
    _not_reserved("spec.env[]"),
    _not_reserved("spec.podAdditions.env[]"),
)
"""Rules of the CRD of Fabric."""
