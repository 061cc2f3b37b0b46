"""A committed checkpoint as a folder that Hugging Face transformers reads.

    python -m trainyard_trainer.export /checkpoints/lab.job.6f1c2a90 /models/mine --dtype bfloat16

Needs no GPU and no gang, and as much memory as the largest file that is written and the largest piece of a tensor that was saved.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from trainyard.contract.plan import Lineage, Mark

from trainyard_trainer.checkpoint.places import Root, last_attempt, root_of, store_at, streams_at
from trainyard_trainer.checkpoint.record import decode, history
from trainyard_trainer.checkpoint.store import RECORD, Stored, mismatch
from trainyard_trainer.checkpoint.writer import Reader
from trainyard_trainer.model.huggingface import CONFIG, INDEX, SINGLE, name_of, written_config

SHARD_BYTES = 5 * 10**9
"""Most of a file, as transformers writes them."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class NothingToExport(ValueError):
    """There is no checkpoint, none of a model of the built-in trainer, or nowhere to write it. The message names the path."""


def newest(path: Root) -> Stored:
    """The commit in a folder; or of a job's folder or URL, the newest.

    Raises NothingToExport where there is none that verifies.
    """
    if isinstance(path, Path) and (path / RECORD).exists():
        stored = Stored(decode((path / RECORD).read_bytes()), path)
    else:
        attempts = last_attempt(path)
        commits = {stored.record.mark: stored for stored in store_at(path, attempts + 1).find().commits}
        line = history(
            [stored.record for stored in commits.values()], Lineage(tuple(Mark(n, -1) for n in range(1, attempts + 1)))
        )
        if not line:
            raise NothingToExport(f"{path}: holds no committed checkpoint; name a job's folder or one of its steps")
        stored = commits[line[0].mark]
    problem = mismatch(stored.path, stored.record.files, streams_at(stored.path))
    if problem is not None:
        raise NothingToExport(f"{stored.path}: {problem}; name an earlier step")
    return stored


def export(stored: Stored, out: Path, dtype: str = "float32", shard_bytes: int = SHARD_BYTES) -> list[Path]:
    """Write a commit's weights and config.json to a new folder; the answer is the files of weights.

    Raises NothingToExport where the commit is of a script's own model, or the folder is there.
    """
    if "layers" not in stored.record.training.model:
        raise NothingToExport(
            f"{stored.path}: was saved by a script of one's own (session.save), whose model has no config.json that could be "
            "known; load it with session.load, and save it as the library of that model does"
        )
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise NothingToExport(f"{out}: is there already; name a folder that is not") from None
    shards = list(_shards(stored, DTYPES[dtype].itemsize, shard_bytes))
    paths = [
        out / (SINGLE if len(shards) == 1 else f"model-{n:05d}-of-{len(shards):05d}.safetensors")
        for n in range(1, len(shards) + 1)
    ]
    total = sum(_write(stored, path, shard, DTYPES[dtype]) for path, shard in zip(paths, shards, strict=True))
    if len(paths) > 1:
        by_name = {
            name_of(name.removeprefix("model.")): path.name
            for path, shard in zip(paths, shards, strict=True)
            for name in shard
        }
        (out / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": by_name}, indent=2))
    (out / CONFIG).write_text(json.dumps(written_config(stored.record.training.model, dtype), indent=2))
    return paths


def _write(stored: Stored, path: Path, shard: Mapping[str, torch.Size], dtype: torch.dtype) -> int:
    """One file; the answer is how many bytes its tensors have. They are read into what is written, cast on the way."""
    state = {name: torch.empty(size, dtype=dtype) for name, size in shard.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is no gang, which is as it should be
        dcp_load(dict(state), storage_reader=Reader(stored.path, streams_at(stored.path)), no_dist=True)
    save_file({name_of(name.removeprefix("model.")): tensor for name, tensor in state.items()}, path, {"format": "pt"})
    path.chmod(0o644)  # it makes them for their owner alone
    return sum(tensor.nbytes for tensor in state.values())


def _shards(stored: Stored, value_bytes: int, most_bytes: int) -> Iterator[dict[str, torch.Size]]:
    """Names and sizes of the tensors of each file."""
    metadata = Reader(stored.path, streams_at(stored.path)).read_metadata().state_dict_metadata
    shard: dict[str, torch.Size] = {}
    room = most_bytes
    for name, tensor in metadata.items():
        if not name.startswith("model."):
            continue
        size: torch.Size = tensor.size  # type: ignore[union-attr]
        takes = size.numel() * value_bytes
        if shard and takes > room:
            yield shard
            shard, room = {}, most_bytes
        shard[name] = size
        room -= takes
    yield shard


def main(arguments: Sequence[str] | None = None) -> int:
    """The answer is the exit code."""
    parser = argparse.ArgumentParser(prog="trainyard_trainer.export", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "checkpoint", type=root_of, help="folder or URL of a job, or folder of one of its committed steps"
    )
    parser.add_argument("out", type=Path, help="folder to write, which must not be there yet")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: %(default)s)")
    parser.add_argument("--shard-bytes", type=int, default=SHARD_BYTES, help="most of one file (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        stored = newest(given.checkpoint)
        paths = export(stored, given.out, given.dtype, given.shard_bytes)
    except NothingToExport as error:
        print(error, file=sys.stderr)
        return 1
    print(f"step {stored.record.step} of attempt {stored.record.attempt}: {len(paths)} files in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
