"""The operator with one difference: launchers are reached at the address in TEST_LAUNCHERS (host:port), where a test put a real
HTTP server that speaks the contract for all pods."""

from __future__ import annotations

import asyncio
import os
import sys

from trainyard.controller import process
from trainyard.controller.settings import read
from trainyard.telemetry import logs
from trainyard.world.records import Pod


def main() -> int:
    settings = read(os.environ)
    logs.configure(settings.log_level)
    host, port = os.environ["TEST_LAUNCHERS"].rsplit(":", 1)

    def address(_: Pod) -> tuple[str, int]:
        return host, int(port)

    return asyncio.run(process.run(settings, settings.key(), address))


if __name__ == "__main__":
    sys.exit(main())
