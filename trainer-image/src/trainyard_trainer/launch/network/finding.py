"""Look at the network beside the loop: a name server may be slow, and a signal must not wait for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from trainyard.contract.network import PodNetwork

from trainyard_trainer.launch.network.resolve import Part, resolve
from trainyard_trainer.launch.network.surroundings import surroundings


class Finding:
    """A search under way. fd: readable once it is over."""

    def __init__(self, part: Part, environment: Mapping[str, str]) -> None:
        self.fd, self._over = os.pipe()
        self._found: PodNetwork | None = None
        self._problem = "nothing was found in time"
        threading.Thread(target=self._look, args=(part, environment), name="network", daemon=True).start()

    def result(self) -> PodNetwork:
        """What was found; where that failed, a record that says so. To be asked once, when it is over or overdue."""
        os.close(self.fd)
        found = self._found
        return found or PodNetwork(warnings=(f"the network could not be looked at: {self._problem}",))

    def _look(self, part: Part, environment: Mapping[str, str]) -> None:
        try:
            self._found = resolve(surroundings(), part, environment)
        except Exception as problem:  # a machine that is stranger than we know must not keep a job from training
            self._problem = f"{type(problem).__name__}: {problem}"
        finally:
            os.close(self._over)
