"""The target of GPUs as the other layers see it: `cuda.target`, loaded with the first question, as few programs ask."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from funcgrad.core.ir import Program

if TYPE_CHECKING:
    from funcgrad.lowering.cuda.executable import CudaExecutable
    from funcgrad.lowering.cuda.plan import Device
    from funcgrad.lowering.cuda.target import Cuda


def _cuda() -> Cuda:
    found: Any = importlib.import_module("funcgrad.lowering.cuda.target")
    return found.CUDA  # type: ignore[no-any-return]


class Gpu:
    """The `target.Placed` of GPUs."""

    stages: tuple[str, ...] = ("ptx", "cubin")
    for_arch = True
    serves_calls = False

    def ready(self, program: Program, place: str) -> CudaExecutable:
        """A Program compiled for a device."""
        return _cuda().ready(program, place)

    def text(self, program: Program, stage: str, arch: str | None) -> str:
        """The PTX, or a table of what the kernels take of a GPU."""
        return _cuda().text(program, stage, arch)

    def devices(self) -> list[Device]:
        """All GPUs; none if a package or the driver is missing."""
        return _cuda().devices()

    def device(self, name: str) -> Device:
        """The device of a name such as ``"cuda:0"``, or a DeviceError that says what is missing."""
        return _cuda().device(name)
