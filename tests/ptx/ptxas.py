"""The assembler of a CUDA toolkit, where there is one: whether it takes our PTX, and what becomes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

FOUND = shutil.which("ptxas")


@dataclass(frozen=True, slots=True)
class Report:
    """What a kernel needs: registers of a thread, bytes of its stack, bytes spilled, bytes of shared memory."""

    registers: int
    stack: int
    spilled: int
    shared: int


def assemble(ptx: str, arch: str = "sm_80") -> dict[str, Report]:
    """Assemble a module, and report on each of its kernels. An error of the assembler is raised with its text."""
    assert FOUND is not None
    done = subprocess.run(
        [FOUND, "-v", f"-arch={arch}", "-o", "/dev/null", "-"], input=ptx, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise ValueError(done.stderr)
    out = {}
    for part in done.stderr.split("Compiling entry function")[1:]:
        number = lambda pattern, text=part: sum(int(n) for n in re.findall(pattern, text))
        name = re.search(r"'([^']+)'", part)
        assert name is not None
        out[name[1]] = Report(
            number(r"Used (\d+) registers"), number(r"(\d+) bytes stack frame"),
            number(r"(\d+) bytes spill (?:stores|loads)"), number(r"(\d+) bytes smem"),
        )  # fmt: skip
    return out
