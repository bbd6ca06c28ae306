"""Averages and spreads: mean, var, std, average, logsumexp, and the reductions that pass over NaN."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import FLOAT, Dtype, is_inexact, short
from funcgrad.base.errors import ArgumentError, DtypeError, ShapeError, ZeroWeightsError
from funcgrad.core.trace import describe
from funcgrad.numpy import reductions
from funcgrad.numpy.elementwise import refuse_out, ufuncs
from funcgrad.numpy.operands import (
    array,
    broadcast_operands,
    broadcast_to,
    given_dtype,
    known_value,
    normalize_axes,
    promoted,
    public,
)
from funcgrad.numpy.parameters import flag, number
from funcgrad.numpy.reductions import Axis, given_where, keep_axes, masked
from funcgrad.ops.arithmetic import div, mul, select, stop_gradient, sub
from funcgrad.ops.broadcasting import Axes, broadcast, reduce_sum
from funcgrad.ops.movement import convert
from funcgrad.ops.op import full_like

HALF = np.dtype(np.float16)
SINGLE = np.dtype(np.float32)


def safe_sqrt(x: Any) -> Any:
    """The square root of a sum of squares; where it is 0, so is its derivative."""
    zero = ufuncs.equal(x, full_like(x, 0))
    return select(zero, full_like(x, 0), ufuncs.sqrt(select(zero, full_like(x, 1), x)))


def _float_dtypes(name: str, x: Any, dtype: Any) -> tuple[Dtype, Dtype]:
    """The dtype to compute in and that of the result: float64 for integers; float16 computes in float32."""
    wanted = given_dtype(name, dtype) if dtype is not None else x.dtype if is_inexact(x.dtype) else FLOAT
    return (SINGLE if wanted == HALF and dtype is None else wanted), wanted


def _count(x: Any, axes: Axes, mask: Any, dtype: Dtype) -> Any:
    """How many elements are reduced, as numbers of `dtype`."""
    if mask is None:
        return dtype.type(prod([x.shape[i] for i in axes]))
    return convert(reduce_sum(convert(mask, np.dtype(np.int64)), axes), dtype)


def _divide(total: Any, count: Any) -> Any:
    return div(*broadcast_operands("mean", [total, count]))


def _mean(x: Any, axes: Axes, mask: Any) -> Any:
    return _divide(reduce_sum(masked(x, mask, 0), axes), _count(x, axes, mask, x.dtype))


def _spread_back(total: Any, x: Any, axes: Axes) -> Any:
    """The result of a reduction repeated over what was reduced."""
    return broadcast(total, x.shape, tuple([i for i in range(len(x.shape)) if i not in axes]))


# -- mean, var, std


@public(np.mean)
def mean(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    """The arithmetic mean along `axis` (default: of all elements); NaN if there are none.

    Parameters
    ----------
    axis, keepdims, where
        As for `sum`.
    dtype
        The dtype of the result. Default: that of `a`, float64 for bool and integers.

    Notes
    -----
    float16 is summed in float32.
    """
    refuse_out("mean", out)
    x = array(a, "mean")
    axes = normalize_axes("mean", axis, len(x.shape))
    compute, result = _float_dtypes("mean", x, dtype)
    x = convert(x, compute)
    if compute.kind in "biu":  # NumPy sums in that dtype, and divides as floats
        x = convert(x, FLOAT)
    m = _mean(x, axes, given_where("mean", where, x.shape))
    return keep_axes("mean", convert(m, result), x.shape, axes, keepdims)


def _variance(
    name: str, a: Any, axis: Axis, dtype: Any, out: Any, ddof: Any, keepdims: bool, where: Any,
    mean: Any, correction: Any, finish: Callable[[Any], Any],
) -> Any:  # fmt: skip
    refuse_out(name, out)
    if correction is not None:
        if ddof != 0:
            raise ArgumentError(f"{name}: ddof= and correction= are the same thing, give one of them")
        ddof = correction
    ddof = number(name, "ddof", ddof)
    x = array(a, name)
    axes = normalize_axes(name, axis, len(x.shape))
    compute, result = _float_dtypes(name, x, dtype)
    if compute.kind != "f":
        raise DtypeError(f"{name}: not defined in {short(compute)}", hint="x.astype(float)")
    mask = given_where(name, where, x.shape)
    x = convert(x, compute)
    if mean is None:
        centre = _spread_back(_mean(x, axes, mask), x, axes)
    else:
        centre = broadcast_to(convert(array(mean, name), compute), x.shape)
    d = sub(x, centre)
    real = compute.type
    total = reduce_sum(masked(ufuncs.square(d), mask, 0), axes)
    if mask is None:
        count = real(max(prod([x.shape[i] for i in axes]) - ddof, 0))
    else:
        count = ufuncs.maximum(ufuncs.subtract(_count(x, axes, mask, compute), real(ddof)), real(0))
    return keep_axes(name, convert(finish(_divide(total, count)), result), x.shape, axes, keepdims)


@public(np.var)
def var(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    *, where: Any = True, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The variance along `axis`: the mean of the squared distances from the mean.

    Parameters
    ----------
    axis, dtype, keepdims, where
        As for `mean`.
    ddof, correction
        The sum of squares is divided by n - ddof; n - ddof <= 0 gives NaN or inf.
    mean
        The mean, if it is known already; computed with keepdims=True.

    Notes
    -----
    Two passes over the data, so nothing cancels. The derivative at constant data is 0.
    """
    return _variance("var", a, axis, dtype, out, ddof, keepdims, where, mean, correction, lambda v: v)


