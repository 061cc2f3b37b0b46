"""The command: meet, measure, say."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from trainyard.contract import env, plan
from trainyard.contract.measured import Gang, encode_line
from trainyard.contract.plan import Plan

from trainyard_trainer.measure import edges, orders, sizes, ways
from trainyard_trainer.parallel.rendezvous import Place, meet


def main(arguments: Sequence[str] | None = None) -> int:
    """Run by the launcher, in every process of the gang."""
    given = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    measured = plan.decode(Path(os.environ[env.PLAN]).read_bytes())
    rank, device = int(os.environ["RANK"]), _device()
    meet(
        Place.of(os.environ, rank, measured.world_size),
        device,
        measured.process_group_timeout_seconds,
        lambda: Path(os.environ[env.STOP_FILE]).exists() if env.STOP_FILE in os.environ else False,
    )
    given.measure(given, measured, rank, device)
    dist.barrier()  # rank 0 holds the store
    dist.destroy_process_group()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard_trainer.measure", description="How fast is this network?")
    what = parser.add_subparsers(required=True, metavar="WHAT")
    collectives = what.add_parser("collectives", help="each collective by message size")
    collectives.add_argument("--sizes", type=_sizes, default=(2**10, 2**16, 2**20, 2**24), help="bytes, with commas")
    collectives.add_argument(
        "--allowance", type=float, default=10.0, help="seconds that one may take (default: %(default)s)"
    )
    collectives.set_defaults(measure=_collectives)
    ring = what.add_parser("orders", help="the planned order of ranks against others")
    ring.add_argument("--mebibytes", type=float, nargs="+", default=[4.0], help="sizes of the message (default: 4)")
    ring.add_argument(
        "--orders",
        type=int,
        nargs="+",
        default=[20],
        help="how many random orders, of all sizes or of each (default: 20)",
    )
    ring.set_defaults(measure=_orders)
    return parser


def _collectives(given: argparse.Namespace, measured: Plan, rank: int, device: torch.device) -> None:
    together = ways.neighbours(measured)
    _say(rank, encode_line(Gang(measured.world_size, measured.processes_per_node, dist.get_backend(), together)))
    for edge in edges.measured(measured, rank, given.sizes, device, given.allowance / 4):
        _say(rank, encode_line(edge))
    of = ways.ways(measured, rank, device)
    for point in sizes.sweep(of, given.sizes, measured.world_size, device, given.allowance):
        _say(rank, encode_line(point))


def _orders(given: argparse.Namespace, measured: Plan, rank: int, device: torch.device) -> None:
    apart = orders.alternating(measured)
    counts = given.orders if len(given.orders) > 1 else given.orders * len(given.mebibytes)
    for mebibytes, count in zip(given.mebibytes, counts, strict=True):
        _say(rank, json.dumps(asdict(orders.measure(mebibytes, count, apart, device))))


def _say(rank: int, line: str) -> None:
    if rank == 0:
        print(line, flush=True)


def _device() -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
