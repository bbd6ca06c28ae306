"""Reductions along axes: sum, prod, max, min, any, all, argmax, argmin, and the running ones.

All take NumPy's keywords `axis`, `keepdims`, `where` and `initial`; sums and products of bool and of small
integers are int64 or uint64, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, INT, Dtype
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.ir import Shape, make_aval
from funcgrad.core.trace import describe
from funcgrad.numpy.elementwise import refuse_out, ufuncs
from funcgrad.numpy.operands import (
    array,
    as_dtype,
    broadcast_to,
    common_shape,
    given_dtype,
    normalize_axes,
    normalize_axis,
    operand,
    public,
)
from funcgrad.numpy.parameters import flag
from funcgrad.ops import cumulative, reduce
from funcgrad.ops.arithmetic import select
from funcgrad.ops.broadcasting import Axes, reduce_sum, reduced, reshape
from funcgrad.ops.movement import convert, pad
from funcgrad.ops.op import constant

Axis = int | tuple[int, ...] | None


# -- what they share


def reduced_axes(name: str, axis: Axis, ndim: int) -> Axes:
    """The axes of a reduction; NumPy takes 0 and -1 for a scalar too."""
    return (
        () if ndim == 0 and isinstance(axis, int | np.integer) and axis in (0, -1) else normalize_axes(name, axis, ndim)
    )


def keep_axes(name: str, out: Any, shape: Shape, axes: Axes, keepdims: bool) -> Any:
    """The result of a reduction, with the reduced axes kept at length 1 if asked for."""
    if not flag(name, "keepdims", keepdims):
        return out
    return reshape(out, tuple([1 if i in axes else n for i, n in enumerate(shape)]))


def given_where(name: str, where: Any, shape: Shape) -> Any:
    """The `where` keyword as a mask of that shape; None when it selects everything."""
    if where is True or where is None:
        return None
    mask = array(where, name)
    if mask.dtype != BOOL:
        raise DtypeError(f"{name}: where must be boolean, got {describe(mask)}")
    if common_shape(mask.shape, shape) != shape:
        raise ShapeError(f"{name}: where of shape {mask.shape} does not broadcast to shape {shape}")
    return broadcast_to(mask, shape)


def masked(x: Any, mask: Any, value: Any) -> Any:
    """`x` where `mask` holds, the constant `value` elsewhere."""
    return x if mask is None else select(mask, x, constant(value, make_aval(x.shape, x.dtype)))


def sum_dtype(dtype: Dtype) -> Dtype:
    """The dtype of the sum of elements of `dtype`."""
    if dtype.kind in "bi" and dtype.itemsize < 8:
        return INT
    return np.dtype(np.uint64) if dtype.kind == "u" else dtype


def start(out: Any, initial: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The result of a reduction combined with `initial`, in the dtype of the result."""
    return out if initial is None else combine(out, as_dtype(operand(initial), out.dtype))


def _accumulate(
    name: str, function: Callable[[Any, Axes], Any], combine: Any, unit: int,
    a: Any, axis: Axis, dtype: Any, out: Any, keepdims: bool, initial: Any, where: Any,
) -> Any:  # fmt: skip
    refuse_out(name, out)
    x = array(a, name)
    axes = reduced_axes(name, axis, len(x.shape))
    x = convert(x, sum_dtype(x.dtype) if dtype is None else given_dtype(name, dtype))
    x = masked(x, given_where(name, where, x.shape), unit)
    if x.dtype == BOOL:  # a sum of bool, if asked for with dtype=, is *or*, a product *and*
        function = reduce.reduce_all if unit else reduce.reduce_any
    return keep_axes(name, start(function(x, axes), initial, combine), x.shape, axes, keepdims)


