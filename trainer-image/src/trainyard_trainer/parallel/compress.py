"""Gradients that replicas send compressed. What is computed with, master weights, and what a rank keeps are not touched by it.

    fp16, bf16   numbers of two bytes, summed as such                       2 bytes a number
    PowerSGD     of a matrix two thin factors (Vogels et al. 2019)          4 r (rows + columns)
    int8         a byte a number and a scale for each 128; decoded, added   2 (1 + 4/128)
                 up and coded again between the two halves of an all-reduce
    top-k        the largest numbers of each parameter, with their places   8 n k

PowerSGD, int8 and top-k add what they left out of a gradient to the next one (error feedback: Seide et al. 2014, Karimireddy
et al. 2019): without it, what is always left out would never be learned. That rest lives in memory alone: a resume begins
without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from trainyard.api.trainer import CompressionConfig
from trainyard.planner.compression import BLOCK, SCALE_BYTES, kept, part

from trainyard_trainer.parallel.buckets import Bucket, Reduction
from trainyard_trainer.parallel.hierarchical import Levels

HALVES: Final[Mapping[str, torch.dtype]] = {"fp16": torch.float16, "bf16": torch.bfloat16}
WHOLE_STEPS: Final = 2
"""In which PowerSGD sends everything: DDP packs its buckets anew after the first, and the second is the first with those."""
LARGEST: Final = 127


def compressed(group: dist.ProcessGroup, config: CompressionConfig) -> Reduction:
    """The reduction of a method that compresses."""
    match config.method:
        case "fp16":
            return Hooked(group, fp16_compress_hook, group)
        case "bf16":
            return Hooked(group, bf16_compress_hook, group)
        case "powersgd":
            return PowerSgd(group, config.rank)
        case "int8":
            return Int8(group)
        case "topk":
            return TopK(group, config.share)
        case _:
            raise ValueError(f"{config.method} compresses nothing")


@runtime_checkable
class Keeps(Protocol):
    """A reduction that keeps something of one step for the next."""

    def forget(self) -> None:
        """Keep nothing: the step came to nothing, and weights that it would have moved stay."""


class Hooked:
    """A communication hook of torch. It takes the mean where we want the sum: the loss was divided by all tokens before."""

    def __init__(
        self, group: dist.ProcessGroup, hook: Callable[[Any, Any], torch.futures.Future[Tensor]], state: Any
    ) -> None:
        self._members, self._hook, self._state = group.size(), hook, state

    def __call__(self, bucket: Bucket) -> None:
        bucket.flat.mul_(self._members)
        self._hook(self._state, bucket).wait()


class PowerSgd(Hooked):
    """Two factors of each matrix, and vectors whole."""

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self._of_steps = PowerSGDState(_Waiting(group), matrix_approximation_rank=rank, start_powerSGD_iter=WHOLE_STEPS)
        super().__init__(group, powerSGD_hook, self._of_steps)

    def __call__(self, bucket: Bucket) -> None:
        errors, factors = self._of_steps.error_dict, self._of_steps.q_memory_dict
        before = factors[bucket.number].clone() if bucket.number in factors else None
        super().__call__(bucket)
        if bucket.number not in factors:
            return  # all of it was sent
        # A sum that is no number is so on all ranks alike; the next gradient is to begin without it.
        finite, now = _finite(bucket.flat), factors[bucket.number]
        errors[bucket.number] = torch.where(finite, errors[bucket.number], 0.0)
        now.copy_(torch.where(finite, now, _drawn(now, bucket.number) if before is None else before))

    def forget(self) -> None:
        for held in (self._of_steps.error_dict, self._of_steps.p_memory_dict, self._of_steps.q_memory_dict):
            held.clear()


class _Waiting:
    """A process group whose all-reduce is done when it is handed back: what torch's hook chains to it then runs here, within
    sight of the ledger, and not on a thread of gloo's."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def size(self) -> int:
        return self._group.size()

    def allreduce(self, tensors: list[Tensor], options: Any) -> dist.Work:
        work = self._group.allreduce(tensors, options)
        work.wait()
        return work


class Half:
    """Numbers of two bytes, summed by levels of the network."""

    def __init__(self, dtype: torch.dtype, levels: Levels) -> None:
        self._dtype, self._levels = dtype, levels

    def __call__(self, bucket: Bucket) -> None:
        small = bucket.flat.to(self._dtype)
        self._levels.sum(small)
        bucket.flat.copy_(small)


