"""The demonstration itself: train, preempt, resume, compare bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
from trainyard_lab.layout import Lab


@pytest.mark.timeout(1500)
def test_the_demonstration_goes_as_it_should(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    """Its exit code is its verdict, by states and counts. What it tells is shown while it tells it."""
    with capfd.disabled():
        done = subprocess.run([sys.executable, "-m", "trainyard_lab.demo"], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
