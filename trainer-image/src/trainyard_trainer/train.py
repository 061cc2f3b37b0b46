"""Train a language model. Reads from top to bottom as what happens.

    python -m trainyard_trainer.train                                  one process, defaults
    torchrun --nproc-per-node 4 -m trainyard_trainer.train --config c.json --checkpoints /tmp/run --every 50

In a pod, the launcher starts one such process for each rank and the plan says everything else.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist
from trainyard.api.trainer import TrainerConfig
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis, Checkpoints

from trainyard_trainer.configuration import Assignment, BadConfiguration, assignment, local_environment
from trainyard_trainer.data.ahead import Ahead
from trainyard_trainer.data.batches import Batch, Batches, batches_of
from trainyard_trainer.data.corpus import Corpus
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.divergence import Watch
from trainyard_trainer.ledger import COUNTED_STEP, Ledger, predicted
from trainyard_trainer.model import weights
from trainyard_trainer.model.huggingface import Pretrained
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.optimizer import adamw, learning_rate, set_learning_rate
from trainyard_trainer.parallel.admission import admit, memory_of
from trainyard_trainer.parallel.mesh import PIPELINE, axes_of, data_place, dimensions
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.parallel.rendezvous import StoppedEarly
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.preflight.gang import PreflightFailed
from trainyard_trainer.report import Phase, Reporter
from trainyard_trainer.scaling import PRECISIONS, Scaler
from trainyard_trainer.seeds import seed_of
from trainyard_trainer.session import Session, describe
from trainyard_trainer.utilization import Utilization

log = logging.getLogger("trainyard_trainer")


def train(task: Assignment, session: Session, text: Corpus) -> Exit:
    """From wherever the lineage ends to the last step, or to the step at which all ranks agree to stop."""
    config = task.trainer
    deterministic(config.deterministic, session.device)
    training = describe(task, text.digest)
    agree_on_data(session, text)

    with torch.device("meta"):
        model = Transformer.of(config.model)
    model.recompute(config.activation_checkpointing == "block")
    if config.compile:
        model.compile_blocks()
    size = sum(parameter.numel() for parameter in model.parameters())
    places = Places.of(task.plan, session.ranks, local_environment().local_ranks)
    nested = places.nested(session.mesh)
    spread = Spread(model, session.mesh, session.device, config.parallel, PRECISIONS[config.precision], nested)
    optimizer = adamw(model, config.optimizer)

    axes = axes_of(session.mesh)
    batches = cut(config, text, axes, session.rank)
    step = session.load(model, optimizer, training)
    if step == 0:
        pretrained = Pretrained.find(config.model)
        if pretrained is not None:
            pretrained.load(model)
        else:
            weights.draw(model, config.model.shape.layers, config.seed)
    if session.rank == 0:
        log.info(
            "%s parameters, %s tokens to learn from, %s ranks (%s), from step %s",
            size,
            text.tokens,
            session.ranks,
            " x ".join(f"{axis.name} {axis.size}" for axis in axes),
            step,
        )

    session.report.phase(Phase.WARM_UP, step)
    digest = batches.order.digest(step) if step else ""
    first = step + 1
    scaler = Scaler(config.precision)
    watch = Watch(config.divergence, session.losses(config.divergence.spike_window))
    utilization = Utilization.of(config, session.device, session.ranks)
    ledger = Ledger(session.mesh, places)
    ahead = Ahead(batches, session.asked_to_stop, session.report, pin=session.device.type == "cuda")
    if step < config.steps:
        ahead.fetch(first)
        ahead.wait(step, Phase.WARM_UP)
    while step < config.steps and not session.should_stop():
        started = time.perf_counter()
        step += 1
        torch.manual_seed(seed_of(config.seed, step, batches.rank))
        micro_batches = ahead.take(step)
        if step < config.steps:
            ahead.fetch(step + 1)

        # What a step sends is counted once: by the passes through the network, and by all ranks to agree.
        counted = step == first + COUNTED_STEP - 1
        with ledger.counting(counted):
            mine = learn(spread, batches, micro_batches, scaler.scale)
        # For the next step's samples each rank waits by itself: within the sum it would hold up the others.
        data_seconds = ahead.wait(step - 1, Phase.WARM_UP if step == first else Phase.TRAIN)
        with ledger.counting(counted, together=True):
            sums = Terms(*session.sum_over_ranks(*mine))
        while scaler.overflows(sums.loss, sums.squared):
            optimizer.zero_grad()
            mine = learn(spread, batches, micro_batches, scaler.scale)
            sums = Terms(*session.sum_over_ranks(*mine))

        # Until now everything was divided by the tokens that could count; now it is known how many do.
        tokens = max(1, round(sums.tokens))
        rest = batches.global_tokens / tokens
        unscaled = rest / scaler.scale
        loss, norm = sums.loss * rest, sums.squared**0.5 * unscaled
        fault = watch.look(step, loss, norm)
        if fault is None:
            spread.clip(norm, config.optimizer.clip_norm, by=unscaled)
            set_learning_rate(optimizer, learning_rate(step, config.steps, config.optimizer))
            optimizer.step()
        else:
            optimizer.zero_grad()
            if fault.finite:
                cause = spread.whose(micro_batches, batches.global_tokens, mine.loss)
            else:
                cause = spread.why(micro_batches, batches.global_tokens, scaler.scale, mine.loss)
            watch.give_up(fault, cause, session, model, optimizer)
            spread.forget()  # and not before: the cause is looked for by doing the step again
        optimizer.zero_grad()

        digest = batches.order.digest(step)
        seconds = time.perf_counter() - started
        session.step_done(
            step,
            loss=loss,
            tokens=tokens,
            step_seconds=seconds,
            grad_norm=norm,
            samples=digest,
            data_seconds=data_seconds,
            mfu=utilization.mfu(tokens, seconds),
        )
        if session.rank == 0 and (step == first or step % config.log_every == 0 or step == config.steps):
            log.info("step %5d  loss %.4f  %7.0f tokens/s  %.3f s", step, loss, tokens / seconds, seconds)
        if counted:
            ledger.tell(session.report, predicted(config, session.mesh, places), seconds, session.waited_seconds)
            session.copied.nothing()
        saved = session.should_save(step)
        if saved:
            session.save(model, optimizer, digest, training)
        if saved or step == first:
            session.report.phase(Phase.TRAIN, step)

    if step < config.steps:
        session.leave(model, optimizer, digest, training)
        log.info("asked to stop: left after step %s", step)
        return Exit.YIELDED
    session.save(model, optimizer, digest, training, wait=True)
    return Exit.DONE


class Terms(NamedTuple):
    """A rank's terms of the numbers that all ranks decide by, or their sums.

    loss: the step's mean over the tokens that could count; squared: the norm of the gradient, as it was scaled, its square;
    tokens: those that do count.
    """

    loss: float
    squared: float
    tokens: float


def learn(spread: Spread, batches: Batches, micro_batches: Sequence[Batch], scale: float) -> Terms:
    """Forward and backward with this rank's samples of a step; the ranks sum their gradients meanwhile."""
    loss = spread.learn(micro_batches, batches.global_tokens, scale)
    return Terms(loss, spread.norm_squared(), batches.part_of_tokens(micro_batches))


