"""What the other layers ask of `lowering.cuda`, which is loaded with the first question: few programs use a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from funcgrad.core.device_array import DeviceArray, _runners
from funcgrad.core.ir import Program


def _cuda(module: str) -> Any:
    return importlib.import_module(f"funcgrad.lowering.cuda.{module}")


def device_named(name: str) -> Any:
    """The device of a name such as ``"cuda:0"``, or a DeviceError that says what is missing."""
    return _cuda("device").device_named(name)


def devices_found() -> list[Any]:
    """All GPUs; none if a package or the driver is missing."""
    return _cuda("device").devices_found()  # type: ignore[no-any-return]


def program_ptx(program: Program, arch: str | None = None) -> str:
    """The PTX of a Program."""
    return _cuda("executable").program_ptx(program, arch)  # type: ignore[no-any-return]


def program_resources(program: Program, arch: str | None = None) -> str:
    """A table of what the kernels of a Program take of a GPU."""
    return _cuda("executable").program_resources(program, arch)  # type: ignore[no-any-return]


def _run(program: Program, args: Sequence[Any], name: str) -> list[DeviceArray]:
    return _cuda("executable").run(program, args, name)  # type: ignore[no-any-return]


_runners[:] = [_run]
