"""A file that a module of this room writes from its tables, or compares with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def written(file: Path, text: str, module: str, arguments: Sequence[str] | None = None) -> int:
    """Write the file; with --check, 1 where it has another text. module: whose it is, as python -m takes it."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"Write {file}.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")
    if parser.parse_args(arguments).check:
        if not file.exists() or file.read_text() != text:
            print(f"{file} is out of date; run python -m {module}", file=sys.stderr)
            return 1
        return 0
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return 0
