"""Find and undo mounts by where they lie."""

import re
from pathlib import Path

from trainyard_lab import shell

TABLE = Path("/proc/self/mountinfo")


def below(folder: Path, table: str | None = None) -> list[Path]:
    """The mount points at or below a folder, the last mounted first."""
    lines = (TABLE.read_text() if table is None else table).splitlines()
    points = [Path(_unescaped(line.split()[4])) for line in lines]
    return [point for point in reversed(points) if point.is_relative_to(folder)]


def unmount_below(folder: Path) -> None:
    """Unmount all of them. Lazily: a process that is just ending may still stand in one."""
    for point in below(folder.resolve()):
        try:
            shell.run("umount", "--lazy", "--no-mtab", str(point))
        except shell.CommandFailed:
            if point in below(folder.resolve()):
                raise


def _unescaped(name: str) -> str:
    """The kernel writes blanks, tabs, line breaks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)
