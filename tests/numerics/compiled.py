"""Emitters as functions of arrays: compiled for any width of vectors, with and without fused multiply-add."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

import funcgrad  # noqa: F401  (the registry is filled)
from funcgrad.core.primitive import registry
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.stages import this_target
from funcgrad.lowering.values import Target, Value

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

Array = Any
f64, f32, long = np.float64, np.float32, np.longdouble
DTYPES = (f64, f32)
WIDEST = this_target().vector_bytes
CPUS = {64: llvm.get_host_cpu_name(), 32: "x86-64-v3", 16: "x86-64"}
FLAGS = {64: llvm.get_host_cpu_features().flatten(), 32: "", 16: ""}


def link(text: str, vector_bytes: int, imports: dict[str, int]) -> tuple[Any, ...]:
    """Compile a module that defines @main and load it: (what keeps it alive, its address)."""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=CPUS[vector_bytes], features=FLAGS[vector_bytes], opt=1, reloc="pic", codemodel="default", jit=True
    )
    head = f'target triple = "{llvm.get_default_triple()}"\ntarget datalayout = "{machine.target_data}"\n'
    module = llvm.parse_assembly(head + text, llvm.create_context())
    module.verify()
    jit = llvm.create_lljit_compiler(llvm.Target.from_default_triple().create_target_machine(jit=True))
    library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module)).export_symbol("main")
    for name, address in imports.items():
        library.import_symbol(name, address)
    tracker = library.link(jit, "vecmath")
    return (jit, tracker), tracker["main"]


def loop(element: str, arity: int, lanes: int, body: Sequence[str], result: str, block: str, rest: str) -> str:
    """@main(out, *args, n): a loop over arrays whose body computes `result` from %a0, %a1."""
    vector = element if lanes == 1 else f"<{lanes} x {element}>"
    size = {"double": 8, "float": 4}.get(element, 16)
    loads = []
    for i in range(arity):
        loads += [f"  %p{i} = getelementptr {element}, ptr %x{i}, i64 %i"]
        loads += [f"  %a{i} = load {vector}, ptr %p{i}, align {size}"]
    params = ", ".join(["ptr %out", *[f"ptr %x{i}" for i in range(arity)], "i64 %n"])
    return "\n".join([
        f"define void @main({params}) nounwind {{", "entry:", "  br label %loop", "loop:",
        f"  %i = phi i64 [ 0, %entry ], [ %next, %{block} ]", *loads, *body,
        f"  %p = getelementptr {element}, ptr %out, i64 %i", f"  store {vector} {result}, ptr %p, align {size}",
        f"  %next = add i64 %i, {lanes}", "  %more = icmp ult i64 %next, %n",
        "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}", rest,
    ])  # fmt: skip


class Compiled:
    """An emitter, compiled for one dtype and target, as a function of arrays."""

    def __init__(
        self, emit: Callable[..., Value], dtype: Any, vector_bytes: int, fma: bool, arity: int = 1, lanes: int = 0
    ) -> None:
        self.dtype = np.dtype(dtype)
        target = Target(vector_bytes, fma, rounding=vector_bytes > 16)
        self.lanes = lanes or target.lanes(self.dtype.itemsize)
        b = Builder(target, self.lanes, block="loop")
        type = b.f64 if dtype is f64 else b.f32
        y = emit(b, *[b.value(f"%a{i}", type) for i in range(arity)])
        self.text = loop(type.element, arity, self.lanes, b.lines, y.text, b.block, b.shared.text())
        self.alive, address = link(self.text, vector_bytes, {})
        self.main = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (1 + arity), ctypes.c_int64)(address)

    def __call__(self, *args: Array) -> Array:
        n = len(args[0])
        padded = -(-n // self.lanes) * self.lanes
        if padded != n:
            args = tuple(np.append(a, np.ones(padded - n, self.dtype)) for a in args)
        args = tuple(np.ascontiguousarray(a, self.dtype) for a in args)
        out = np.empty(padded, self.dtype)
        self.main(out.ctypes.data, *[a.ctypes.data for a in args], padded)
        return out[:n]


def libm(name: str) -> Callable[[Array], Array]:
    """A long double function of the C library that NumPy does not offer."""

    def call(x: Array) -> Array:
        _, main = _libm(name)
        x = np.ascontiguousarray(x, long)
        out = np.empty_like(x)
        if len(x):
            main(out.ctypes.data, x.ctypes.data, len(x))
        return out

    return call


@cache
def _libm(name: str) -> tuple[Any, Any]:
    body = [f"  %y = call x86_fp80 @{name}(x86_fp80 %a0)"]
    text = loop("x86_fp80", 1, 1, body, "%y", "loop", f"declare x86_fp80 @{name}(x86_fp80)")
    c_function = ctypes.cast(getattr(ctypes.CDLL("libm.so.6"), name), ctypes.c_void_p).value
    alive, address = link(text, 16, {name: c_function})
    return alive, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


@cache
def compiled(name: str, dtype: Any, vector_bytes: int, fma: bool, lanes: int = 0) -> Compiled:
    """The emitter of an op of the registry."""
    op = registry[name]
    emit = lambda b, *values: op.emit(b, np.dtype(dtype), *values)
    return Compiled(emit, dtype, vector_bytes, fma, arity(name), lanes)


def arity(name: str) -> int:
    """The number of operands of an op."""
    return len(inspect.signature(registry[name].function).parameters)
