"""Positions along axes: checked, counted from the end, clamped; what gather, the scatters and windows share.

One op alone can raise: `check_index` compares positions with a length, and counts negative ones from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT, Dtype
from funcgrad.base.errors import DtypeError, OutOfBoundsError, ParameterError, ShapeError, printed
from funcgrad.core.ir import Aval, Shape, make_aval
from funcgrad.core.primitive import Traits
from funcgrad.core.trace import Tracer, bind1, describe
from funcgrad.ops.arithmetic import add, select
from funcgrad.ops.broadcasting import align, broadcast
from funcgrad.ops.comparison import ge, logical_and, lt
from funcgrad.ops.elementwise import batch_elementwise
from funcgrad.ops.extrema import maximum, minimum
from funcgrad.ops.movement import iota
from funcgrad.ops.op import Op, Operand, aval_of
from funcgrad.ops.rounding import remainder


def check_index(index: Operand, axis: int, length: int, window: int = 1, of: str = "") -> Any:
    """`index` with negative positions counted from the end, so that all are in ``0 ... length - window``.

    Parameters
    ----------
    index
        Positions along an axis, int64, of any shape.
    axis, length
        Number, for the message, and length of the axis.
    window
        How many elements are taken from each position on.
    of
        What is indexed, for the message: ``"x: f64[3]"``.

    Raises
    ------
    OutOfBoundsError
        A position is outside, or a window does not fit.
    """
    if type(index) is Tracer:
        return bind1(check_index_p, index, axis=axis, length=length, window=window, of=of)
    return _check(index, axis=axis, length=length, window=window, of=of)


def _check(index: Any, *, axis: int, length: int, window: int, of: str) -> Any:
    if index.size == 0:
        return index
    last = length - window
    if index.min() >= 0 and index.max() <= last:
        return index
    counted = np.where(index < 0, index + length, index)
    outside = (counted < 0) | (counted > last)
    if outside.any():
        first = int(np.asarray(index)[outside].flat[0])
        raise _fault(first, axis=axis, length=length, window=window, of=of)
    return counted[()]


def _fault(position: int, *, axis: int, length: int, window: int, of: str) -> OutOfBoundsError:
    """The error of a position outside."""
    what = f"index {position} is out of bounds for" if window == 1 else f"{window} elements from {position} do not fit"
    return OutOfBoundsError(f"{what} axis {axis} of length {length}" + (f" ({of})" if of else ""))


def _emit_check(b: Any, dtype: Dtype, index: Any, *, axis: int, length: int, window: int, of: str) -> tuple[Any, Any]:
    counted = b.select(b.lt(index, 0), b.iadd(index, length), index)
    return counted, b.or_(b.lt(counted, 0), b.gt(counted, length - window))


check_index_p = Op(check_index, Traits(exact=True, may_raise=True, kind="check"), dtypes="i")
check_index_p.hidden_params = {"window": 1, "of": None}
check_index_p.abstract = lambda index, **params: (make_aval(index.shape, INT),)
check_index_p.evaluate = lambda index, **params: (_check(index, **params),)
check_index_p.batch = batch_elementwise(check_index_p)
check_index_p.def_no_derivative("its result is an integer")
check_index_p.fault = _fault
check_index_p.check = _emit_check
check_index_p.decline("transpose", "its result is an integer")


def from_end(index: Operand, length: int) -> Any:
    """`index` with negative positions counted from the end; those still negative are outside."""
    return select(lt(index, 0), add(index, length), index)


def within(indices: Sequence[Operand], lengths: Shape) -> Any:
    """Whether all the positions of each element are inside their axes."""
    inside = None
    for index, n in zip(indices, lengths, strict=True):
        for test in (ge(index, 0), lt(index, n)):
            inside = test if inside is None else logical_and(inside, test)
    return inside


def clamped(index: Operand, last: int) -> Any:
    """`index`, moved into ``0 ... last``."""
    return maximum(minimum(index, last), 0)


def checked_positions(name: str, x: Any, indices: Sequence[Any], mode: str, axes: Sequence[int] | None) -> list[Any]:
    """The positions as the ops take them, after the arithmetic of `mode`."""
    lengths = aval_of(x).shape[: len(indices)]
    named = range(len(indices)) if axes is None else axes
    for axis, n in zip(named, lengths, strict=True):
        if n == 0 and mode not in ("drop", "fill") and aval_of(indices[0]).size:
            raise OutOfBoundsError(f"{name}: axis {axis} of {aval_of(x)} has no elements")
    if mode == "raise":
        of = describe(x)
        return [check_index(i, a, n, of=of) for i, a, n in zip(indices, named, lengths, strict=True)]
    if mode == "clip":
        return [clamped(i, n - 1) for i, n in zip(indices, lengths, strict=True)]
    if mode == "wrap":
        return [remainder(i, n) for i, n in zip(indices, lengths, strict=True)]
    return [from_end(i, n) for i, n in zip(indices, lengths, strict=True)]


def require_mode(name: str, mode: str, allowed: tuple[str, ...]) -> None:
    """Raise for a mode that is not allowed."""
    if mode not in allowed:
        raise ParameterError(f"{name}: mode is one of {', '.join(allowed)}, got {printed(mode)}")


def require_indices(name: str, x: Aval, indices: Sequence[Aval]) -> None:
    """Raise unless `indices` are int64 arrays of one shape, at most one for each axis of `x`."""
    if not 1 <= len(indices) <= x.ndim:
        raise ShapeError(f"{name}: {len(indices)} index arrays for {x}")
    for i in indices:
        if i.dtype != INT:
            raise DtypeError(f"{name}: an index array has type {i}, not i64")
        if i.shape != indices[0].shape:
            raise ShapeError(f"{name}: index arrays have different shapes: {' and '.join(map(str, indices))}")


def repeated(x: Any, shape: Shape) -> Any:
    """`x`, of the shape S of the indices, repeated over the trailing axes of `shape`."""
    return broadcast(x, shape, tuple(range(aval_of(x).ndim)))


def rows_first(size: int, indices: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Index arrays with the rows first, and before them the number of the row, to index a batched operand."""
    aligned = [align(i, d, 0, size) for i, d in zip(indices, dims, strict=True)]
    return [iota(aval_of(aligned[0]).shape, INT, 0), *aligned]