def _extremum(
    name: str, function: Callable[[Any, Axes], Any], combine: Any,
    a: Any, axis: Axis, out: Any, keepdims: bool, initial: Any, where: Any,
) -> Any:  # fmt: skip
    refuse_out(name, out)
    x = array(a, name)
    if x.dtype.kind == "c":
        raise DtypeError(f"{name}: complex numbers have no order: {describe(x)}")
    axes = reduced_axes(name, axis, len(x.shape))
    mask = given_where(name, where, x.shape)
    if initial is None:
        if mask is not None:
            raise ShapeError(f"{name}: where= needs initial=, the result when nothing is selected")
        if 0 in [x.shape[i] for i in axes] and 0 not in reduced(x.shape, axes):
            raise ShapeError(f"{name}: {describe(x)} has no elements along axis {axis}; initial= would give a result")
    if 0 in [x.shape[i] for i in axes]:
        result: Any = constant(0, make_aval(reduced(x.shape, axes), x.dtype))
        if initial is not None:
            result = broadcast_to(as_dtype(operand(initial, name), x.dtype), result.shape)
    else:
        if mask is not None:
            fill = broadcast_to(as_dtype(operand(initial, name), x.dtype), x.shape)
            x = select(mask, x, fill)
        result = start(function(x, axes), initial, combine)
    return keep_axes(name, result, x.shape, axes, keepdims)


# -- sums and products


