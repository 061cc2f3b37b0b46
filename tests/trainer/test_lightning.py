"""PyTorch Lightning under the callback: what its own loop does between steps is seen, excused and left in time."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from support.processes import plan_file, run
from torch.utils.data import DataLoader, TensorDataset
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer.lightning import Trainyard, TrainyardEnvironment, gang
from trainyard_trainer.report import CheckpointDurable, Phase, PhaseChanged, StepDone, StopAcknowledged

STEPS = 6


class Model(LightningModule):
    """Writes down the seed of each batch, and how many batches its validations had."""

    def __init__(self, at_validation_batch):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.at_validation_batch = at_validation_batch
        self.seeds, self.validated = [], 0

    def training_step(self, batch):
        self.seeds.append(torch.initial_seed())
        return self.layers(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.validated += 1
        self.at_validation_batch(self)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fitted(tmp_path, name, ranks, *, validations=lambda rank: 2, at_validation_batch=lambda model: None, **plan):
    """One attempt: STEPS steps of two batches each, a validation after the third, of so many batches on each rank."""
    folder = tmp_path / name
    folder.mkdir()

    def work(rank):
        torch.manual_seed(0)
        os.environ[env.STOP_FILE] = str(folder / f"stop-{rank}")
        model = Model(at_validation_batch)
        trainer = Trainer(
            max_steps=STEPS,
            accumulate_grad_batches=2,
            val_check_interval=6,
            num_sanity_val_steps=0,
            strategy="ddp",
            plugins=[TrainyardEnvironment()],
            callbacks=[Trainyard()],
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **gang(),
        )
        training = DataLoader(TensorDataset(torch.ones(100, 4)), batch_size=2)
        validation = DataLoader(TensorDataset(torch.ones(validations(rank), 4)))
        try:
            trainer.fit(model, training, validation)
        except SystemExit as end:
            return int(end.code or 0)
        return model.seeds, model.validated

    given = plan_file(folder / "plan.json", tmp_path / "checkpoints", ranks=ranks, **plan)
    return run(work, ranks, folder / "gang", environments=dict.fromkeys(range(ranks), given))


def losses(ended):
    return [report.loss for report in ended.reports if isinstance(report, StepDone)]


def test_each_batch_of_a_step_draws_its_own_numbers(tmp_path):
    (ended,) = fitted(tmp_path, "whole", 1)
    assert ended.code == Exit.DONE, ended.output
    seeds, _ = ended.result
    assert len(seeds) == len(set(seeds)) == 2 * STEPS


def test_a_validation_is_a_phase_of_its_own_and_may_have_more_batches_on_one_rank(tmp_path):
    ended = fitted(tmp_path, "whole", 2, validations=lambda rank: 3 + 2 * rank)
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    assert [end.result[1] for end in ended] == [2 * 3, 2 * 5]
    phases = [report.phase for report in ended[0].reports if isinstance(report, PhaseChanged)]
    first = phases.index(Phase.EVAL)
    assert phases[first - 1 : first + 2] == [Phase.TRAIN, Phase.EVAL, Phase.TRAIN]
    assert phases.count(Phase.EVAL) == 2


def test_a_stop_asked_of_one_rank_in_a_validation_ends_all_at_the_same_batch(tmp_path):
    whole = fitted(tmp_path, "whole", 2)
    assert [end.code for end in whole] == [Exit.DONE] * 2, whole[0].output
    (tmp_path / "checkpoints").rename(tmp_path / "of-whole")

    def asked(model):
        if model.validated == 3 and model.global_rank == 1:
            (tmp_path / "left" / "stop-1").touch()
        assert model.validated < 10, "it was left in the third or fourth batch"

    left = fitted(tmp_path, "left", 2, validations=lambda rank: 1000 + rank, at_validation_batch=asked)
    assert [end.code for end in left] == [Exit.YIELDED] * 2, left[0].output
    for end in left:
        assert [report.step for report in end.reports if isinstance(report, StopAcknowledged)] == [3]
    assert [report.step for report in left[0].reports if isinstance(report, CheckpointDurable)] == [3]

    resumed = fitted(tmp_path, "resumed", 2, attempt=2, history=[(1, 3)])
    assert [end.code for end in resumed] == [Exit.DONE] * 2, resumed[0].output
    assert losses(left[0]) + losses(resumed[0]) == losses(whole[0])
