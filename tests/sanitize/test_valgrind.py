"""Compiled code under valgrind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind")]


@pytest.mark.parametrize("arguments", [[], ["plant"]], ids=["as it is", "planted"])
def test_machine_code_makes_no_errors(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tests.sanitize.valgrind", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
