"""Parameter servers: gradients go to whoever keeps the parameters, and the parameters come back from there (Li et al. 2014).

Every process is a worker, and the server of some of the parameters: of whole ones, dealt out so that all servers have about as
much. A worker sends each server the gradients of what it keeps, and fetches the values that become of them.

    staleness 0   a server waits for the gradients of all workers, adds them up and takes one step: what DDP computes
    staleness s   a server takes a step with every gradient as it comes; a worker waits only where it would get more than s
                  steps ahead of the slowest one (stale synchronous parallel; Ho et al. 2013)

Sent in a step: by each process, as worker and as server, 2 (n - 1)/n of the parameters' bytes, as much as in a ring's
all-reduce. But it goes from everybody to everybody, so that each server's link takes in the gradients of n - 1 workers at
once, and no placement of ranks helps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Thread
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from trainyard.api.trainer import OptimizerConfig
from trainyard.contract.plan import PROCESS_GROUP_TIMEOUT_SECONDS

from trainyard_trainer.optimizer import adamw, learning_rate, set_learning_rate
from trainyard_trainer.parallel import timeouts

PATIENCE_SHARE: Final = 0.8
"""Of a collective's timeout, how long a server lets a worker wait for the others: it can say who is late, and a receive that
times out cannot."""


class Shard:
    """What one server keeps, in memory and not on a GPU: its parameters, its part of the optimizer, and how far every worker is.

    Called by one thread for each worker. lead: the most steps that a worker which got values was ahead of the slowest.
    """

    def __init__(
        self,
        kept: Sequence[Tensor],
        config: OptimizerConfig,
        steps: int,
        workers: int,
        staleness: int,
        patience_seconds: float = PATIENCE_SHARE * PROCESS_GROUP_TIMEOUT_SECONDS,
    ) -> None:
        self._kept = nn.ParameterList([nn.Parameter(value.detach().to("cpu", copy=True)) for value in kept])
        self._config, self._steps, self._staleness = config, steps, staleness
        self._optimizer = adamw(self._kept, config) if len(self._kept) else None
        self._gradients: dict[int, Tensor] = {}
        self._done = [0] * workers
        self._applied, self._patience_seconds = 0, patience_seconds
        self._changed = Condition()
        self.lead = 0

    def exchange(self, worker: int, gradients: Tensor) -> Tensor:
        """A worker's gradients of its next step for the values to go on with; both one after the other, in one row.

        Raises TimeoutError where the other workers do not come.
        """
        if self._optimizer is None:
            return gradients  # with more servers than parameters some keep nothing, and nobody comes to them
        with self._changed:
            self._done[worker] += 1
            mine = self._done[worker]
            if self._staleness:
                self._apply(gradients, mine, 1 / len(self._done))
            else:
                self._gradients[worker] = gradients
                if len(self._gradients) == len(self._done):  # in the order of workers: equal runs give equal bits
                    self._apply(
                        sum(self._gradients[n] for n in range(1, len(self._done))) + self._gradients[0], mine, 1.0
                    )
                    self._gradients, self._applied = {}, mine
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._near_enough(mine), self._patience_seconds):
                least = min(self._done)
                late = f"worker {self._done.index(least)} has done {least}"
                raise TimeoutError(
                    f"worker {worker} waits since {self._patience_seconds:.0f} s after step {mine}: {late}"
                )
            self.lead = max(self.lead, mine - min(self._done))
            return in_a_row(list(self._kept), gradients)

    def _near_enough(self, step: int) -> bool:
        if self._staleness:
            return step - min(self._done) <= self._staleness
        return self._applied >= step

    def _apply(self, gradients: Tensor, step: int, share: float) -> None:
        """share: of the learning rate; as many steps are taken in place of one."""
        assert self._optimizer is not None
        for parameter, part in zip(self._kept, out_of_a_row(gradients, list(self._kept)), strict=True):
            parameter.grad = part
        set_learning_rate(self._optimizer, share * learning_rate(step, self._steps, self._config))
        self._optimizer.step()


class Servers:
    """This process as a worker, and as one of the servers. Made by all ranks at once, with models of equal weights.

    The model may lie on a GPU; what is sent and kept does not: servers add up and step on the CPU, over gloo.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, steps: int, staleness: int) -> None:
        self._rank, self._ranks, self._steps = dist.get_rank(), dist.get_world_size(), steps
        parameters = list(model.parameters())
        self._parameters = [
            [parameters[n] for n in some] for some in deal([p.numel() for p in parameters], self._ranks)
        ]
        patience_seconds = PATIENCE_SHARE * timeouts.of_all_ranks().total_seconds()
        self.shard = Shard(self._parameters[self._rank], config, steps, self._ranks, staleness, patience_seconds)
        # Groups of their own: a push and a fetch between two processes are under way at the same time.
        self._push, self._fetch = _group(), _group()
        self._failures: list[BaseException] = []
        others = [rank for rank in range(self._ranks) if rank != self._rank]
        self._threads = [Thread(target=self._serve, args=(worker,), daemon=True) for worker in others]
        for thread in self._threads:
            thread.start()

    @torch.no_grad()
    def step(self) -> int:
        """Give all gradients away and take what became of the parameters. The answer is how many bytes this worker sent.

        Every worker calls it once for each of the steps.
        """
        gradients = [
            in_a_row([_gradient(p) for p in some], some[0] if some else None).cpu() for some in self._parameters
        ]
        sends = [
            dist.isend(row, server, self._push)
            for server, row in enumerate(gradients)
            if server != self._rank and len(row)
        ]
        mine = self.shard.exchange(self._rank, gradients[self._rank])
        sent = 0
        for server, some in enumerate(self._parameters):
            values = mine
            if server != self._rank:
                values = torch.empty_like(gradients[server])
                sent += values.numel() * values.element_size()
                if len(values):
                    dist.recv(values, server, self._fetch)
            for parameter, value in zip(some, out_of_a_row(values, some), strict=True):
                parameter.copy_(value)
                parameter.grad = None
        for send in sends:
            if send is not None:
                send.wait()
        return sent

    def close(self) -> None:
        """See the other workers to their last step. Raises what went wrong while serving them."""
        for thread in self._threads:
            thread.join()
        for failure in self._failures:
            raise failure

    def _serve(self, worker: int) -> None:
        """All steps of another worker."""
        kept = self._parameters[self._rank]
        if not kept:
            return
        try:
            for _ in range(self._steps):
                gradients = torch.empty(sum(p.numel() for p in kept), dtype=kept[0].dtype)
                dist.recv(gradients, worker, self._push)
                dist.send(self.shard.exchange(worker, gradients), worker, self._fetch)
        except BaseException as failure:
            self._failures.append(failure)


def deal(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Which of the parameters each server keeps, by index: the largest first, each to who has least so far."""
    kept: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        least = loads.index(min(loads))
        kept[least].append(n)
        loads[least] += sizes[n]
    return [sorted(some) for some in kept]


def in_a_row(tensors: Sequence[Tensor], like: Tensor | None) -> Tensor:
    """All numbers one after the other; none, of the type of `like`, where there are no tensors."""
    if tensors:
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return torch.empty(0, dtype=None if like is None else like.dtype)


def out_of_a_row(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What `in_a_row` put together."""
    parts = torch.split(row, [tensor.numel() for tensor in like]) if like else ()
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def _group() -> dist.ProcessGroup:
    group = dist.new_group(timeout=timeouts.of_all_ranks())
    assert isinstance(group, dist.ProcessGroup)  # every rank is in it
    return group


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
