"""What of a script of one's own is saved: its model, its optimizer, and whatever else has a state.

Tensors are saved by the names of the parameters, whatever wraps the model (DDP, FSDP2, torch.compile), so that a checkpoint
fits any number of ranks. All that is no tensor (learning rates, counters of a scheduler) is one value, the same on all ranks,
and travels as the bytes of `torch.save`; they are read with weights_only, which runs nothing.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from trainyard_trainer.checkpoint.record import CommitRecord, Training
from trainyard_trainer.configuration import BadConfiguration

REST: Final = "rest"
"""Name of the tensor of bytes that holds all that is no tensor."""
REST_BYTES: Final = "rest_bytes"
PARAMETERS: Final = "parameters"


class Stateful(Protocol):
    """A scheduler, a scaler of gradients, a data loader that knows its place."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class Kept:
    """The state of a script. others: by name, each the same on all ranks."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, others: Mapping[str, Stateful]) -> None:
        self.model, self.optimizer, self.others = model, optimizer, dict(others)
        self._looked_at = False
        self._state: dict[str, Tensor] = {}
        self._about: dict[str, int] = {}

    def training(self) -> Training:
        """What a commit record says of the state that `tensors` is asked for next, which fills in how much of it is bytes."""
        self._about = {PARAMETERS: self._parameters()}
        return Training(0, "", self._about, "")

    def tensors(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """All state by name. The tensors are the training's own: they must not change while they are saved."""
        begun = bool(optimizer.state)
        state: dict[str, Tensor] = {}
        rest: dict[str, Any] = {}
        for name, value in get_model_state_dict(model).items():
            (state if isinstance(value, Tensor) else rest)[f"model.{name}"] = value  # type: ignore[assignment]
        of_optimizer = get_optimizer_state_dict(model, optimizer)  # makes the state of an optimizer that has none yet
        if not begun:
            _unmake_step(optimizer)
        per_parameter: Mapping[str, Mapping[str, Any]] = of_optimizer["state"]  # type: ignore[assignment]
        for name, values in per_parameter.items():
            for key, value in values.items():
                (state if isinstance(value, Tensor) else rest)[f"optimizer.{name}.{key}"] = value
        rest["groups"] = of_optimizer["param_groups"]
        rest["others"] = {name: one.state_dict() for name, one in self.others.items()}
        state[REST] = self._bytes(rest)
        self._about[REST_BYTES] = state[REST].numel()
        self._state = state
        return state

    def fits(self, record: CommitRecord, training: Training, warn: Callable[[str, str], None]) -> None:
        """Make room for the bytes of a commit that is about to be loaded; BadConfiguration where it is of another model."""
        before, now = record.training.model.get(PARAMETERS), self._parameters()
        if before != now:
            raise BadConfiguration(
                f"session.load: the model has {now} parameters, and that of the checkpoint of step {record.step} has {before}; "
                "keep the model, or train from the beginning as another job"
            )
        self._state[REST] = torch.empty(int(record.training.model[REST_BYTES]), dtype=torch.uint8)

    def begin(self) -> None:
        """There was nothing to load: the optimizer is as it was."""
        self.optimizer.state.clear()

    def loaded(self) -> None:
        """The tensors are filled: put the rest where it belongs."""
        rest: dict[str, Any] = torch.load(io.BytesIO(self._state[REST].numpy().tobytes()), weights_only=True)
        groups = rest.pop("groups")
        per_parameter: dict[str, dict[str, Any]] = {name: {} for group in groups for name in group["params"]}
        for name, value in (*self._state.items(), *rest.items()):
            parameter, _, key = name.removeprefix("optimizer.").rpartition(".")
            if name.startswith("optimizer.") and parameter in per_parameter:
                per_parameter[parameter][key] = value
        set_optimizer_state_dict(self.model, self.optimizer, {"state": per_parameter, "param_groups": groups})  # type: ignore[dict-item]
        for name, one in self.others.items():
            if name in rest["others"]:
                one.load_state_dict(rest["others"][name])

    def _bytes(self, rest: Mapping[str, Any]) -> Tensor:
        out = io.BytesIO()
        torch.save(rest, out)
        if not self._looked_at:  # that it cannot be read is better known now than at the restart
            try:
                torch.load(io.BytesIO(out.getvalue()), weights_only=True)
            except pickle.UnpicklingError as error:
                raise BadConfiguration(
                    f"session.load: of {', '.join(self.others) or 'the optimizer'}: a state of more than numbers, texts, lists "
                    f"and tensors cannot be saved: {error}"
                ) from None
            self._looked_at = True
        return torch.frombuffer(bytearray(out.getvalue()), dtype=torch.uint8)

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def _unmake_step(optimizer: Optimizer) -> None:
    """torch makes the state by a step with gradients of zero, and counts it."""
    for values in optimizer.state.values():
        step = values.get("step")
        if isinstance(step, Tensor):
            step.zero_()
        elif isinstance(step, int):
            values["step"] = 0
