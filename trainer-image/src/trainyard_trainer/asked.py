"""What a rank is asked while it trains: through two files by its launcher, or by SIGTERM where there is none."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from trainyard.contract import env


class Requests:
    """What this rank alone was asked: by the launcher through two files, or by SIGTERM where there is no launcher."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._stop_file = environment.get(env.STOP_FILE)
        self._checkpoint_file = environment.get(env.CHECKPOINT_FILE)
        self._terminated = False
        self._answered = self._checkpoint_number()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Requests:
        """Those of this process, which SIGTERM is made to ask from now on where there is no launcher."""
        requests = cls(environment)
        if env.STOP_FILE not in environment:
            signal.signal(signal.SIGTERM, requests.on_sigterm)
        return requests

    def stop_asked(self) -> bool:
        """One stat: cheap enough for every step and every wait."""
        return self._terminated or (self._stop_file is not None and os.path.exists(self._stop_file))

    def save_asked(self) -> bool:
        """Whether a save was asked for that has not been made."""
        return self._checkpoint_number() != self._answered

    def seconds_left(self) -> float | None:
        """Until the deadline of the stop that was asked; None where it has none."""
        try:
            deadline = float(json.loads(Path(self._stop_file or "").read_bytes())["deadline"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return deadline - time.time() if deadline > 0 else None

    def saved(self) -> None:
        """What was asked until now is done."""
        self._answered = self._checkpoint_number()

    def on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """A handler: Python runs it between two steps of ours, which is when we look."""
        self._terminated = True

    def _checkpoint_number(self) -> int:
        """Of the file as it is now, which is replaced at each request: its inode and time tell one from the next."""
        try:
            status = os.stat(self._checkpoint_file or "")
        except OSError:
            return 0
        return status.st_mtime_ns ^ status.st_ino
