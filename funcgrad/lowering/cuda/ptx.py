"""LLVM text made into PTX, and PTX into machine code of a GPU.

PTX needs nothing but llvmlite, whose LLVM has the NVPTX target. A cubin needs NVIDIA's assembler, ``ptxas``: from the
package ``nvidia-cuda-nvcc``, or on the path.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from funcgrad.base.errors import ProgramError
from funcgrad.lowering.values import Target

TRIPLE = "nvptx64-nvidia-cuda"
LEVEL = 2  # of the code generator: 1 keeps what it can compute once in the loop
VERSION = "+ptx80"  # of the PTX language: CUDA 12.0


def gpu_target() -> Target:
    """What emitted text may rely on: 16 bytes a load, and every GPU multiplies and adds with one rounding."""
    return Target(vector_bytes=16, fma=True, rounding=True, triple=TRIPLE)


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

    try:
        with llvm.create_context() as context, llvm.parse_assembly(header(arch) + text, context) as module:
            module.verify()
            return str(_machine(arch).emit_assembly(module))
    except RuntimeError as error:
        raise ProgramError(f"LLVM refuses the text of a kernel: {str(error).strip()}") from error
