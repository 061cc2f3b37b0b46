"""Where a job's checkpoints are, by what the plan says: a folder on a volume, or a URL of an object store."""

from __future__ import annotations

from pathlib import Path, PurePath

from trainyard_trainer.checkpoint import bucket, folder
from trainyard_trainer.checkpoint.bucket import Bucket
from trainyard_trainer.checkpoint.files import Posix, Streams
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.checkpoint.objects import Objects, Url
from trainyard_trainer.checkpoint.store import Store

Root = Path | Url


def root_of(where: str) -> Root:
    """The place that `folder` of the plan names."""
    return Url(where) if "://" in where else Path(where)


def store_at(root: Root, attempt: int) -> Store:
    """The checkpoints there, as an attempt sees them."""
    return Bucket(Objects(root), attempt) if isinstance(root, Url) else Folder(root, attempt)


def streams_at(path: PurePath) -> Streams:
    """How the files of a directory there are read."""
    return Objects(path) if isinstance(path, Url) else Posix()


def last_attempt(root: Root) -> int:
    """The highest number that an attempt has had there; 0 where there was none."""
    return bucket.last_attempt(root) if isinstance(root, Url) else folder.last_attempt(root)
