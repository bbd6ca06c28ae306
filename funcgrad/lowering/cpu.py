"""The target of this processor: whole Programs as machine code of this process, or in stages between NumPy's work."""

from __future__ import annotations

import os
from dataclasses import dataclass

from funcgrad.core.ir import Program
from funcgrad.lowering.executable import Executable, executable
from funcgrad.lowering.machine import host
from funcgrad.lowering.readable import format_buffers, format_kernels
from funcgrad.lowering.stages import module_assembly, module_text

TEXTS = {"kernels": format_kernels, "buffers": format_buffers, "llvm": module_text, "asm": module_assembly}


@dataclass(frozen=True, slots=True)
class HostDevice:
    """The processor and its memory, as a device (see `Backend.devices`)."""

    name: str
    title: str
    arch: str
    memory: int


class Cpu:
    """The `target.Placed` of this processor."""

    stages: tuple[str, ...] = tuple(TEXTS)
    for_arch = False
    serves_calls = True

    def ready(self, program: Program, place: str) -> Executable:
        """A Program that is compiled at its first call."""
        return executable(program)

    def text(self, program: Program, stage: str, arch: str | None) -> str:
        """A stage of a Program as text."""
        return TEXTS[stage](program)

    def devices(self) -> list[HostDevice]:
        """One."""
        return [self.device("cpu")]

    def device(self, name: str) -> HostDevice:
        """This machine."""
        h = host()
        return HostDevice("cpu", h.cpu, h.triple, _memory())


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
