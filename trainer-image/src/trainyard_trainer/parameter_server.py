"""Train with parameter servers, to see beside it what all-reduce is worth. Reads as train.py does, with less in it.

    torchrun --nproc-per-node 4 -m trainyard_trainer.parameter_server --config c.json --staleness 2

Every process is a worker and keeps some of the parameters (parallel/server.py). Workers agree on nothing but the parameters: no
step is stopped at together, so nothing is saved and nothing resumed; gradients are not clipped, since no process has all of
them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist
from trainyard.api.trainer import TrainerConfig
from trainyard.contract.exits import Exit

from trainyard_trainer.configuration import BadConfiguration, assignment, local_environment
from trainyard_trainer.data.batches import Batches, batches_of
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.machine import pick_device, threads
from trainyard_trainer.model import weights
from trainyard_trainer.model.loss import cross_entropy
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.joining import met
from trainyard_trainer.parallel.server import Servers

log = logging.getLogger("trainyard_trainer")
CPU: Final = torch.device("cpu")


def train(
    config: TrainerConfig,
    batches: Batches,
    staleness: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> Transformer:
    """All steps of one worker; the model as it has it then. staleness: steps that it may be ahead of the slowest worker. device:
    that it computes on."""
    model = Transformer.of(config.model).to(device, dtype)
    weights.draw(model, config.model.shape.layers, config.seed)
    servers = Servers(model, config.optimizer, config.steps, staleness)
    for step in range(1, config.steps + 1):
        started = time.perf_counter()
        total = 0.0
        for batch in batches.step(step):
            logits = model(batch.inputs.to(device))
            loss = cross_entropy(logits, batch.targets.to(device), config.model.vocabulary) / batches.global_tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        sent = servers.step()
        if batches.rank == 0 and (step == 1 or step % config.log_every == 0 or step == config.steps):
            seconds, mean = time.perf_counter() - started, total * batches.ranks
            log.info("step %5d  loss of this worker %.4f  %.3f s  %s bytes sent", step, mean, seconds, sent)
    servers.close()
    return model


def refuse(config: TrainerConfig) -> None:
    """Raises BadConfiguration for what train.py understands and this does not: it would be left out unseen."""
    if config.model.from_ is not None:
        raise BadConfiguration(
            f"spec.trainer.model.from: {config.model.from_}, and parameter servers begin with drawn weights; leave it out"
        )
    if config.precision != "float32":
        raise BadConfiguration(
            f"spec.trainer.precision: {config.precision}, and parameter servers compute in float32 alone; leave it out"
        )
    if config.data.packing == "masked":
        raise BadConfiguration(
            "spec.trainer.data.packing: masked, and parameter servers divide the loss by all tokens of a step, some of which do "
            "not count then; use continuous"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process; the answer is its exit code."""
    parser = argparse.ArgumentParser(
        prog="trainyard_trainer.parameter_server", description="Train a small language model with parameter servers."
    )
    parser.add_argument(
        "--config", help="JSON file with the fields of spec.trainer; ignored where TRAINYARD_PLAN is set"
    )
    parser.add_argument(
        "--staleness", type=int, default=0, help="steps that a worker may be ahead of the slowest (default: 0, none)"
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s", force=True)
    try:
        if given.staleness < 0:
            raise BadConfiguration(f"--staleness: {given.staleness}; it is a number of steps, 0 or more")
        task = assignment(os.environ, given.config)
        config = task.trainer
        refuse(config)
        me = local_environment()
        torch.set_num_threads(threads(os.environ, me.local_ranks))
        device = pick_device(me.local_rank)
        batches = batches_of(config, corpus_of(config), config.data.micro_batch, me.rank, me.ranks)
        met(task.plan, os.environ, CPU, lambda: False)  # where the servers are
        train(config, batches, given.staleness, device=device)
        dist.destroy_process_group()
        return Exit.DONE
    except BadConfiguration as error:
        log.error("%s", error)
        return Exit.CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
