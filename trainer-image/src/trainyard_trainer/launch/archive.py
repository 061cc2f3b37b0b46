"""`python -m trainyard_trainer.launch.archive FOLDER`: the launcher as one file, for images that have no Trainyard in them.

    FOLDER/launch.pyz       python3 launch.pyz -- python3 train.py
    FOLDER/bin/torchrun     for scripts that call torchrun themselves

The launcher in it needs a Python of the version below and its standard library; `trainyard_trainer.session`, which workers
find in it too, the image's torch. Its first lines run on any Python, and say so where it is too old. The same sources give
the same bytes.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import trainyard
from trainyard.contract.exits import Exit

import trainyard_trainer

OLDEST: Final = (3, 10)
"""The oldest Python that the launcher runs on: the oldest that torch 2.9 and later are made for."""
NAME: Final = "launch.pyz"
EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file in it: the earliest that the format has."""

_MAIN: Final = """\
import sys

if sys.version_info < {oldest!r}:
    import json
    import os

    cause = (
        "the launcher needs Python {oldest[0]}.{oldest[1]} or newer, and python3 in this image is %d.%d; "
        "use a newer image, or put a newer python3 first on its search path" % tuple(sys.version_info[:2])
    )
    sys.stderr.write("[launcher] " + cause + "\\n")
    words = {{"attempt": 0, "node_rank": -1, "exit": {configuration}, "cause": cause, "step": 0}}
    try:
        with open(os.environ.get("TRAINYARD_TERMINATION_LOG", "/dev/termination-log"), "r+") as log:
            log.write(json.dumps(words))
            log.truncate()
    except (IOError, OSError):
        pass
    sys.exit({configuration})
if sys.argv[1:2] == ["--as-torchrun"]:
    from trainyard_trainer.launch.torchrun import main

    sys.exit(main(sys.argv[2:]))
from trainyard_trainer.launch.main import main

sys.exit(main())
"""

_TORCHRUN: Final = """\
#!/bin/sh
exec python3 "$(dirname "$0")/../{name}" --as-torchrun "$@"
"""


def sources() -> Iterator[tuple[str, bytes]]:
    """Name in the archive and content of each module, in order: the contract, and all that is for the pod."""
    contract, trainer = Path(trainyard.__file__).parent, Path(trainyard_trainer.__file__).parent
    yield "trainyard/__init__.py", (contract / "__init__.py").read_bytes()
    for root, package in ((contract, contract / "contract"), (trainer, trainer)):
        for path in sorted(package.rglob("*.py")):
            yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def write(folder: Path) -> Path:
    """Make both files; the path of the archive."""
    archive, torchrun = folder / NAME, folder / "bin" / "torchrun"
    torchrun.parent.mkdir(parents=True, exist_ok=True)
    start = _MAIN.format(oldest=OLDEST, configuration=int(Exit.CONFIGURATION)).encode()
    with zipfile.ZipFile(archive, "w") as out:
        for name, content in (("__main__.py", start), *sources()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            out.writestr(entry, content)
    torchrun.write_text(_TORCHRUN.format(name=NAME))
    archive.chmod(0o644)
    torchrun.chmod(0o755)
    return archive


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the archive; says where and how large."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m trainyard_trainer.launch.archive FOLDER", file=sys.stderr)
        return 2
    made = write(Path(given[0]))
    print(f"{made}: {made.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
