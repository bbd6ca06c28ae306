"""Small kernels in LLVM text, and an elementwise op of funcgrad as a kernel with a thread for each element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.lowering.builder import Builder
from funcgrad.lowering.values import Target, make_type
from funcgrad.ops.scalar import element_of
from tests.ptx.codegen import to_ptx

TARGET = Target(vector_bytes=64, fma=True, rounding=True, triple="nvptx64-nvidia-cuda")

DECLARES = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.laneid()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.bar.warp.sync(i32)
declare i32 @llvm.nvvm.shfl.sync.down.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.up.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)
declare float @llvm.nvvm.shfl.sync.down.f32(i32, float, i32, i32)
declare i32 @llvm.nvvm.vote.ballot.sync(i32, i1)
declare i1 @llvm.nvvm.vote.any.sync(i32, i1)
declare i1 @llvm.nvvm.vote.all.sync(i32, i1)
declare i32 @llvm.nvvm.match.any.sync.i32(i32, i32)
declare i32 @llvm.nvvm.redux.sync.add(i32, i32)
declare i32 @llvm.nvvm.activemask()
declare void @llvm.trap()
"""

PROLOGUE = """  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %size = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %before = mul i32 %block, %size
  %i = add i32 %before, %t
"""


def entry(params: str, body: str, rest: str = "", **compile: Any) -> str:
    """The PTX of a kernel `k` in whose body %t is the thread, %block the block, and %i the number in the grid."""
    text = f"{DECLARES}\n{rest}\ndefine ptx_kernel void @k({params}) {{\nentry:\n{PROLOGUE}{body}\n}}\n"
    return to_ptx(text, **compile)


def array(name: str, readonly: bool = False) -> str:
    """A parameter: a pointer to global memory that no other names."""
    return f"ptr addrspace(1) noalias {'readonly ' if readonly else ''}%{name}"


def at(pointer: str, element: str, index: str, result: str, space: int = 1) -> str:
    """The address of an element."""
    return f"  {result} = getelementptr {element}, ptr addrspace({space}) {pointer}, i32 {index}\n"


def elementwise(op: Any, dtypes: Sequence[np.dtype], out: np.dtype, params: dict[str, Any]) -> str:
    """LLVM text of a kernel ``k(*operands, result, n)`` that applies an op to n elements."""
    b = Builder(TARGET, lanes=1, block="body")
    loads, values = "", []
    for k, d in enumerate(dtypes):
        element = "i8" if d.kind == "b" else element_of(d)
        loads += at(f"%x{k}", element, "%i", f"%p{k}") + f"  %l{k} = load {element}, ptr addrspace(1) %p{k}\n"
        loads += f"  %c{k} = icmp ne i8 %l{k}, 0\n" if d.kind == "b" else ""
        values.append(b.value(f"%{'c' if d.kind == 'b' else 'l'}{k}", make_type(element_of(d))))
    y = op.emit(b, dtypes[-1], *values, **params)
    if out.kind == "b":
        y = b.emit(make_type("i8"), f"zext i1 {y.text} to i8")
    pointers = ", ".join([*[array(f"x{k}", readonly=True) for k in range(len(dtypes))], array("out"), "i32 %n"])
    return f"""{DECLARES}
{b.shared.text()}
define ptx_kernel void @k({pointers}) {{
entry:
{PROLOGUE}  %inside = icmp slt i32 %i, %n
  br i1 %inside, label %body, label %done
body:
{loads}{chr(10).join(b.lines)}
{at("%out", y.type.text, "%i", "%p")}  store {y.type.text} {y.text}, ptr addrspace(1) %p
  br label %done
done:
  ret void
}}
"""
