"""PyTorch Lightning under the whole contract: a callback, and an environment that knows the gang.

    trainer = Trainer(
        max_steps=1000, strategy="ddp", plugins=[TrainyardEnvironment()], callbacks=[Trainyard()], logger=False,
        enable_checkpointing=False, **gang(),
    )
    trainer.fit(module, loader)

The callback loads model, optimizer, schedulers and Lightning's own counters before the first batch, reports each step, saves
when it is due, and leaves where all ranks agreed to, in a validation too. Lightning counts the batches of an epoch on but does
not skip them in the loader: a loader that is to go on where it was begins at `trainer.global_step` (times
`accumulate_grad_batches`), or has state_dict and load_state_dict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from trainyard.contract import env

from trainyard_trainer import session
from trainyard_trainer.configuration import local_environment


def gang() -> dict[str, int]:
    """`devices` and `num_nodes` for Lightning's Trainer, as the plan has them; of one process where nobody started a gang."""
    _, ranks, _, local_ranks = local_environment()
    return {"devices": local_ranks, "num_nodes": ranks // local_ranks}


class TrainyardEnvironment(TorchElasticEnvironment):
    """Processes that the launcher started: torchrun's environment, from the plan."""

    @staticmethod
    def detect() -> bool:
        """Whether the launcher started this process."""
        return env.PLAN in os.environ

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """The gang is the plan's: a trainer for another number of processes would wait for ranks that never come."""
        devices, nodes = gang().values()
        if (num_devices, num_nodes) != (devices, nodes):
            raise ValueError(
                f"Trainer: devices={num_devices} and num_nodes={num_nodes}, but the gang has {devices} processes on each of "
                f"{nodes} nodes; pass **gang()"
            )


class Trainyard(Callback):
    """Load, report, save and leave in time, for a module with one optimizer.

    tokens: how many of a batch count for its loss (which weighs the mean over ranks); left out, each batch counts as one.
    seeded: whether what is drawn for a batch follows from its number and the rank, so that a resumed run draws the same.
    """

    def __init__(self, tokens: Callable[[Any], int] | None = None, *, seeded: bool = True) -> None:
        self._tokens, self._seeded = tokens, seeded
        self._step = 0
        self._ended = True  # until there is something to train
        self._evaluating = ExitStack()
        self._alike = 0  # batches of a validation that all ranks have yet to make

    def on_fit_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Optimizers and wrappers are there, loaders are not."""
        if len(trainer.optimizers) != 1:
            raise ValueError(f"{type(pl_module).__name__}: {len(trainer.optimizers)} optimizers; Trainyard saves one")
        schedulers = {f"scheduler_{n}": config.scheduler for n, config in enumerate(trainer.lr_scheduler_configs)}
        self._step = session.load(pl_module, trainer.optimizers[0], loops=trainer.fit_loop, **schedulers)
        self._ended = False
        if self._step and trainer.fit_loop.done:
            session.end()
            self._ended = True

    def on_train_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """A stop may have been asked since the start."""
        self._leave_if_asked()

    def on_train_batch_start(
        self, trainer: LightningTrainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """What is drawn from now on is of this batch; a step may gather several."""
        if self._seeded:
            session.seed(trainer.fit_loop.epoch_loop.total_batch_idx)

    def on_train_batch_end(
        self, trainer: LightningTrainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is done, and a step where no more batches are gathered for it."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss: Tensor | float = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        session.report(self._step, loss, self._tokens(batch) if self._tokens else 1)
        if session.should_save(self._step):
            session.save()
        if self._step != trainer.max_steps:
            self._leave_if_asked()

    def on_validation_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """It may take longer than any step. Ranks may have more batches than others: they agree as long as all have one."""
        if self._ended:
            return
        self._evaluating.enter_context(session.evaluating())
        batches = sum(trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches)
        fewest = torch.tensor(float(batches), device=pl_module.device)
        dist.all_reduce(fewest, dist.ReduceOp.MIN)
        self._alike = int(fewest) if fewest.isfinite() else 0  # of loaders without a length nobody knows

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """All leave after the same batch, with the state of the last step; the rest of the validation is not made up."""
        if self._alike > 0:
            self._alike -= 1
            self._leave_if_asked()

    def on_validation_end(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """The next step begins."""
        self._alike = 0
        self._evaluating.close()

    def on_train_end(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """All steps are done."""
        if not self._ended:
            session.end()
            self._ended = True

    def _leave_if_asked(self) -> None:
        """Save and exit: what Lightning would do first, such as a validation, may be more than the grace allows."""
        if session.should_stop(self._step):
            session.end()
