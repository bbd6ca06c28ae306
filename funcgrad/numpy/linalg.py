"""The part of `numpy.linalg` that needs no decomposition."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.base.errors import ShapeError
from funcgrad.core.trace import describe
from funcgrad.numpy import products, rearranging, shaping
from funcgrad.numpy.norms import matrix_norm, norm, vector_norm
from funcgrad.numpy.operands import array, public

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_transpose",
    "norm",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


@public(getattr(np.linalg, "diagonal", None))
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of the matrices in the last two axes."""
    return rearranging.diagonal(x, offset, -2, -1)


@public(getattr(np.linalg, "trace", None))
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sums of the diagonals of the matrices in the last two axes."""
    return rearranging.trace(x, offset, -2, -1, dtype)


@public(getattr(np.linalg, "matrix_transpose", None))
def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    return shaping.matrix_transpose(x)


@public(getattr(np.linalg, "cross", None))
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors with three components along `axis`."""
    return products.cross(x1, x2, axis=axis)


@public(getattr(np.linalg, "outer", None))
def outer(x1: Any, x2: Any, /) -> Any:
    """All products of an element of one vector with one of the other."""
    x, y = array(x1, "outer"), array(x2, "outer")
    for v in (x, y):
        if len(v.shape) != 1:
            raise ShapeError(f"outer: vectors are needed, got {describe(v)}", hint="funcgrad.numpy.outer flattens")
    return products.outer(x, y)


@public(getattr(np.linalg, "matmul", None))
def matmul(x1: Any, x2: Any, /) -> Any:
    """The matrix product. See `funcgrad.numpy.matmul`."""
    return products.matmul(x1, x2)


@public(getattr(np.linalg, "tensordot", None))
def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """The sum of products over pairs of axes. See `funcgrad.numpy.tensordot`."""
    return products.tensordot(x1, x2, axes)


@public(getattr(np.linalg, "vecdot", None))
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Dot products of vectors along `axis`. See `funcgrad.numpy.vecdot`."""
    return products.vecdot(x1, x2, axis=axis)
