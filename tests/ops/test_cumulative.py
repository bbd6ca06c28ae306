"""Running totals: NumPy and plain loops are the oracles; products are linear in each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.broadcasting import reduce_sum
from funcgrad.ops.cumulative import cummax, cummin, cumprod, cumsum, linear_recurrence
from funcgrad.ops.powers import sqrt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 2))
RUNNING = [(cumsum, np.add), (cumprod, np.multiply), (cummax, np.maximum), (cummin, np.minimum)]
NAN = np.nan


def oracle(ufunc: Any, x: Any, axis: int, reverse: bool) -> Any:
    turn = (lambda v: np.flip(v, axis)) if reverse else (lambda v: v)
    return turn(ufunc.accumulate(turn(x), axis, x.dtype))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("function", "ufunc"), RUNNING)
def test_values(function: Any, ufunc: Any, axis: int, reverse: bool) -> None:
    kept = X.copy()
    np.testing.assert_array_equal(function(X, axis, reverse), oracle(ufunc, X, axis, reverse))
    np.testing.assert_array_equal(X, kept)
    for dtype in ("int8", "uint32", "int64", "float16", "float32", "complex64", "complex128"):
        x = (3 * X).astype(dtype)
        out = function(x, axis, reverse)
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(out, oracle(ufunc, x, axis, reverse))


def recurrence_by_loop(a: Any, b: Any, keep: Any) -> Any:
    h = [b[0]]
    for k in range(1, len(b)):
        h.append(np.where(keep[k], a[k] * h[k - 1], 0) + b[k])
    return np.array(h)


@pytest.mark.parametrize("lanes", [1, 40])  # few: Python's numbers, many: rows
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_linear_recurrence(lanes: int, dtype: str) -> None:
    a, b = RNG.normal(size=(2, 9, lanes)).astype(dtype)
    keep = RNG.random((9, lanes)) > 0.3
    expected = recurrence_by_loop(a, b, keep)
    out = linear_recurrence(a, b, keep, 0)
    assert out.dtype == a.dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    turned = linear_recurrence(a[::-1].T.copy(), b[::-1].T, keep[::-1].T, 1, reverse=True)
    np.testing.assert_allclose(turned.T[::-1], expected, rtol=tolerance, atol=tolerance)


def test_a_recurrence_forgets_whatever_the_past_holds() -> None:
    a, b = np.array([np.inf, 2.0, 0.0]), np.array([NAN, 1.0, 1.0])
    np.testing.assert_array_equal(linear_recurrence(a, b, np.array([True, False, True]), 0), [NAN, 1, 1])


@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_of_a_recurrence(reverse: bool) -> None:
    a, b, a_dot, b_dot, w = RNG.normal(size=(5, 6, 2))
    keep = RNG.random((6, 2)) > 0.3
    f = lambda a, b: linear_recurrence(a, b, keep, 0, reverse)
    h = 1e-6
    numeric = lambda g: (g(a + h * a_dot, b + h * b_dot) - g(a - h * a_dot, b - h * b_dot)) / (2 * h)
    forward = fg.jvp(f, (a, b), (a_dot, b_dot))[1]
    np.testing.assert_allclose(forward, numeric(f), rtol=1e-7, atol=1e-7)
    a_bar, b_bar = fg.vjp(f, a, b)[1](w)
    assert np.vdot(a_bar, a_dot) + np.vdot(b_bar, b_dot) == pytest.approx(np.vdot(w, forward), rel=1e-12)
    for second in (
        lambda a, b: fg.jvp(f, (a, b), (b_dot, a_dot))[1],
        lambda a, b: fg.vjp(f, a, b)[1](w)[0],
    ):
        found = fg.jvp(second, (a, b), (a_dot, b_dot))[1]
        np.testing.assert_allclose(found, numeric(second), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("mode", [fg.jacfwd, fg.jacrev])
def test_derivative_of_cumsum(mode: Any) -> None:
    np.testing.assert_array_equal(mode(lambda v: cumsum(v, 0))(np.ones(4)), np.tri(4))
    np.testing.assert_array_equal(mode(lambda v: cumsum(v, 0, True))(np.ones(4)), np.tri(4).T)


def shift(x: Any, *where: int) -> Any:
    y = np.array(x)
    for i in where:
        y[i] += 1
    return y


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("x", [[2, 3, 4, 5], [0, 2, 3], [2, 0, 3, 4], [2, 0, 0, 3], [0, 0, 0], [5]])
def test_derivatives_of_cumprod_are_exact_with_zeros(x: list[int], reverse: bool) -> None:
    point, n = np.array(x, float), len(x)
    f = lambda v: cumprod(v, 0, reverse)
    exact = lambda v: oracle(np.multiply, v, 0, reverse)
    first = np.stack([exact(shift(point, i)) - exact(point) for i in range(n)], axis=1)
    second = np.zeros((n, n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                one, two, both = shift(point, i), shift(point, j), shift(point, i, j)
                second[:, i, j] = exact(both) - exact(one) - exact(two) + exact(point)
    for inner in (fg.jacfwd, fg.jacrev):
        np.testing.assert_array_equal(inner(f)(point), first)
        for outer in (fg.jacfwd, fg.jacrev):
            np.testing.assert_array_equal(outer(inner(f))(point), second)


def shares(x: list[float], better: Callable[[Any], Any]) -> Any:
    """Row k: the elements up to k that are the extreme so far share 1."""
    rows = []
    for k in range(len(x)):
        hit = np.array(x) == better(x[: k + 1])
        hit[k + 1 :] = False
        rows.append(hit / hit.sum())
    return np.array(rows)


@pytest.mark.parametrize("mode", [fg.jacfwd, fg.jacrev])
@pytest.mark.parametrize("x", [[1, 1, 0, 1, 2, 2, 1], [3, 1, 2], [1, 2, 3], [0.0, -0.0], [2]])
def test_ties_of_cummax_and_cummin_share_the_derivative(x: list[float], mode: Any) -> None:
    point = np.array(x, float)
    np.testing.assert_array_equal(mode(lambda v: cummax(v, 0))(point), shares(x, max))
    np.testing.assert_array_equal(mode(lambda v: cummin(v, 0))(point), shares(x, min))
    np.testing.assert_array_equal(mode(lambda v: cummax(v, 0, True))(point), shares(x[::-1], max)[::-1, ::-1])


def test_cummax_of_nan_and_of_infinite_derivatives() -> None:
    found = fg.jacfwd(lambda v: cummax(v, 0))(np.array([1, NAN, 2, NAN]))
    np.testing.assert_array_equal(found, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0.5]])
    for mode in (fg.jacfwd, fg.jacrev):
        found = mode(lambda v: cummax(sqrt(v), 0))(np.array([0.0, 1.0, 4.0]))
        np.testing.assert_array_equal(found, np.diag([np.inf, 0.5, 0.25]))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(("function", "ufunc"), RUNNING)
def test_rows(function: Any, ufunc: Any, dim: int) -> None:
    rows = RNG.normal(size=(5, 3, 4))
    for axis in (0, 1):
        for reverse in (False, True):
            f = lambda v, axis=axis, reverse=reverse: function(v, axis, reverse)
            square = lambda v, f=f: reduce_sum(mul(f(v), f(v)), (0, 1))
            for g in (f, fg.grad(square)):
                found = fg.vmap(g, in_axes=dim, out_axes=dim)(np.moveaxis(rows, 0, dim))
                expected = np.moveaxis(np.stack([g(row) for row in rows]), 0, dim)
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_rows_of_a_recurrence() -> None:
    a, b = RNG.normal(size=(2, 5, 4, 2))
    keep = RNG.random((5, 4, 2)) > 0.4
    f = lambda a, b, keep: linear_recurrence(a, b, keep, 0)
    for dims in ((0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)):
        pairs = list(zip((a, b, keep), dims, strict=True))
        args = [v[0] if d is None else v for v, d in pairs]
        expected = np.stack([f(*[v[0] if d is None else v[i] for v, d in pairs]) for i in range(5)])
        np.testing.assert_array_equal(fg.vmap(f, in_axes=dims)(*args), expected)


@pytest.mark.parametrize(("function", "ufunc"), RUNNING)
def test_no_elements(function: Any, ufunc: Any) -> None:
    for axis in (0, 1):
        f = lambda v, axis=axis: function(v, axis)
        assert f(np.zeros((0, 3))).shape == (0, 3)
        assert fg.jacrev(f)(np.zeros((0, 3))).shape == (0, 3, 0, 3)
        assert fg.hessian(lambda v, f=f: reduce_sum(f(v), (0, 1)))(np.zeros((0, 3))).shape == (0, 3, 0, 3)
