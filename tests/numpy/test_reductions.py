"""Reductions against NumPy's, on every route."""

from __future__ import annotations

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.base.errors import ArgumentError, AxisError, DtypeError, ShapeError, UnsupportedError
from tests.numpy.routes import assert_same, check_call, traced
from tests.numpy.samples import DTYPES, FLOATS, array

SHAPES = ((), (0,), (3,), (2, 3), (2, 0, 3), (2, 3, 4))
PLAIN = ("sum", "prod", "max", "min", "any", "all", "mean", "var", "std", "ptp", "count_nonzero", "average")
OVER_NAN = ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd")
NO_SCALAR_AXIS = ("mean", "var", "std", "average", "nanmean", "nanvar", "nanstd")  # NumPy: only sometimes


@pytest.mark.parametrize("name", PLAIN + OVER_NAN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_axes(name: str, dtype: str) -> None:
    for shape in SHAPES:
        x = array(shape, dtype, special=name in (*OVER_NAN, "max", "min", "any", "all"))
        for axis in (None, 0, -1, 1, (0, 1), (-1, 0), ()):
            if axis != () and name in NO_SCALAR_AXIS and not shape:
                continue
            if name == "average" and (axis == () or 0 in shape):
                continue
            check_call(name, x, axis, scale=50)
            check_call(name, x, axis=axis, keepdims=True, scale=50)


@pytest.mark.parametrize("name", ["argmax", "argmin", "cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_and_running_totals(name: str, dtype: str) -> None:
    for shape in SHAPES:
        x = array(shape, dtype, special=name.startswith("arg"))
        for axis in (None, 0, -1, 1):
            check_call(name, x, axis, scale=50)
            if name.startswith("arg"):
                check_call(name, x, axis=axis, keepdims=True)
    check_call(name, np.ones((0, 0)), 0)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "cumsum", "nansum"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_keyword(name: str, dtype: str) -> None:
    for wanted in ("float32", "float64", "int64"):
        check_call(name, array((2, 3), dtype), dtype=wanted, scale=50)
        check_call(name, array((2, 3), dtype), 0, wanted, scale=50)
    if name in ("sum", "prod"):
        check_call(name, array((2, 3), dtype), dtype=bool)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_initial(name: str, dtype: str) -> None:
    for shape in SHAPES:
        check_call(name, array(shape, dtype), initial=3, scale=50)
        check_call(name, array(shape, dtype), axis=0, initial=1, keepdims=True, scale=50)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "any", "all", "nansum", "nanmean"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_where(name: str, dtype: str) -> None:
    for shape in ((), (3,), (2, 3), (2, 3, 4)):
        x = array(shape, dtype)
        check_call(name, x, where=array(shape, "bool", seed=1), scale=50)
        check_call(name, x, axis=-1, where=array(shape[-1:], "bool", seed=1), scale=50) if shape else None
    check_call(name, array((3,), dtype), where=array((2, 3), "bool"))
    check_call(name, array((3,), dtype), where=np.zeros(3, bool), scale=50)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_a_part_need_a_bound(name: str) -> None:
    x, mask = array((2, 3)), array((2, 3), "bool")
    check_call(name, x, where=mask)
    check_call(name, x, where=mask, initial=0.5)
    check_call(name, x, axis=0, where=mask, initial=-0.5)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_degrees_of_freedom(name: str, dtype: str) -> None:
    for ddof in (1, 0.5, 3, 7):
        check_call(name, array((2, 3), dtype), ddof=ddof, scale=50)
        check_call(name, array((2, 3), dtype), -1, ddof=ddof, scale=50)
    check_call(name, array((2, 3), dtype), correction=1, scale=50)


def test_variance_about_a_given_mean() -> None:
    x = array((2, 3))
    check_call("var", x, axis=1, mean=x.mean(1, keepdims=True), scale=50)
    with pytest.raises(ArgumentError, match="the same thing"):
        fnp.var(x, ddof=1, correction=1)
    with pytest.raises(DtypeError):
        fnp.std(x, dtype=int)


def test_variance_does_not_cancel() -> None:
    x = 1e9 + np.array([1.0, 2.0, 3.0])
    assert_same(fnp.var(x), np.float64(2 / 3), exact=False)


def test_cumulative_sum_and_product() -> None:
    x = array((2, 3))
    for name in ("cumulative_sum", "cumulative_prod"):
        check_call(name, x, axis=1, scale=10)
        check_call(name, x, axis=0, include_initial=True, scale=10)
        check_call(name, x[0], scale=10)
        check_call(name, x)


def test_average() -> None:
    x = array((2, 3, 4))
    for shape, axis in (((2, 3, 4), None), ((2,), 0), ((4,), -1), ((2, 3), (0, 1))):
        w = np.abs(array(shape, seed=1)) + 0.1
        check_call("average", x, axis, w, scale=50)
        check_call("average", x, axis, w, returned=True, scale=50)
    check_call("average", x, weights=np.ones(4))
    check_call("average", x, 0, returned=True, scale=50)
    check_call("average", array((3,), "int32"), weights=np.array([1, 2, 3]), scale=10)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp(dtype: str) -> None:
    x = array((2, 3), dtype) * 500
    for axis in (None, 0, -1):
        with np.errstate(all="ignore"):
            top = x.astype("float64").max(axis, keepdims=True)
            want = np.log(np.exp(x.astype("float64") - top).sum(axis, keepdims=True)) + top
        for got in (fnp.logsumexp(x, axis, keepdims=True), *traced(fnp.logsumexp, (x, axis, None, True), {})):
            assert_same(got, want.astype(dtype), exact=False, scale=10)
    minus = np.array([-np.inf, -np.inf], dtype)
    assert fnp.logsumexp(minus) == -np.inf
    assert fnp.logsumexp(np.zeros(0, dtype)) == -np.inf
    assert fnp.logsumexp(np.array([np.inf, 1], dtype)) == np.inf
    assert np.isnan(fnp.logsumexp(np.array([np.nan, 1], dtype)))
    assert_same(fnp.logsumexp(np.array([1, 2], dtype), b=np.array([0, 2], dtype)), dtype_log(2, 2, dtype), exact=False)
    part = fnp.logsumexp(np.array([1, 2], dtype), where=np.array([False, True]))
    assert_same(part, np.dtype(dtype).type(2), exact=False)
    assert fnp.logsumexp(np.array([1, 2])).dtype == np.float64


def dtype_log(factor: float, exponent: float, dtype: str) -> np.generic:
    return np.dtype(dtype).type(np.log(factor) + exponent)


def test_half_precision_means_are_summed_in_single() -> None:
    x = np.full(5000, 30000, np.float16)
    assert_same(fnp.mean(x), np.float16(30000), exact=True)


def test_errors() -> None:
    x = np.ones((2, 3))
    with pytest.raises(AxisError, match="sum: axis 2 is out of range for an array with 2 axes"):
        fnp.sum(x, 2)
    with pytest.raises(AxisError, match="given twice"):
        fnp.sum(x, (0, -2))
    with pytest.raises(ShapeError, match=r"max: f64\[0\] has no elements along axis None"):
        fnp.max(np.ones(0))
    with pytest.raises(ShapeError, match="argmax"):
        fnp.argmax(np.ones((2, 0)), 1)
    with pytest.raises(DtypeError, match="where must be boolean"):
        fnp.sum(x, where=x)
    with pytest.raises(UnsupportedError, match="out="):
        fnp.sum(x, out=np.ones(()))
