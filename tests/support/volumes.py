"""A volume that things happen to: a real file system of a given size, mounted where a test says. Needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Volume:
    """at: where the trainer sees it. Its files also lie where it was mounted first, as on a server that is still there."""

    def __init__(self, at: Path, server: Path) -> None:
        self.at = at
        self._server = server

    def fill(self) -> None:
        """Take all the room that is left."""
        with (self._server / "ballast").open("wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(4096)):
                    pass
            except OSError:
                return

    def free(self) -> None:
        """Give the room back."""
        (self._server / "ballast").unlink()

    def read_only(self) -> None:
        """Only to be read from now on: a mount over the other one, since files that are open to be written keep that as it is."""
        self.come_back()
        _mount("-o", "remount,bind,ro", self.at)

    def writable(self) -> None:
        """No longer only to be read."""
        self.go_away()

    def go_away(self) -> None:
        """Take it from under the trainer, as when the connection to a server is lost for good."""
        subprocess.run(["umount", "--lazy", self.at], check=True)

    def come_back(self) -> None:
        """Mount it again, with all that it held."""
        _mount("--bind", self._server, self.at)


@contextmanager
def volume(folder: Path, size_bytes: int) -> Iterator[Volume]:
    """A volume of so many bytes at folder/volume, gone in the end."""
    at, server = folder / "volume", folder / "server"
    at.mkdir()
    server.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "trainyard-test", server)
    try:
        made = Volume(at, server)
        made.come_back()
        try:
            yield made
        finally:
            while subprocess.run(["umount", "--lazy", at], check=False, capture_output=True).returncode == 0:
                pass
    finally:
        subprocess.run(["umount", "--lazy", server], check=True)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)