@public(np.sum)
def sum(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    """The sum of the elements along `axis` (default: all of them).

    Parameters
    ----------
    axis
        An axis, a tuple of axes, or None.
    dtype
        The dtype to sum in. Default: that of `a`, but int64 or uint64 for bool and smaller integers.
    keepdims
        Keep the reduced axes, at length 1.
    initial
        A number added to the result.
    where
        A boolean mask that broadcasts to `a`: which elements count.

    Notes
    -----
    Pairwise summation: the error is at most about log2(n) ulp of the sum of magnitudes.
    """
    return _accumulate("sum", reduce_sum, ufuncs.add, 0, a, axis, dtype, out, keepdims, initial, where)


@public(np.prod)
def prod(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    """The product of the elements along `axis` (default: all of them).

    Parameters
    ----------
    axis, dtype, keepdims, initial, where
        As for `sum`.

    Notes
    -----
    The derivative is exact where elements are zero, to every order.
    """
    return _accumulate("prod", reduce.reduce_prod, ufuncs.multiply, 1, a, axis, dtype, out, keepdims, initial, where)


# -- extrema


@public(np.max, np.amax)
def max(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The largest element along `axis` (default: of all); NaN if there is a NaN.

    Parameters
    ----------
    axis, keepdims, where
        As for `sum`.
    initial
        A lower bound of the result; needed with `where`, and for an axis without elements.

    Raises
    ------
    ShapeError
        No elements along `axis`, and no `initial`.

    Notes
    -----
    Elements that tie share the derivative evenly.
    """
    return _extremum("max", reduce.reduce_max, ufuncs.maximum, a, axis, out, keepdims, initial, where)


@public(np.min, np.amin)
def min(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The smallest element along `axis` (default: of all); NaN if there is a NaN.

    Parameters
    ----------
    axis, keepdims, where
        As for `sum`.
    initial
        An upper bound of the result; needed with `where`, and for an axis without elements.

    Raises
    ------
    ShapeError
        No elements along `axis`, and no `initial`.

    Notes
    -----
    Elements that tie share the derivative evenly.
    """
    return _extremum("min", reduce.reduce_min, ufuncs.minimum, a, axis, out, keepdims, initial, where)


amax = max
amin = min


@public(np.ptp)
def ptp(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False) -> Any:
    """The largest minus the smallest element along `axis`."""
    refuse_out("ptp", out)
    x = array(a, "ptp")
    return ufuncs.subtract(max(x, axis, keepdims=keepdims), min(x, axis, keepdims=keepdims))


# -- logic


def _logical(
    name: str, function: Callable[[Any, Axes], Any], unit: bool,
    a: Any, axis: Axis, out: Any, keepdims: bool, where: Any,
) -> Any:  # fmt: skip
    refuse_out(name, out)
    x = convert(array(a, name), BOOL)
    axes = reduced_axes(name, axis, len(x.shape))
    result = function(masked(x, given_where(name, where, x.shape), unit), axes)
    return keep_axes(name, result, x.shape, axes, keepdims)


@public(np.any)
def any(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = True) -> Any:
    """Whether some element along `axis` is not zero (NaN is not); False if there is none."""
    return _logical("any", reduce.reduce_any, False, a, axis, out, keepdims, where)


@public(np.all)
def all(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = True) -> Any:
    """Whether every element along `axis` is not zero (NaN is not); True if there is none."""
    return _logical("all", reduce.reduce_all, True, a, axis, out, keepdims, where)


@public(np.count_nonzero)
def count_nonzero(a: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """The number of elements along `axis` that are not zero, as int64."""
    return sum(convert(array(a, "count_nonzero"), BOOL), axis, keepdims=keepdims)


# -- where the extrema are


def _arg(name: str, function: Callable[..., Any], a: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    refuse_out(name, out)
    x = array(a, name)
    shape = x.shape
    if axis is None or not shape:
        reduced_axes(name, axis, len(shape))
        x = reshape(x, (int(np.prod(shape)),))
        axes, along = tuple(range(len(shape))), 0
    else:
        along = normalize_axis(name, axis, len(shape))
        axes = (along,)
    if x.shape[along] == 0:
        raise ShapeError(f"{name}: {describe(x)} has no elements along axis {axis}")
    return keep_axes(name, function(x, along), shape, axes, keepdims)


@public(np.argmax)
def argmax(a: Any, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> Any:
    """The index (int64) of the first largest element along `axis`, of the flattened array by default.

    A NaN counts as the largest. The result has no derivative.
    """
    return _arg("argmax", reduce.argmax, a, axis, out, keepdims)


@public(np.argmin)
def argmin(a: Any, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> Any:
    """The index (int64) of the first smallest element along `axis`, of the flattened array by default.

    A NaN counts as the smallest. The result has no derivative.
    """
    return _arg("argmin", reduce.argmin, a, axis, out, keepdims)


# -- running sums and products


def _running(name: str, function: Callable[..., Any], a: Any, axis: int | None, dtype: Any, out: Any) -> Any:
    refuse_out(name, out)
    x = array(a, name)
    if axis is None or not x.shape:
        reduced_axes(name, axis, len(x.shape))
        x, along = reshape(x, (int(np.prod(x.shape)),)), 0
    else:
        along = normalize_axis(name, axis, len(x.shape))
    return function(convert(x, sum_dtype(x.dtype) if dtype is None else given_dtype(name, dtype)), along)


@public(np.cumsum)
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The sum of the elements up to each one, along `axis`; of the flattened array by default.

    Parameters
    ----------
    dtype
        As for `sum`.
    """
    return _running("cumsum", cumulative.cumsum, a, axis, dtype, out)


@public(np.cumprod)
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The product of the elements up to each one, along `axis`; of the flattened array by default.

    Parameters
    ----------
    dtype
        As for `sum`.

    Notes
    -----
    The derivative is exact where elements are zero.
    """
    return _running("cumprod", cumulative.cumprod, a, axis, dtype, out)


def _inclusive(
    name: str, function: Callable[..., Any], unit: int,
    x: Any, axis: int | None, dtype: Any, out: Any, include_initial: bool,
) -> Any:  # fmt: skip
    x = array(x, name)
    x = x if x.shape else reshape(x, (1,))
    if axis is None and len(x.shape) != 1:
        raise ShapeError(f"{name}: axis= is needed for {describe(x)}, which is not one-dimensional")
    total = _running(name, function, x, 0 if axis is None else axis, dtype, out)
    if not flag(name, "include_initial", include_initial):
        return total
    along = normalize_axis(name, 0 if axis is None else axis, len(x.shape))
    none = (0,) * len(x.shape)
    before = tuple([int(i == along) for i in range(len(x.shape))])
    return pad(total, constant(unit, make_aval((), total.dtype)), before, none, none)


@public(getattr(np, "cumulative_sum", None))
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, out: None = None, include_initial: bool = False
) -> Any:
    """`cumsum` as the array API standard has it; `include_initial` puts a 0 in front."""
    return _inclusive("cumulative_sum", cumulative.cumsum, 0, x, axis, dtype, out, include_initial)


@public(getattr(np, "cumulative_prod", None))
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, out: None = None, include_initial: bool = False
) -> Any:
    """`cumprod` as the array API standard has it; `include_initial` puts a 1 in front."""
    return _inclusive("cumulative_prod", cumulative.cumprod, 1, x, axis, dtype, out, include_initial)
