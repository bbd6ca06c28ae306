"""LLVM text to PTX, by llvmlite's own target."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

HEAD = """target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""


@cache
def machine(cpu: str = "sm_80", opt: int = 2) -> Any:
    """The code generator for a processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=cpu, features="+ptx80", opt=opt)


def to_ptx(text: str, cpu: str = "sm_80", opt: int = 2) -> str:
    """Compile a module, which is verified before."""
    module = llvm.parse_assembly(HEAD + text, llvm.create_context())
    module.verify()
    ptx: str = machine(cpu, opt).emit_assembly(module)
    return ptx
