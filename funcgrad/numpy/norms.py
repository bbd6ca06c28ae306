"""Norms of vectors and matrices that need no decomposition."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import ArgumentError, ParameterError, ShapeError, UnsupportedError, printed
from funcgrad.core.trace import describe
from funcgrad.numpy import reductions
from funcgrad.numpy.elementwise import ufuncs
from funcgrad.numpy.operands import array, normalize_axis, public
from funcgrad.numpy.reductions import keep_axes
from funcgrad.numpy.statistics import safe_sqrt
from funcgrad.ops.arithmetic import select
from funcgrad.ops.broadcasting import reduce_sum
from funcgrad.ops.movement import convert
from funcgrad.ops.op import full_like


@public(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of a vector or a matrix.

    Vectors: (sum |x|^ord)^(1/ord), also for inf (largest magnitude), -inf (smallest) and 0 (how many are not zero).
    Matrices: None or "fro" (square root of the sum of squares), 1 and -1 (largest and least column sum of
    magnitudes), inf and -inf (of the rows).

    Parameters
    ----------
    axis
        One axis for vectors, two for matrices. None: all axes, where without `ord` an array of any rank is a vector.
    keepdims
        Keep these axes, at length 1.

    Raises
    ------
    UnsupportedError
        ord 2, -2 and "nuc" of a matrix, which need singular values.

    Notes
    -----
    The derivative of the 2-norm at a zero vector is 0, and so is that of every other ord >= 1.
    """
    a = array(x, "norm")
    if not is_inexact(a.dtype):
        a = convert(a, np.dtype(float))
    rank = len(a.shape)
    if axis is None:
        if ord is None or (rank == 1 and ord == 2) or (rank == 2 and ord == "fro"):
            axes = tuple(range(rank))
            return keep_axes("norm", _root_of_squares(a, axes), a.shape, axes, keepdims)
        axes = tuple(range(rank))
    else:
        given = axis if isinstance(axis, tuple | list) else (axis,)
        axes = tuple([normalize_axis("norm", i, rank) for i in given])
        if len(set(axes)) < len(axes):
            raise ParameterError(f"norm: an axis is given twice: {axis}")
    if len(axes) == 1:
        out = _vector(a, ord, axes)
    elif len(axes) == 2:
        out = _matrix(a, ord, *axes)
    else:
        raise ShapeError(f"norm: ord={printed(ord)} is defined for one or two axes, got {describe(a)}")
    return keep_axes("norm", out, a.shape, axes, keepdims)


def _root_of_squares(x: Any, axes: tuple[int, ...]) -> Any:
    if x.dtype.kind == "c":
        raise UnsupportedError(f"norm: not yet defined for {describe(x)}")
    return safe_sqrt(reduce_sum(ufuncs.square(x), tuple(sorted(axes))))


def _vector(x: Any, ord: Any, axes: tuple[int, ...]) -> Any:
    if ord is None or ord == 2:
        return _root_of_squares(x, axes)
    if isinstance(ord, str):
        raise ParameterError(f"norm: ord={printed(ord)} is not defined for vectors")
    if ord == inf:
        return reductions.max(ufuncs.absolute(x), axes, initial=0)
    if ord == -inf:
        return reductions.min(ufuncs.absolute(x), axes)
    if ord == 0:
        return reduce_sum(convert(ufuncs.not_equal(x, full_like(x, 0)), x.dtype), axes)
    magnitudes = ufuncs.absolute(x)
    if ord == 1:
        return reduce_sum(magnitudes, axes)
    if not isinstance(ord, int | float | np.number):
        raise ArgumentError(f"norm: ord is a number, got {printed(ord)}")
    p = x.dtype.type(ord)
    s = reduce_sum(ufuncs.power(magnitudes, p), axes)
    if p < 1:
        return ufuncs.power(s, 1 / p)
    zero = ufuncs.equal(s, full_like(s, 0))  # a power has no derivative there
    return select(zero, full_like(s, 0), ufuncs.power(select(zero, full_like(s, 1), s), 1 / p))


def _matrix(x: Any, ord: Any, row: int, column: int) -> Any:
    if ord is None or ord in ("fro", "f"):
        return _root_of_squares(x, (row, column))
    if row == column:
        raise ParameterError("norm: the two axes of a matrix are the same")
    if ord in (2, -2, "nuc"):
        raise UnsupportedError(f"norm: ord={printed(ord)} of a matrix needs singular values", hint="ord=None, 1 or inf")
    if ord not in (1, -1, inf, -inf):
        raise ParameterError(f"norm: ord={printed(ord)} is not defined for matrices")
    summed, other = (row, column) if ord in (1, -1) else (column, row)
    sums = reduce_sum(ufuncs.absolute(x), (summed,))
    other -= summed < other
    return reductions.max(sums, other, initial=0) if ord > 0 else reductions.min(sums, other)


@public(getattr(np.linalg, "vector_norm", None))
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm of all the elements along `axis` (default: all axes), taken as one vector. See `norm`."""
    a = array(x, "vector_norm")
    if not is_inexact(a.dtype):
        a = convert(a, np.dtype(float))
    axes = reductions.normalize_axes("vector_norm", axis, len(a.shape))
    return keep_axes("norm", _vector(a, ord, axes), a.shape, axes, keepdims)


@public(getattr(np.linalg, "matrix_norm", None))
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices in the last two axes. See `norm`."""
    return norm(x, ord, (-2, -1), keepdims)
