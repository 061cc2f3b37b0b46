"""Each collective at each size, from the smallest on, until it takes too long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import torch
import torch.distributed as dist
from trainyard.contract.measured import Point, Way

from trainyard_trainer.measure.ways import Make, Once, bytes_of

SAMPLES: Final = 3
SAMPLE_SECONDS: Final = 0.05
"""Short collectives are done several times for one sample, so that how far apart ranks start does not count."""
MOST_IN_SAMPLE: Final = 32


def sweep(
    ways: Mapping[tuple[str, Way], Make],
    sizes: Sequence[int],
    ranks: int,
    device: torch.device,
    allowance_seconds: float,
) -> Iterator[Point]:
    """Called by all ranks alike, which get the same points. allowance_seconds: for one sample; sizes for which that would not be
    enough are left out."""
    for (collective, way), make in ways.items():
        before = None
        for size in sorted(sizes):
            if before is not None and before.seconds * max(1.0, size / before.bytes / 2) > allowance_seconds:
                break
            before = Point(collective, way.value, bytes_of(size, ranks), *measured(make(size), device))
            yield before


def measured(once: Once, device: torch.device) -> tuple[float, int]:
    """Seconds, and how many samples they are the median of. The first time connects, and is not counted."""
    sample(once, 1, device)
    first = sample(once, 1, device)
    times = max(1, min(MOST_IN_SAMPLE, int(SAMPLE_SECONDS / max(first, 1e-9))))
    samples = [sample(once, times, device) for _ in range(SAMPLES)]
    return median(samples), SAMPLES


def sample(once: Once, times: int, device: torch.device) -> float:
    """Seconds for one of several, one after the other; the slowest rank's, which is what training waits for."""
    dist.barrier()
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        once()
    _wait(device)
    seconds = torch.tensor([(time.perf_counter() - began) / times], dtype=torch.float64, device=device)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
