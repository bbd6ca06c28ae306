"""Compiled code touches nothing outside of its buffers: the processor would end the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mmap as Linux has it")
ROOT = Path(__file__).parents[2]


def guarded(*arguments: str) -> Any:
    command = [sys.executable, "-m", "tests.sanitize.guard_pages", *arguments]
    environment = {**os.environ, "FUNCGRAD_SANITIZE": "0"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_buffers_against_guard_pages() -> None:
    done = guarded()
    assert done.returncode == 0 and done.stdout.endswith("46 programs\n"), done.stdout[-100:] + done.stderr


def test_a_planted_fault_meets_a_guard_page() -> None:
    done = guarded("plant")
    assert done.returncode == -signal.SIGSEGV and done.stdout == "elementwise\n"
