"""What of a script of one's own is saved: its model, its optimizer, and whatever else has a state.

Tensors are saved by the names of the parameters, whatever wraps the model (DDP, FSDP2, torch.compile), so that a checkpoint
fits any number of ranks. All that is no tensor (learning rates, counters of a scheduler) is one value, the same on all ranks,
and travels as the bytes of `torch.save`; they are read with weights_only, which runs nothing.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from trainyard_trainer.checkpoint.record import CommitRecord, Training
from trainyard_trainer.configuration import BadConfiguration

MODEL: Final = "model."
OPTIMIZER: Final = "optimizer."
REST: Final = "rest"
"""Name of the tensor of bytes that holds all that is no tensor."""
REST_BYTES: Final = "rest_bytes"
PARAMETERS: Final = "parameters"
EXTRA: Final = "_extra_state"
"""How torch ends the name of what a module keeps by get_extra_state: of any type and, from save to save, of any size."""


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
            by_name = isinstance(value, Tensor) and not name.endswith(EXTRA)
            (state if by_name else rest)[f"{MODEL}{name}"] = value  # type: ignore[assignment]
        of_optimizer = get_optimizer_state_dict(model, optimizer)  # makes the state of an optimizer that has none yet
        if not begun:
            _unmake_step(optimizer)
        per_parameter: Mapping[str, Mapping[str, Any]] = of_optimizer["state"]  # type: ignore[assignment]
        for name, values in per_parameter.items():
            for key, value in values.items():
                (state if isinstance(value, Tensor) else rest)[f"{OPTIMIZER}{name}.{key}"] = value
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

    def holds(self, record: CommitRecord, saved: Mapping[str, Sequence[int]]) -> None:
        """Ask for what the commit that is about to be read holds. saved: the shapes of its tensors, by name.

        A parameter that had no gradient has no state in an optimizer, and none in the checkpoint; a new optimizer has made
        some for all. Raises BadConfiguration where the checkpoint is of another model or another optimizer.
        """
        stateful = {_parameter(name) for name in saved if name.startswith(OPTIMIZER)}
        for name in [name for name in self._state if name.startswith(OPTIMIZER)]:
            if stateful and _parameter(name) not in stateful:
                del self._state[name]
        unlike = [
            f"{name} is {list(saved[name]) if name in saved else 'not'} there, and {list(tensor.shape)} here"
            for name, tensor in self._state.items()
            if name not in saved or tuple(saved[name]) != tuple(tensor.shape)
        ]
        if unlike:
            more = f" (and {len(unlike) - 1} more)" if len(unlike) > 1 else ""
            raise BadConfiguration(
                f"session.load: the checkpoint of step {record.step} is of another model or optimizer: {unlike[0]}{more}; "
                "keep both, or train from the beginning as another job"
            )

    def begin(self) -> None:
        """There was nothing to load: the optimizer is as it was."""
        self.optimizer.state.clear()

    def loaded(self) -> None:
        """The tensors are filled: put the rest where it belongs."""
        read = io.BytesIO(self._state[REST].numpy().tobytes())
        rest: dict[str, Any] = torch.load(read, weights_only=True, map_location="cpu")
        groups = rest.pop("groups")
        per_parameter: dict[str, dict[str, Any]] = {name: {} for group in groups for name in group["params"]}
        for name, value in (*self._state.items(), *rest.items()):
            parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
            if name.startswith(OPTIMIZER) and parameter in per_parameter:
                per_parameter[parameter][key] = value
        set_optimizer_state_dict(self.model, self.optimizer, {"state": per_parameter, "param_groups": groups})  # type: ignore[dict-item]
        for stateless in [key for key, values in self.optimizer.state.items() if not values]:
            del self.optimizer.state[stateless]
        extra = {name.removeprefix(MODEL): value for name, value in rest.items() if name.startswith(MODEL)}
        if extra:
            set_model_state_dict(self.model, extra, options=StateDictOptions(strict=False))
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
                names = [*self.others, *(name for name in rest if name.startswith(MODEL))]
                raise BadConfiguration(
                    f"session.load: of {', '.join(names) or 'the optimizer'}: a state of more than numbers, texts, lists "
                    f"and tensors cannot be saved: {error}"
                ) from None
            self._looked_at = True
        return torch.frombuffer(bytearray(out.getvalue()), dtype=torch.uint8)

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def _parameter(name: str) -> str:
    """Whose state it is: `optimizer.<parameter>.<key>`."""
    return name.rpartition(".")[0]


def _unmake_step(optimizer: Optimizer) -> None:
    """torch makes the state by a step with gradients of zero, and counts it."""
    for values in optimizer.state.values():
        step = values.get("step")
        if isinstance(step, Tensor):
            step.zero_()
        elif isinstance(step, int):
            values["step"] = 0
