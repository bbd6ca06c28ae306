"""ns per element of the elementary functions, against NumPy's and SciPy's: ``python benchmarks/vecmath.py``.

One thread, arrays of 1 000 elements in the first cache, the widest vectors of this CPU. Ours is a native loop that is
called from a native loop, NumPy's a ufunc call with ``out=`` (its overhead is measured on `np.positive` and taken off).
The two take turns in every round; best of the rounds. Also: milliseconds to emit and to compile each loop.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import scipy.special

from funcgrad.lowering.builder import Builder
from funcgrad.lowering.stages import this_target
from funcgrad.lowering.values import Target
from funcgrad.ops import vecmath

N = 1000
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[float, float], ...]]] = {
    "exp": (np.exp, ((-5, 5),)),
    "exp2": (np.exp2, ((-5, 5),)),
    "expm1": (np.expm1, ((-5, 5),)),
    "log": (np.log, ((0.01, 10),)),
    "log2": (np.log2, ((0.01, 10),)),
    "log10": (np.log10, ((0.01, 10),)),
    "log1p": (np.log1p, ((-0.9, 10),)),
    "sin": (np.sin, ((-10, 10),)),
    "cos": (np.cos, ((-10, 10),)),
    "tan": (np.tan, ((-10, 10),)),
    "tanh": (np.tanh, ((-3, 3),)),
    "sinh": (np.sinh, ((-3, 3),)),
    "cosh": (np.cosh, ((-3, 3),)),
    "asin": (np.arcsin, ((-1, 1),)),
    "acos": (np.arccos, ((-1, 1),)),
    "atan": (np.arctan, ((-5, 5),)),
    "asinh": (np.arcsinh, ((-5, 5),)),
    "acosh": (np.arccosh, ((1, 5),)),
    "atanh": (np.arctanh, ((-1, 1),)),
    "sigmoid": (scipy.special.expit, ((-5, 5),)),
    "cbrt": (np.cbrt, ((-5, 5),)),
    "erf": (scipy.special.erf, ((-3, 3),)),
    "erfc": (scipy.special.erfc, ((-3, 3),)),
    "erfinv": (scipy.special.erfinv, ((-1, 1),)),
    "xlogy": (scipy.special.xlogy, ((-3, 3), (0.1, 5))),
    "xlog1py": (scipy.special.xlog1py, ((-3, 3), (-0.9, 5))),
    "logaddexp2": (np.logaddexp2, ((-5, 5), (-5, 5))),
    "pow": (np.power, ((0.1, 5), (-3, 3))),
    "atan2": (np.arctan2, ((-5, 5), (-5, 5))),
    "hypot": (np.hypot, ((-5, 5), (-5, 5))),
    "logaddexp": (np.logaddexp, ((-5, 5), (-5, 5))),
}


def module(name: str, dtype: Any, target: Target, arity: int) -> str:
    """@main(out, *args, n, rounds): the function over arrays, `rounds` times."""
    itemsize = np.dtype(dtype).itemsize
    lanes = target.lanes(itemsize)
    b = Builder(target, lanes, block="loop")
    type = b.f64 if dtype is np.float64 else b.f32
    loads = []
    for i in range(arity):
        loads.append(f"  %p{i} = getelementptr {type.element}, ptr %x{i}, i64 %i")
        loads.append(f"  %a{i} = load {type}, ptr %p{i}, align {itemsize}")
    y = getattr(vecmath, name)(b, *[b.value(f"%a{i}", type) for i in range(arity)])
    params = ", ".join(["ptr %out", *[f"ptr %x{i}" for i in range(arity)], "i64 %n"])
    return "\n".join([
        f"define void @once({params}) noinline nounwind {{", "entry:", "  br label %loop", "loop:",
        f"  %i = phi i64 [ 0, %entry ], [ %next, %{b.block} ]", *loads, *b.lines,
        f"  %p = getelementptr {type.element}, ptr %out, i64 %i",
        f"  store {type} {y.text}, ptr %p, align {itemsize}", f"  %next = add i64 %i, {lanes}",
        "  %more = icmp ult i64 %next, %n", "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
        f"define void @main({params}, i64 %rounds) nounwind {{", "entry:", "  br label %loop", "loop:",
        "  %r = phi i64 [ 0, %entry ], [ %next, %loop ]", f"  call void @once({params})", "  %next = add i64 %r, 1",
        "  %more = icmp ult i64 %next, %rounds", "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
        b.shared.text(),
    ])  # fmt: skip


def compile_(text: str, arity: int) -> Callable[..., None]:
    """The function @main of a module."""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1, reloc="pic",
        codemodel="default", jit=True,
    )  # fmt: skip
    head = f'target triple = "{llvm.get_default_triple()}"\ntarget datalayout = "{machine.target_data}"\n'
    parsed = llvm.parse_assembly(head + text, llvm.create_context())
    parsed.verify()
    jit = llvm.create_lljit_compiler(llvm.Target.from_default_triple().create_target_machine(jit=True))
    library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(parsed)).export_symbol("main")
    tracker = library.link(jit, "vecmath")
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (1 + arity), ctypes.c_int64, ctypes.c_int64)(tracker["main"])
    function.alive = (jit, tracker)  # type: ignore[attr-defined]
    return function


def seconds(call: Callable[[], Any]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, dtype: Any, target: Target, rounds: int) -> tuple[float, float, float, float]:
    """(ours, theirs) in ns per element; (emission, compilation) in ms."""
    theirs, intervals = CASES[name]
    arity = len(intervals)
    emission = min(seconds(lambda: module(name, dtype, target, arity)) for _ in range(3))
    text = module(name, dtype, target, arity)
    compilation = min(seconds(lambda: compile_(text, arity)) for _ in range(3))
    function = compile_(text, arity)
    n = N // 16 * 16
    rng = np.random.default_rng(0)
    args = [rng.uniform(low, high, n).astype(dtype) for low, high in intervals]
    out = np.empty(n, dtype)
    pointers = [a.ctypes.data for a in (out, *args)]
    repeat = 100
    best = [np.inf, np.inf, np.inf]
    for _ in range(rounds):
        best[0] = min(best[0], seconds(lambda: function(*pointers, n, repeat)))
        best[1] = min(best[1], seconds(lambda: [theirs(*args, out=out) for _ in range(repeat)]))
        best[2] = min(best[2], seconds(lambda: [np.positive(args[0][:1], out=out[:1]) for _ in range(repeat)]))
    each = 1e9 / (n * repeat)
    return best[0] * each, (best[1] - best[2]) * each, emission * 1e3, compilation * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CASES), help="functions; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = this_target()
    print(f"{target.vector_bytes}-byte vectors, fma: {target.fma}; NumPy {np.__version__}; ns per element")
    head = " ".join(f"{d:>5}: {'ours':>5} {'theirs':>6} {'ratio':>6} {'emit':>5} {'ms':>5}" for d in ("f64", "f32"))
    print(f"{'':9} {head}")
    for name in options.names:
        cells = []
        for dtype in (np.float64, np.float32):
            ours, theirs, emission, compilation = measure(name, dtype, target, options.rounds)
            cells.append(f"       {ours:5.2f} {theirs:6.2f} {theirs / ours:6.1f} {emission:5.2f} {compilation:5.1f}")
        print(f"{name:9} {' '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