class Int8:
    """A byte a number. Each member adds up a part for all, and hands out the sum, coded again."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._members = group, group.size()
        self._mine, self._sums = _Rests(), _Rests()

    def __call__(self, bucket: Bucket) -> None:
        parts = [part(gradient.numel(), self._members) for gradient in bucket.parts]
        dealt = torch.cat(
            [
                F.pad(gradient.reshape(-1), (0, self._members * each - gradient.numel())).view(self._members, each)
                for gradient, each in zip(bucket.parts, parts, strict=True)
            ],
            dim=1,
        )
        wanted = self._mine.added_to(bucket.number, dealt)
        sent = coded(wanted)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        total = self._sums.added_to(bucket.number, decoded(received, dealt.dtype).sum(dim=0, keepdim=True))
        again = coded(total)
        gathered = torch.empty_like(sent)
        dist.all_gather_into_tensor(gathered, again, group=self._group)
        whole = decoded(gathered, dealt.dtype)
        finite = _finite(whole)
        self._mine.keep(bucket.number, wanted - decoded(sent, dealt.dtype), finite)
        self._sums.keep(bucket.number, total - decoded(again, dealt.dtype), finite)
        for gradient, numbers in zip(bucket.parts, torch.split(whole, parts, dim=1), strict=True):
            gradient.copy_(numbers.reshape(-1)[: gradient.numel()].view_as(gradient))

    def forget(self) -> None:
        self._mine.forget()
        self._sums.forget()


class TopK:
    """The largest numbers of each parameter and their places; what several members send of one place is added up."""

    def __init__(self, group: dist.ProcessGroup, share: float, feedback: bool = True) -> None:
        """feedback: whether what is left out is added to the next gradient; without it this is no method to train by."""
        self._group, self._share, self._feedback = group, share, feedback
        self._left_out = _Rests()

    def __call__(self, bucket: Bucket) -> None:
        wanted = self._left_out.added_to(bucket.number, bucket.flat) if self._feedback else bucket.flat.clone()
        places, begin = [], 0
        for gradient in bucket.parts:
            numbers = wanted[begin : begin + gradient.numel()]
            places.append(numbers.abs().topk(kept(gradient.numel(), self._share), sorted=False).indices + begin)
            begin += gradient.numel()
        chosen = torch.cat(places)
        values = wanted[chosen].to(torch.float32)
        sent = torch.stack([values, chosen.to(torch.int32).view(torch.float32)])
        gathered = sent.new_empty(self._group.size() * len(sent), len(chosen))
        dist.all_gather_into_tensor(gathered.view(torch.uint8), sent.view(torch.uint8), group=self._group)
        of_all, where = gathered[0::2].reshape(-1), gathered[1::2].reshape(-1).view(torch.int32).long()
        bucket.flat.zero_().index_add_(0, where, of_all.to(bucket.flat.dtype))
        if self._feedback:
            wanted[chosen] -= values.to(wanted.dtype)
            self._left_out.keep(bucket.number, wanted, _finite(of_all))

    def forget(self) -> None:
        self._left_out.forget()


class _Rests:
    """What was left out of each bucket at the last step."""

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}

    def added_to(self, number: int, numbers: Tensor) -> Tensor:
        """A bucket's numbers and what was left out of them before; without it where there is none, or DDP packed anew since. It
        is forgotten: `keep` says what is left out now."""
        rest = self._held.pop(number, None)
        return numbers + rest if rest is not None and rest.shape == numbers.shape else numbers.clone()

    def keep(self, number: int, rest: Tensor, finite: Tensor) -> None:
        """finite: whether the step came to anything; nothing is left out of one that did not."""
        self._held[number] = torch.where(finite, rest, 0.0)

    def forget(self) -> None:
        self._held.clear()


def coded(numbers: Tensor) -> Tensor:
    """Rows of numbers, each a multiple of BLOCK long, as rows of bytes: a signed byte a number, then a float32 for each block, by
    which its bytes are multiplied."""
    blocks = numbers.view(len(numbers), -1, BLOCK)
    scales = (blocks.abs().amax(dim=-1) / LARGEST).to(torch.float32)
    divisors = scales.clamp(min=torch.finfo(torch.float32).tiny).to(numbers.dtype)
    steps = (blocks / divisors.unsqueeze(-1)).round().to(torch.int8)
    return torch.cat([steps.flatten(1).view(torch.uint8), scales.view(torch.uint8)], dim=1)


def decoded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """What `coded` made rows of bytes of. A block that held anything infinite or not a number is no number at all."""
    numbers = rows.shape[1] // (BLOCK + SCALE_BYTES) * BLOCK
    steps = rows[:, :numbers].contiguous().view(torch.int8).to(dtype).view(len(rows), -1, BLOCK)
    scales = rows[:, numbers:].contiguous().view(torch.float32).to(dtype)
    blocks: Tensor = steps * scales.unsqueeze(-1)
    return blocks.flatten(1)


def _finite(numbers: Tensor) -> Tensor:
    """Whether all are: a tensor, since to ask it is to wait for the GPU in the middle of the backward pass."""
    return torch.isfinite(numbers.sum())


def _drawn(like: Tensor, seed: int) -> Tensor:
    """Random numbers, on all ranks the same."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