def cut(config: TrainerConfig, text: Corpus, axes: Sequence[Axis], rank: int) -> Batches:
    """The corpus as this rank sees it: ranks that share stages or matrices of one copy take the same samples.

    axes: of the mesh. A pipeline gets at least as many micro-batches as it has stages.
    """
    data = config.data
    part, parts = data_place(axes, rank)
    stages = next((axis.size for axis in axes if axis.name == PIPELINE), 1)
    rows = min(data.micro_batch, max(1, -(-data.global_batch // parts) // stages))
    return batches_of(config, text, rows, part, parts, alike=prod(axis.size for axis in axes) // parts)


def refuse(task: Assignment, text: Corpus) -> None:
    """Raises BadConfiguration for what can be known to fail before anybody is waited for and anything is allocated: a mesh that
    the ranks, the model or a process's memory do not allow, a source too short for a sample, weights that are not whole."""
    me = local_environment()
    axes = dimensions(task.plan.mesh if task.plan else (), me.ranks)
    admit(task.trainer, axes, memory_of(me.local_ranks))
    cut(task.trainer, text, axes, me.rank)
    Pretrained.find(task.trainer.model)


def agree_on_data(session: Session, text: Corpus) -> None:
    """Raises BadConfiguration where the ranks do not all see the same text: a step's samples would not be what it says."""
    digests: list[str] = [""] * session.ranks
    dist.all_gather_object(digests, text.digest)
    other = next((rank for rank, digest in enumerate(digests) if digest != text.digest), None)
    if other is not None:
        raise BadConfiguration(
            f"spec.trainer.data: rank {session.rank} reads {text.files} files with digest {text.digest}, and rank {other} "
            f"reads others ({digests[other]}); put the data where all pods see the same"
        )


def deterministic(wanted: bool | None, device: torch.device) -> None:
    """Use only operations that give the same bits again, where that is wanted; left open, on a CPU, where they cost nothing."""
    wanted = device.type == "cpu" if wanted is None else wanted
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not without it
    torch.use_deterministic_algorithms(wanted)
    # Each step has new buffers; nobody reads what nobody wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; the answer is its exit code."""
    parser = argparse.ArgumentParser(prog="trainyard_trainer.train", description="Train a small language model.")
    parser.add_argument(
        "--config", help="JSON file with the fields of spec.trainer; ignored where TRAINYARD_PLAN is set"
    )
    parser.add_argument("--checkpoints", help="folder to save to and to resume from; likewise")
    parser.add_argument("--every", type=int, default=None, help="steps between two saves (default: at the end only)")
    parser.add_argument("--keep", type=int, default=3, help="how many checkpoints stay (default: %(default)s)")
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s", force=True)

    report = Reporter.from_environment(int(os.environ.get("RANK", "0")))
    report.phase(Phase.INIT, 0)
    folder = given.checkpoints
    checkpoints = Checkpoints(folder, every_steps=given.every, keep=given.keep) if folder else None
    try:
        task = assignment(os.environ, given.config, checkpoints)
        text = corpus_of(task.trainer)
        refuse(task, text)
        with Session.open(task) as session:
            ending = train(task, session, text)
        report.phase(Phase.DONE, session.steps_done)
        return ending
    except StoppedEarly as stopped:
        log.info("%s", stopped)
        report.stop_acknowledged(0)
        return Exit.YIELDED
    except PreflightFailed as error:  # the launcher was told of it
        log.error("%s", error)
        return Exit.PREFLIGHT
    except BadConfiguration as error:
        log.error("%s", error)
        report.failed(error, configuration=True)
        return Exit.CONFIGURATION
    except Exception as error:
        log.exception("rank %s failed", os.environ.get("RANK", "0"))
        report.failed(error)
        return Exit.FAILURE


if __name__ == "__main__":
    sys.exit(main())