@public(np.std)
def std(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    *, where: Any = True, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The standard deviation along `axis`: the square root of the variance.

    Parameters
    ----------
    axis, dtype, ddof, keepdims, where, mean, correction
        As for `var`.

    Notes
    -----
    The derivative at constant data is 0.
    """
    return _variance("std", a, axis, dtype, out, ddof, keepdims, where, mean, correction, safe_sqrt)


@public(np.average)
def average(a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The weighted mean along `axis`: sum of w a, divided by the sum of w.

    Parameters
    ----------
    weights
        Of the shape of `a`, or one weight per element of `axis`. Default: all equal.
    returned
        Return the sum of the weights too.

    Raises
    ------
    ZeroWeightsError
        The weights are known and sum to 0. Where they are not known, as in jit, the result is NaN or inf.
    """
    x, returned = array(a, "average"), flag("average", "returned", returned)
    if weights is None:
        m = mean(x, axis, keepdims=keepdims)
        n = ufuncs.divide(prod(x.shape), max(prod(m.shape), 1)) if returned else None
        return (m, broadcast_to(convert(n, m.dtype), m.shape)) if returned else m
    w = array(weights, "average")
    axes = normalize_axes("average", axis, len(x.shape))
    if w.shape != x.shape:
        lengths = tuple([x.shape[i] for i in axes])
        if axis is None or w.shape != lengths:
            raise ShapeError(f"average: weights ({describe(w)}) fit neither {describe(x)} nor its axis {axis}")
        w = broadcast(w, x.shape, axes)
    x, w = promoted("average", x, w)
    if not is_inexact(x.dtype):
        x, w = convert(x, FLOAT), convert(w, FLOAT)
    total = reduce_sum(w, axes)
    sums = known_value(total)
    if sums is not None and (sums == 0).any():
        raise ZeroWeightsError("average: the weights sum to 0")
    m = keep_axes("average", div(reduce_sum(mul(x, w), axes), total), x.shape, axes, keepdims)
    return (m, keep_axes("average", total, x.shape, axes, keepdims)) if returned else m


# -- log of a sum of exponentials


@public()
def logsumexp(a: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
    """log(sum(b exp(a))) along `axis`, without overflow.

    Parameters
    ----------
    axis, keepdims, where
        As for `sum`.
    b
        Factors of the terms, broadcast against `a`. A negative sum gives NaN.

    Notes
    -----
    The largest element is subtracted first, and added again outside. The derivative is softmax(a) to every order;
    where every element is -inf (the value is -inf) it is 0.
    """
    x = array(a, "logsumexp")
    x = x if is_inexact(x.dtype) else convert(x, FLOAT)
    factor = None
    if b is not None:
        x, factor = promoted("logsumexp", x, b)
    axes = normalize_axes("logsumexp", axis, len(x.shape))
    mask = given_where("logsumexp", where, x.shape)
    x = masked(x, mask, -inf)
    if factor is not None:  # a term with factor 0 is not there, whatever its exponent
        x = select(ufuncs.equal(factor, full_like(factor, 0)), full_like(x, -inf), x)
    nothing = 0 in [x.shape[i] for i in axes]
    top = stop_gradient(reductions.max(x, axes, initial=-inf if nothing else None))
    top = select(ufuncs.isfinite(top), top, full_like(top, 0))
    terms = ufuncs.exp(sub(x, _spread_back(top, x, axes)))
    s = reduce_sum(terms if factor is None else mul(factor, terms), axes)
    empty = ufuncs.equal(s, full_like(s, 0))
    log = select(empty, full_like(s, -inf), ufuncs.log(select(empty, full_like(s, 1), s)))
    return keep_axes("logsumexp", ufuncs.add(log, top), x.shape, axes, keepdims)


# -- passing over NaN


def _without_nan(a: Any, name: str, value: float) -> tuple[Any, Any]:
    x = array(a, name)
    if not is_inexact(x.dtype):
        return x, None
    nans = ufuncs.isnan(x)
    return select(nans, full_like(x, value), x), nans


@public(np.nansum)
def nansum(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    """`sum`, taking NaN for 0."""
    x, _ = _without_nan(a, "nansum", 0)
    return reductions.sum(x, axis, dtype, out, keepdims, initial, where)


@public(np.nanprod)
def nanprod(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    """`prod`, taking NaN for 1."""
    x, _ = _without_nan(a, "nanprod", 1)
    return reductions.prod(x, axis, dtype, out, keepdims, initial, where)


def _nan_extremum(
    function: Callable[..., Any], fill: float,
    a: Any, axis: Axis, out: Any, keepdims: bool, initial: Any, where: Any,
) -> Any:  # fmt: skip
    name = f"nan{function.__name__}"
    x, nans = _without_nan(a, name, fill)
    found = function(x, axis, out, keepdims, initial, where)
    if nans is None or initial is not None:
        return found
    all_nan = reductions.all(nans, axis, keepdims=keepdims)
    return select(all_nan, full_like(found, nan), found)


@public(np.nanmax)
def nanmax(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """`max`, passing over NaN; NaN where there is nothing else."""
    return _nan_extremum(reductions.max, -inf, a, axis, out, keepdims, initial, where)


@public(np.nanmin)
def nanmin(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """`min`, passing over NaN; NaN where there is nothing else."""
    return _nan_extremum(reductions.min, inf, a, axis, out, keepdims, initial, where)


def _present(a: Any, name: str, where: Any) -> tuple[Any, Any]:
    """The elements and a mask of those that are there and are no NaN (True for all of them)."""
    x = array(a, name)
    if not is_inexact(x.dtype):
        return x, where
    there = ufuncs.logical_not(ufuncs.isnan(x))
    mask = given_where(name, where, x.shape)
    return x, there if mask is None else ufuncs.logical_and(there, mask)


@public(np.nanmean)
def nanmean(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    """`mean`, passing over NaN."""
    x, present = _present(a, "nanmean", where)
    return mean(x, axis, dtype, out, keepdims, where=present)


def _enough(v: Any, x: Any, present: Any, axis: Axis, keepdims: bool, ddof: float) -> Any:
    """`v`, but NaN where no degree of freedom is left; only the functions that pass over NaN do so."""
    if present is True:
        return v
    count = reductions.sum(broadcast_to(present, x.shape), axis, keepdims=keepdims)
    return select(ufuncs.less_equal(count, ddof), full_like(v, nan), v)


@public(np.nanvar)
def nanvar(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    *, where: Any = True, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """`var`, passing over NaN."""
    x, present = _present(a, "nanvar", where)
    v = var(x, axis, dtype, out, ddof, keepdims, where=present, mean=mean, correction=correction)
    return _enough(v, x, present, axis, keepdims, ddof if correction is None else correction)


@public(np.nanstd)
def nanstd(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    *, where: Any = True, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """`std`, passing over NaN."""
    x, present = _present(a, "nanstd", where)
    s = std(x, axis, dtype, out, ddof, keepdims, where=present, mean=mean, correction=correction)
    return _enough(s, x, present, axis, keepdims, ddof if correction is None else correction)
