"""Matrix products through the BLAS that SciPy brings: addresses of its functions, and calls as LLVM text.

C in row-major order is the transpose of C in BLAS's column-major order, so ``x @ y`` is asked for as ``yᵀ xᵀ``;
a transposed operand is a flag. Only the extension module that holds the pointers is loaded, at the first product.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

from funcgrad.base.shelter import lock
from funcgrad.lowering import sanitize
from funcgrad.lowering.kernels import Product
from funcgrad.lowering.layout import View

_lock = lock()


def _capsules() -> dict[str, Any]:
    """``scipy.linalg.cython_blas.__pyx_capi__``, without importing the rest of scipy.linalg (140 ms)."""
    name = "scipy.linalg.cython_blas"
    with _lock:  # an extension module can be loaded once
        module = sys.modules.get(name)
        if module is None:
            import scipy

            folder = Path(scipy.__file__).parent / "linalg"
            finder = importlib.machinery.FileFinder(
                str(folder), (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
            )
            spec = finder.find_spec(name)
            assert spec is not None and spec.loader is not None, "SciPy has no cython_blas"
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module  # where a later import of scipy.linalg finds it
        return dict(module.__pyx_capi__)


@cache
def address(name: str) -> int:
    """Address of a BLAS function such as ``dgemm``."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = _capsules()[name]
    return int(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))


def is_vector(product: Product) -> bool:
    """Whether one operand is a single row or column; of an empty sum gemv would leave the result as it is."""
    return product.x.shape[2] > 0 and (product.x.shape[1] == 1 or product.y.shape[2] == 1)


def routine(product: Product) -> str:
    """The name of the function that computes a product."""
    return ("d" if product.dtype.itemsize == 8 else "s") + ("gemv" if is_vector(product) else "gemm")


ARGUMENTS = {"dgemm": 13, "sgemm": 13, "dgemv": 11, "sgemv": 11}


def _matrix(view: View) -> tuple[str, int]:
    """How BLAS reads a row-major matrix: ``N`` or ``T``, and its leading dimension."""
    _, rows, columns = view.shape
    _, down, right = view.strides
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", max(down if rows > 1 else columns, columns, 1)
    return "T", max(right if columns > 1 else rows, rows, 1)


def _gemm(p: Product) -> tuple[dict[str, int], dict[str, str], str]:
    """Integers, flags, and the call: the transpose of x y is y^T x^T."""
    (_, rows, depth), columns = p.x.shape, p.y.shape[2]
    (flag_x, lead_x), (flag_y, lead_y) = _matrix(p.x), _matrix(p.y)
    numbers = {"m": columns, "n": rows, "k": depth, "a": lead_y, "b": lead_x, "c": max(columns, 1)}
    names = ("ty", "tx", "m", "n", "k", "one", "q1", "a", "q0", "b", "zero", "q2", "c")
    call = ", ".join([f"ptr %{name}" for name in names])
    return numbers, {"ty": flag_y, "tx": flag_x}, call


def _gemv(p: Product) -> tuple[dict[str, int], dict[str, str], str]:
    """Integers, flags, and the call: a matrix, seen by columns, times a vector."""
    _, rows, depth = p.x.shape
    columns = p.y.shape[2]
    by_rows = columns == 1  # x is the matrix, y the vector; else y^T is the matrix, x the vector
    matrix, vector = (p.x, p.y) if by_rows else (p.y, p.x)
    flag, lead = _matrix(matrix)
    step = max(vector.strides[1] if by_rows else vector.strides[2], 1)
    results = rows if by_rows else columns
    transposed = (flag == "N") == by_rows  # a matrix stored by rows is, by columns, its transpose
    m, n = (depth, results) if transposed else (results, depth)
    numbers = {"m": m, "n": n, "a": lead, "b": step, "c": 1}
    a, x = ("%q0", "%q1") if by_rows else ("%q1", "%q0")
    call = f"ptr %t, ptr %m, ptr %n, ptr %one, ptr {a}, ptr %a, ptr {x}, ptr %b, ptr %zero, ptr %q2, ptr %c"
    return numbers, {"t": "T" if transposed else "N"}, call


def _spans(name: str, call: str, numbers: dict[str, int], flags: dict[str, str]) -> dict[str, int]:
    """How many elements from each pointer on BLAS reads or writes, by what it is told."""
    names = [p.removeprefix("ptr ") for p in call.split(", ")]
    told = [numbers.get(p[1:], 0) for p in names]

    def matrix(flag: str, rows: int, columns: int, lead: int) -> int:
        """Of `rows` and `columns` after the flag; BLAS counts by columns."""
        rows, columns = (rows, columns) if flags[flag[1:]] == "N" else (columns, rows)
        return lead * (columns - 1) + rows if rows and columns else 0

    if name.endswith("gemm"):
        left, right, _, _, _, _, a, _, b, _, _, out, _ = names
        _, _, m, n, k, _, _, lead_a, _, lead_b, _, _, lead = told
        return {
            a: matrix(left, m, k, lead_a),
            b: matrix(right, k, n, lead_b),
            out: lead * (n - 1) + m if m and n else 0,
        }
    flag, _, _, _, a, _, x, _, _, out, _ = names
    _, m, n, _, _, lead, _, step, _, _, _ = told
    rows, columns = (m, n) if flags[flag[1:]] == "N" else (n, m)
    return {a: lead * (n - 1) + m, x: step * (columns - 1) + 1, out: rows}


def product_text(product: Product) -> str:
    """The body of ``void @KERNEL(ptr %p0, ptr %p1, ptr %p2)``: x, y, out."""
    name = routine(product)
    element, size = ("double", 8) if name[0] == "d" else ("float", 4)
    batch = product.x.shape[0]
    if not batch:
        return "define internal void @KERNEL(ptr %p0, ptr %p1, ptr %p2) #0 {\nentry:\n  ret void\n}\n"
    numbers, flags, call = (_gemv if is_vector(product) else _gemm)(product)
    lines = ["entry:"]
    for key, value in numbers.items():
        lines += [f"  %{key} = alloca i32", f"  store i32 {value}, ptr %{key}"]
    for key, letter in flags.items():
        lines += [f"  %{key} = alloca i8", f"  store i8 {ord(letter)}, ptr %{key}"]
    for key, number in (("one", "1.0"), ("zero", "0.0")):
        lines += [f"  %{key} = alloca {element}", f"  store {element} {number}, ptr %{key}"]
    bytes_of = [v.strides[0] * size for v in (product.x, product.y, product.out)]
    offsets = [v.offset * size for v in (product.x, product.y, product.out)]
    lines += [f"  %o{i} = getelementptr i8, ptr %p{i}, i64 {o}" for i, o in enumerate(offsets)]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    for i, step in enumerate(bytes_of):
        lines += [f"  %s{i} = mul i64 %i, {step}", f"  %q{i} = getelementptr i8, ptr %o{i}, i64 %s{i}"]
    lines += [
        *sanitize.touches([(p, size * n) for p, n in _spans(name, call, numbers, flags).items()]),
        f"  call void @{name}({call})",
        "  %next = add i64 %i, 1",
        f"  %more = icmp ult i64 %next, {batch}",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
    ]
    return "define internal void @KERNEL(ptr %p0, ptr %p1, ptr %p2) #0 {\n" + "\n".join(lines) + "\n}\n"
