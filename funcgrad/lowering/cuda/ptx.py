"""LLVM text made into PTX, and PTX into machine code of a GPU.

PTX needs nothing but llvmlite, whose LLVM has the NVPTX target. A cubin needs NVIDIA's assembler, ``ptxas``: from the
package ``nvidia-cuda-nvcc``, or on the path.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Container
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from funcgrad.base.errors import DeviceError, ParameterError, ProgramError
from funcgrad.lowering.values import Target

TRIPLE = "nvptx64-nvidia-cuda"
LEVEL = 2  # of the code generator: 1 keeps what it can compute once in the loop
VERSION = "+ptx80"  # of the PTX language: CUDA 12.0
GET_PTXAS = 'pip install "nvidia-cuda-nvcc<13.1"'  # what a newer one writes a driver of CUDA 13.0 refuses
FEW = 32
"""Registers of a thread with which as many threads run as a GPU of compute capability 8.0 or 9.0 has room for."""


def gpu_target() -> Target:
    """What emitted text may rely on: 16 bytes a load, and every GPU multiplies and adds with one rounding."""
    return Target(vector_bytes=16, fma=True, rounding=True, triple=TRIPLE)


ARCHS = (75, 80, 86, 87, 89, 90)
"""What PTX is made for. Newer GPUs run that of the newest of these."""
GPUS = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
"""What CUDA 13 compiles for."""


def named_arch(where: str, arch: str) -> str:
    """An architecture that a user wrote there.

    Raises
    ------
    ParameterError
        No architecture that CUDA 13 knows.
    """
    if not isinstance(arch, str) or arch not in [f"sm_{n}" for n in GPUS]:
        digits = re.sub(r"\D", "", str(arch))
        meant = f"sm_{digits}, in quotes; " if digits.isdigit() and int(digits) in GPUS else ""
        hint = f"{meant}sm_ and one of {', '.join(map(str, GPUS))}"
        raise ParameterError(f"{where}={arch!r:.40}: no GPU that CUDA 13 compiles for", hint=hint)
    return arch


def made_for(arch: str) -> str:
    """The newest architecture whose PTX a GPU runs, which may be newer than all that have a name here."""
    return f"sm_{max(n for n in ARCHS if n <= int(arch[3:]))}"


@lru_cache(maxsize=8)
def _machine(arch: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=arch, features=VERSION, opt=LEVEL)


@lru_cache(maxsize=8)
def header(arch: str) -> str:
    """The lines that open a module."""
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{_machine(arch).target_data}"\n'


def compile_ptx(text: str, arch: str) -> str:
    """The PTX of an LLVM module without header, for a GPU such as ``"sm_80"``."""
    import llvmlite.binding as llvm

    arch = made_for(arch)
    try:
        with llvm.create_context() as context, llvm.parse_assembly(header(arch) + text, context) as module:
            module.verify()
            return str(_machine(arch).emit_assembly(module))
    except RuntimeError as error:
        raise ProgramError(f"LLVM refuses the text of a kernel: {str(error).strip()}") from error


# -- machine code


BOUND = re.compile(r"(\.entry (\w+)\([^)]*\)\n)\.maxnreg \d+\n")
"""A kernel with a bound of registers: its head, and its name."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of a GPU: registers of a thread; in bytes what it spills, its stack, and shared memory."""

    registers: int
    spills: int
    stack: int
    shared: int


@cache
def find_ptxas() -> str | None:
    """Where NVIDIA's assembler is: the newest in packages (``nvidia-cuda-nvcc``), else on the path; None if nowhere."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations or () if spec is not None else ()
    found = sorted([str(p) for place in places for p in Path(place).glob("*/bin/ptxas*")])
    if len(found) > 1:
        found.sort(key=lambda path: [int(n) for n in re.findall(r"V(\d+)\.(\d+)\.(\d+)", _version(path) + "V0.0.0")[0]])
    return found[-1] if found else shutil.which("ptxas")


@cache
def assembler_version() -> str:
    """The version of the assembler, or '' if there is none."""
    ptxas = find_ptxas()
    return "" if ptxas is None else _version(ptxas)


def _version(ptxas: str) -> str:
    try:
        return subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ""


def unbounded(ptx: str, names: Container[str] | None = None) -> str:
    """A module whose kernels of those names, or all, take as many registers as the assembler likes."""
    return BOUND.sub(lambda m: m[0] if names is not None and m[2] not in names else m[1], ptx)


def compile_cubin(ptx: str, arch: str) -> bytes:
    """The machine code of a module. Kernels that would spill at their bound of registers have none.

    Raises
    ------
    DeviceError
        There is no assembler, or none that can do it.
    """
    return _assembled(ptx, arch)[0]


def resources(ptx: str, arch: str) -> dict[str, Resources]:
    """What each kernel of a module takes, as the assembler reports it."""
    return parse_report(_assembled(ptx, arch)[1])


def _assembled(ptx: str, arch: str) -> tuple[bytes, str]:
    cubin, report = _by_ptxas(ptx, arch)
    freed = unbounded(ptx, {name for name, r in parse_report(report).items() if r.spills or r.stack})
    return (cubin, report) if freed == ptx else _by_ptxas(freed, arch)


def _by_ptxas(ptx: str, arch: str) -> tuple[bytes, str]:
    ptxas = find_ptxas()
    if ptxas is None:
        raise DeviceError(
            "machine code of a GPU needs NVIDIA's assembler ptxas, which is not installed",
            hint=f"{GET_PTXAS}, or put the bin of a CUDA toolkit on the PATH",
        )
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(ptx)
        command = [ptxas, "-v", f"-arch={arch}", str(source), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            fault = done.stderr.strip() or "it writes nothing"
        except OSError as error:
            fault = str(error)
        else:
            if not done.returncode and target.exists():
                return target.read_bytes(), done.stderr
        raise DeviceError(
            f"NVIDIA's assembler {ptxas} does not assemble the kernels of a program for {arch}: {fault[:500]}",
            hint=f"that of CUDA 12.0 or later does: {GET_PTXAS}",
        )


def parse_report(report: str) -> dict[str, Resources]:
    """The kernels of a report of ``ptxas -v``."""
    found: dict[str, Resources] = {}
    number = lambda pattern, text: sum([int(n) for n in re.findall(pattern, text)])
    for part in report.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        found[name] = Resources(
            number(r"Used (\d+) registers", part),
            number(r"(\d+) bytes spill (?:stores|loads)", part),
            number(r"(\d+) bytes stack frame", part),
            number(r"(\d+) bytes smem", part),
        )
    return found
