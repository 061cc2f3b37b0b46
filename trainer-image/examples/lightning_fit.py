"""PyTorch Lightning with Trainyard's callback. The loader begins at the step that the session went on from."""

from collections.abc import Iterator

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, IterableDataset
from trainyard_trainer.lightning import Trainyard, TrainyardEnvironment, gang

STEPS = 1000


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(32, 1),
        )

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layers(x) - x.sum(dim=1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Samples(IterableDataset):
    """Stands for your data: the batch of a step is a function of the step and the rank."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[torch.Tensor]:
        step = self.trainer.global_step
        while True:
            own = torch.Generator().manual_seed(step * self.trainer.world_size + self.trainer.global_rank)
            yield torch.randn(32, 16, generator=own)
            step += 1


seed_everything(0, verbose=False)
trainer = Trainer(
    max_steps=STEPS,
    strategy="ddp",
    plugins=[TrainyardEnvironment()],
    callbacks=[Trainyard(tokens=len)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    **gang(),
)
trainer.fit(Model(), DataLoader(Samples(trainer), batch_size=None))
