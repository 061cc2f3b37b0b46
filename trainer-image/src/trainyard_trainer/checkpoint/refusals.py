"""What of a folder or of a checkpoint in it no other try can change: the user's to put right, with the field to look at."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

from trainyard_trainer.checkpoint.distributed import NothingVerifies
from trainyard_trainer.checkpoint.objects import Url
from trainyard_trainer.checkpoint.record import CommitRecord, Training
from trainyard_trainer.checkpoint.store import WrongFolder
from trainyard_trainer.configuration import BadConfiguration

LASTING: Final = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG}
"""What keeps a folder from being written to until somebody changes the pod or the volume."""


@contextmanager
def lasting_errors_are_the_users(root: PurePath) -> Iterator[None]:
    """Raises BadConfiguration for what ends the same way however often it is tried; the rest passes."""
    field = "spec.checkpoint.url" if isinstance(root, Url) else "spec.checkpoint.volume"
    try:
        yield
    except WrongFolder as error:
        raise BadConfiguration(f"{field}: {error}") from error
    except NothingVerifies as error:
        if error.lasting:
            raise BadConfiguration(f"{field}: {error}") from error
        raise
    except OSError as error:
        if error.errno in LASTING:
            remedy = (
                "give the pods credentials that may list, read, write and delete there"
                if isinstance(root, Url)
                else "mount it so that the trainer may write to it"
            )
            raise BadConfiguration(f"{field}: {error.filename}: {error.strerror}; {remedy}") from error
        raise


def compare(record: CommitRecord, training: Training, warn: Callable[[str, str], None]) -> None:
    """What a commit is of, against what is to be trained now. Raises BadConfiguration for another shape of model."""
    before = record.training
    for name, value in training.model.items():
        if before.model.get(name) != value:
            raise BadConfiguration(
                f"spec.trainer.model.{name}: {value}, but the checkpoint of step {record.step} was made with "
                f"{before.model.get(name)}; keep it, or train from the beginning as another job"
            )
    if (before.data, before.seed) != (training.data, training.seed):
        warn("DataChanged", f"data or seed differ from those of step {record.step}: samples may repeat or be missed")
    elif before.configuration != training.configuration:
        warn("ConfigurationChanged", f"the configuration differs from that of step {record.step}")
