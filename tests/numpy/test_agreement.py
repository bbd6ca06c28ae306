"""Corners where NumPy's answer is easy to miss: non-finite numbers, dtypes outside the usual, values known or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import (
    ConcretizationTypeError,
    DtypeError,
    ParameterError,
    UnsupportedError,
    ZeroWeightsError,
)
from tests.numpy.routes import assert_same, check_call

NAN, INF = np.nan, np.inf


def test_vander_of_what_is_not_finite() -> None:
    for n in (0, 1, 2, 3):
        check_call("vander", np.array([NAN, INF, -INF, 2.0]), n, exact=True)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "longdouble", "complex64", "complex128"])
def test_float_power_keeps_wide_dtypes(dtype: str) -> None:
    x = np.array([1, 3], dtype)
    for y in (2.0, np.float32(2), np.array([2, 1], "int8")):
        got, expected = fnp.float_power(x, y), np.float_power(x, y)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit])
def test_nan_to_num(wrap: Callable[..., Any]) -> None:
    x = np.array([NAN, INF, -INF, 1.0])
    for args in ((), (True, 1.0, 2.0, -2.0), (True, INF, 5.0, NAN), (True, np.array([9.0, 8, 7, 6]))):
        assert_same(wrap(lambda x, args=args: fnp.nan_to_num(x, *args))(x), np.nan_to_num(x, *args), exact=True)
    with pytest.raises(UnsupportedError, match="nan_to_num"):
        wrap(fnp.nan_to_num)(np.array([complex(NAN, 1)]))


@pytest.mark.parametrize("call", [fnp.sin, fnp.asarray, fg.jit(lambda x: x * x), fnp.sum])
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_matrices_are_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(DtypeError, match=r"np\.matrix") as caught:
        call(np.ones((2, 2)).view(np.matrix))
    assert caught.value.hint == "np.asarray(x)"


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_to_negative_powers(dtype: str) -> None:
    x, y = np.array([1, -1, 2, 0], dtype), np.array([-1, -3, -1, -2], dtype)
    for f in (lambda: fnp.power(x, y), lambda: fnp.power(x, -1), lambda: fg.vjp(lambda v: v * fnp.power(x, y), 1.0),
              lambda: fg.grad(lambda v, p: v * fnp.power(p, p).sum())(1.0, y), lambda: fg.jit(lambda v: v**-2)(x),
              lambda: fg.jit(lambda v: v**y)(x)):  # fmt: skip
        with pytest.raises(ParameterError, match="negative power"):
            f()
    assert fg.jit(fnp.power)(x, y).tolist() == [1, -1, 0, 0]  # the values are not known
    assert fnp.power(x, abs(y)).tolist() == np.power(x, abs(y)).tolist()


@pytest.mark.parametrize("dtype", ["int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_geomspace_and_logspace(dtype: str, axis: int) -> None:
    a, b = np.array([1, 2, -3], dtype), np.array([4, 8, -4], dtype)
    for function in (np.geomspace, np.logspace)[: 1 if dtype == "float16" else 2]:  # 10**8 is too much for float16
        for kwargs in ({}, {"endpoint": False}, {"dtype": "float32"}):
            expected = function(a, b, 4, axis=axis, **kwargs)
            call = lambda a, b, f=function, k=kwargs: f(a, b, 4, axis=axis, **k)
            for got in (getattr(fnp, function.__name__)(a, b, 4, axis=axis, **kwargs), fg.jit(call)(a, b)):
                assert got.dtype == expected.dtype or function is np.logspace
                np.testing.assert_allclose(got, expected, rtol=2e-2 if dtype == "float16" else 1e-5)
    base = np.array([2.0, 3, 10])
    for start in (a.astype(float), 1.0):
        expected = np.logspace(start, 2.0, 4, axis=axis, base=base)
        np.testing.assert_allclose(fnp.logspace(start, 2.0, 4, axis=axis, base=base), expected)
        got = fg.jit(lambda s, c: np.logspace(s, 2.0, 4, axis=axis, base=c))(start, base)
        np.testing.assert_allclose(got, expected)


def test_geomspace_from_zero() -> None:
    for f in (fnp.geomspace, fg.grad(lambda a, b: np.geomspace(a, b, 3).sum())):
        with pytest.raises(ParameterError, match="cannot contain 0"):
            f(0.0, 4.0)
    assert np.isnan(fg.jit(lambda a: np.geomspace(a, 4.0, 3))(0.0)[0])  # the value is not known


@pytest.mark.parametrize("scalar", [3, 3.0, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float32"])
def test_clip_takes_the_first_argument_for_an_array(scalar: Any, dtype: str) -> None:
    bound = np.array([1, 2], dtype)
    for args in ((bound, None), (None, bound), (bound, 5)):
        expected = np.clip(scalar, *args)
        assert_same(fnp.clip(scalar, *args), expected, exact=True)
        assert_same(fg.jit(lambda s, args=args: fnp.clip(s, *args))(scalar), expected, exact=True)


def test_trace_is_a_method() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert fg.grad(lambda x: x.trace())(x).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert fg.jit(lambda x: x.trace(1))(x) == x.trace(1)


@pytest.mark.parametrize("function", [fnp.delete, lambda x, i, axis: fnp.insert(x, i, 0.0, axis)])
def test_positions_that_are_traced(function: Callable[..., Any]) -> None:
    for axis in (0, None):
        for wrap in (lambda i: i, lambda i: [i], lambda i: [0, i]):
            with pytest.raises(ConcretizationTypeError, match="positions must be static"):
                fg.jit(lambda x, i, a=axis, w=wrap: function(x, w(i), a))(np.ones((2, 3)), 1)


@pytest.mark.parametrize("name", ["vdot", "vecdot", "conjugate"])
def test_complex_products_are_declined(name: str) -> None:
    z = np.array([1j, 2.0])
    with pytest.raises(UnsupportedError, match="conjugate"):
        getattr(fnp, name)(*[z, z][: 1 if name == "conjugate" else 2])
    with pytest.raises(UnsupportedError, match="conjugate"):
        fnp.vecmat(z, np.ones((2, 2)))


def test_choose_under_vmap() -> None:
    index, a = np.array([0, 1]), np.arange(6.0).reshape(3, 2)
    got = fg.vmap(lambda i, a: fnp.choose(i, [a, -a]), (None, 0))(index, a)
    assert got.tolist() == np.choose(index, [a, -a]).tolist()
    with pytest.raises(UnsupportedError, match="choose: mode='raise'"):
        fg.vmap(lambda i, a: fnp.choose(i, [a, -a]), (0, None))(index, a)
    with pytest.raises(ParameterError, match="choose: an integer is outside"):
        fg.grad(lambda a, i: fnp.choose(i, [a, -a]).sum())(a, index + 1)


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "expit", "xlogy", "xlog1py"])
@pytest.mark.parametrize("dtype", ["longdouble", "complex64", "complex128"])
def test_special_functions_of_other_dtypes(name: str, dtype: str) -> None:
    x = np.ones(2, dtype)
    f = getattr(fg.special, name)
    args = (x, x) if name.startswith("xlog") else (x,)
    if x.dtype.kind == "c" and not name.startswith("erf"):
        pytest.skip("defined for complex numbers")
    for call in (f, fg.make_program(f)):
        with pytest.raises(DtypeError, match="not defined for"):
            call(*args)


def test_errors_of_numpy_are_ours() -> None:
    for name in ("isposinf", "isneginf"):
        with pytest.raises(DtypeError, match=name):
            getattr(fnp, name)(np.array([1j]))
        check_call(name, np.array([1.0, INF, -INF, NAN]), exact=True)
    for bad in (1.5, np.array([1.5]), 1j):
        with pytest.raises(DtypeError, match="to_begin"):
            fnp.ediff1d(np.array([1, 2]), to_begin=bad)
    check_call("ediff1d", np.array([1.0, 2.0]), to_begin=1, to_end=[3, 4])
    x, w = np.array([1.0, 2.0]), np.array([1.0, -1.0])
    for f in (fnp.average, lambda x, weights: fg.grad(lambda x: fnp.average(x, weights=weights))(x)):
        with pytest.raises(ZeroWeightsError, match="sum to 0") as caught:
            f(x, weights=w)
        assert isinstance(caught.value, ZeroDivisionError)
