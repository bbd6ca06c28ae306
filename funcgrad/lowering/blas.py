"""Matrix products through the BLAS that SciPy brings: addresses of its functions, and calls as LLVM text.

C in row-major order is the transpose of C in BLAS's column-major order, so ``x @ y`` is asked for as ``yᵀ xᵀ``;
a transposed operand is a flag. Only the extension module that holds the pointers is loaded, at the first product.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from funcgrad.lowering.layout import View
from funcgrad.lowering.schedule import Product

_lock = threading.Lock()


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


def routine(product: Product) -> str:
    """The name of the function that computes a product."""
    return "dgemm" if product.dtype.itemsize == 8 else "sgemm"


def _matrix(view: View) -> tuple[str, int]:
    """How BLAS reads a row-major matrix: ``N`` or ``T``, and its leading dimension."""
    _, rows, columns = view.shape
    _, down, right = view.strides
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", max(down if rows > 1 else columns, columns, 1)
    return "T", max(right if columns > 1 else rows, rows, 1)


def product_text(product: Product) -> str:
    """The body of ``void @KERNEL(ptr %p0, ptr %p1, ptr %p2)``: x, y, out."""
    name = routine(product)
    element, size = ("double", 8) if name == "dgemm" else ("float", 4)
    batch, rows, depth = product.x.shape
    columns = product.y.shape[2]
    (flag_x, lead_x), (flag_y, lead_y) = _matrix(product.x), _matrix(product.y)
    constants = {"m": columns, "n": rows, "k": depth, "a": lead_y, "b": lead_x, "c": max(columns, 1)}
    lines = ["entry:"]
    for key, value in constants.items():
        lines += [f"  %{key} = alloca i32", f"  store i32 {value}, ptr %{key}"]
    for key, letter in (("ty", flag_y), ("tx", flag_x)):
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
        f"  call void @{name}(ptr %ty, ptr %tx, ptr %m, ptr %n, ptr %k, ptr %one, ptr %q1, ptr %a, ptr %q0, ptr %b,"
        " ptr %zero, ptr %q2, ptr %c)",
        "  %next = add i64 %i, 1",
        f"  %more = icmp ult i64 %next, {batch}",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
    ]
    return "define internal void @KERNEL(ptr %p0, ptr %p1, ptr %p2) #0 {\n" + "\n".join(lines) + "\n}\n"
