"""The part of `numpy.linalg` that needs no decomposition, and `solve`."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.base.dtypes import default_float, promote, short
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.trace import describe
from funcgrad.numpy import products, rearranging, shaping
from funcgrad.numpy.norms import matrix_norm, norm, vector_norm
from funcgrad.numpy.operands import array, broadcast_to, common_shape, public
from funcgrad.ops.linalg import solve as solve_stacks
from funcgrad.ops.movement import convert

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_transpose",
    "norm",
    "outer",
    "solve",
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


@public(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    """The solution x of the linear system ``a x = b``, by LU factorisation with partial pivoting.

    Parameters
    ----------
    a
        Square matrices, shape ``(..., n, n)``.
    b
        A vector, shape ``(n,)``, or matrices, shape ``(..., n, k)``; leading axes broadcast.

    Returns
    -------
    Array of the shape of `b`, with the leading axes of both.

    Raises
    ------
    SingularMatrixError
        A matrix is exactly singular. It is also a `numpy.linalg.LinAlgError`.

    Notes
    -----
    Both derivatives solve with the same matrix: dx = solve(a, db - da x). Under vmap one matrix for all rows is
    factorised once.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> a = np.array([[2.0, 0.0], [0.0, 4.0]])
    >>> fg.jacobian(lambda b: fg.numpy.linalg.solve(a, b))(np.ones(2)).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    x, y = array(a, "solve"), array(b, "solve")
    dtype = default_float(promote(x.dtype, y.dtype))
    x, y = convert(x, dtype), convert(y, dtype)
    if dtype.itemsize < 4:
        raise DtypeError(f"solve: LAPACK has no {short(dtype)}", hint="a.astype('float32')")
    m, n = len(x.shape), len(y.shape)
    if m < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"solve: a must be square, in its last two axes, got {describe(x)}")
    if n == 0 or x.shape[-1] != y.shape[n - 2 if n > 1 else 0]:
        raise ShapeError(f"solve: rows of a and b differ: {describe(x)} and {describe(y)}")
    columns = y if n > 1 else shaping.reshape(y, (*y.shape, 1))
    stack = common_shape(x.shape[:-2], columns.shape[:-2])
    if stack is None:
        raise ShapeError(f"solve: leading axes do not broadcast: {describe(x)} and {describe(y)}")
    out = solve_stacks(
        broadcast_to(x, (*stack, *x.shape[-2:])),
        broadcast_to(columns, (*stack, *columns.shape[-2:])),
    )
    return out if n > 1 else shaping.reshape(out, out.shape[:-1])


@public(getattr(np.linalg, "tensordot", None))
def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """The sum of products over pairs of axes. See `funcgrad.numpy.tensordot`."""
    return products.tensordot(x1, x2, axes)


@public(getattr(np.linalg, "vecdot", None))
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Dot products of vectors along `axis`. See `funcgrad.numpy.vecdot`."""
    return products.vecdot(x1, x2, axis=axis)
