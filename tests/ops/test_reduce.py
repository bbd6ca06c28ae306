"""Reductions: NumPy is the oracle of values; products are linear in each element, so differences are derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.broadcasting import reduce_sum
from funcgrad.ops.comparison import gt
from funcgrad.ops.movement import convert
from funcgrad.ops.powers import sqrt
from funcgrad.ops.reduce import (
    argmax,
    argmin,
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_min,
    reduce_prod,
)

RNG = np.random.default_rng(0)
AXES = [(0,), (1,), (2,), (0, 2), (0, 1, 2)]
X = RNG.normal(size=(3, 4, 2))


def shift(x: Any, *where: int) -> Any:
    y = np.array(x)
    for i in where:
        y[i] += 1
    return y


def gradient_by_differences(f: Callable[[Any], Any], x: Any) -> Any:
    return np.array([f(shift(x, i)) - f(x) for i in range(len(x))])


def hessian_by_differences(f: Callable[[Any], Any], x: Any) -> Any:
    """Exact for a function that is linear in each element and takes small integers; its diagonal is 0."""
    n = len(x)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                out[i, j] = f(shift(x, i, j)) - f(shift(x, i)) - f(shift(x, j)) + f(x)
    return out


@pytest.mark.parametrize("axes", AXES)
def test_values(axes: tuple[int, ...]) -> None:
    for function, oracle in ((reduce_prod, np.prod), (reduce_max, np.max), (reduce_min, np.min)):
        np.testing.assert_allclose(function(X, axes), oracle(X, axis=axes), rtol=1e-14)
    for function, oracle in ((reduce_any, np.any), (reduce_all, np.all)):
        np.testing.assert_array_equal(function(X > 0.5, axes), oracle(X > 0.5, axis=axes))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "complex64"])
def test_dtypes_are_kept(dtype: str) -> None:
    x = (3 * X).astype(dtype)
    for function, ufunc in ((reduce_prod, np.multiply), (reduce_max, np.maximum), (reduce_min, np.minimum)):
        out = function(x, (1,))
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(out, ufunc.reduce(x, 1, dtype))
    assert reduce_max(X > 0, (0,)).dtype == bool


@pytest.mark.parametrize("x", [[0, 2, 3], [0, 0, 3], [0, 0, 0], [1, 0, 2, 0], [2, 3, 4, 5], [2], [0]])
def test_derivatives_of_prod_are_exact_with_zeros(x: list[int]) -> None:
    point = np.array(x, float)
    prod = lambda v: reduce_prod(v, (0,))
    gradient, hessian = gradient_by_differences(np.prod, point), hessian_by_differences(np.prod, point)
    for first in (fg.grad, fg.jacfwd, fg.jacrev):
        np.testing.assert_array_equal(first(prod)(point), gradient)
        for second in (fg.jacfwd, fg.jacrev):
            np.testing.assert_array_equal(second(first(prod))(point), hessian)


@pytest.mark.parametrize("mode", [fg.jacfwd, fg.jacrev])
def test_third_derivative_of_prod_with_three_zeros(mode: Any) -> None:
    third = mode(mode(mode(lambda v: reduce_prod(v, (0,)))))(np.array([0.0, 0.0, 0.0, 5.0, 7.0]))
    assert third[0, 1, 2] == third[2, 0, 1] == 35
    assert np.count_nonzero(third) == 6


@pytest.mark.parametrize("axes", AXES)
def test_gradient_of_prod_over_axes(axes: tuple[int, ...]) -> None:
    expected = np.prod(X, axis=axes, keepdims=True) / X
    found = fg.grad(lambda v: reduce_sum(reduce_prod(v, axes), tuple(range(3 - len(axes)))))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (reduce_max, [1, 3, 3, 2], [0, 0.5, 0.5, 0]),
        (reduce_max, [2, 2, 2], [1 / 3, 1 / 3, 1 / 3]),
        (reduce_min, [1, 3, 1, 1], [1 / 3, 0, 1 / 3, 1 / 3]),
        (reduce_max, [1, np.nan, 3, np.nan], [0, 0.5, 0, 0.5]),
        (reduce_min, [-np.inf, 3], [1, 0]),
        (reduce_max, [0.0, -0.0, -1], [0.5, 0.5, 0]),
    ],
)
def test_ties_share_the_derivative(function: Any, x: list[float], expected: list[float]) -> None:
    point = np.array(x, float)
    for mode in (fg.grad, fg.jacfwd):
        np.testing.assert_array_equal(mode(lambda v: function(v, (0,)))(point), expected)


def test_second_derivative_of_max() -> None:
    square = lambda v: reduce_max(mul(v, v), (0,))
    np.testing.assert_array_equal(fg.hessian(square)(np.array([1.0, 3.0, -2.0])), np.diag([0.0, 2.0, 0.0]))
    np.testing.assert_array_equal(fg.hessian(square)(np.array([1.0, 3.0, -3.0])), np.diag([0.0, 1.0, 1.0]))


def test_elements_that_lose_have_zero_derivative_even_where_theirs_is_infinite() -> None:
    for mode in (fg.grad, fg.jacfwd):
        found = mode(lambda v: reduce_max(sqrt(v), (0,)))(np.array([0.0, 1.0, 4.0]))
        np.testing.assert_array_equal(found, [0, 0, 0.25])


def test_no_elements() -> None:
    empty = np.zeros((0, 3))
    np.testing.assert_array_equal(reduce_prod(empty, (0,)), np.ones(3))
    np.testing.assert_array_equal(reduce_any(empty > 0, (0,)), [False] * 3)
    np.testing.assert_array_equal(reduce_all(empty > 0, (0,)), [True] * 3)
    assert fg.jacrev(lambda v: reduce_prod(v, (0,)))(empty).shape == (3, 0, 3)
    assert fg.jacfwd(lambda v: reduce_max(v, (1,)))(empty).shape == (0, 0, 3)
    for f in (lambda v: reduce_max(v, (0,)), lambda v: reduce_min(v, (0, 1)), lambda v: argmax(v, 0)):
        with pytest.raises(ShapeError, match=r"no element along axis 0 of .*f64\[0,3\]"):
            f(empty)
        with pytest.raises(ShapeError, match="no element along axis 0"):
            fg.jit(f)(empty)


def test_prod_takes_no_bool() -> None:
    with pytest.raises(DtypeError, match=r"reduce_prod: does not take bool\[2\]"):
        fg.jit(lambda v: reduce_prod(v, (0,)))(np.array([True, False]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_positions(axis: int) -> None:
    x = np.round(X)  # with ties
    x[1, 2, 1] = np.nan
    for function, oracle in ((argmax, np.argmax), (argmin, np.argmin)):
        out = function(x, axis)
        assert out.dtype == np.int64
        np.testing.assert_array_equal(out, oracle(x, axis))


def test_a_position_has_derivative_zero() -> None:
    scaled = lambda v: mul(reduce_sum(v, (0,)), convert(argmax(v, 0), np.dtype(float)))
    np.testing.assert_array_equal(fg.grad(scaled)(np.array([1.0, 2.0, 5.0, 3.0])), [2, 2, 2, 2])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_rows(dim: int) -> None:
    rows = RNG.normal(size=(5, 3, 4, 2))
    batched = np.moveaxis(rows, 0, dim)
    functions: list[Callable[[Any], Any]] = [
        lambda v: reduce_prod(v, (0, 2)),
        lambda v: reduce_max(v, (1,)),
        lambda v: reduce_min(v, (0, 1, 2)),
        lambda v: reduce_any(gt(v, 1.0), (0,)),
        lambda v: reduce_all(gt(v, -1.0), (2,)),
        lambda v: argmax(v, 1),
        lambda v: argmin(v, 2),
        fg.grad(lambda v: reduce_sum(reduce_prod(v, (0, 2)), (0,))),
        fg.grad(lambda v: reduce_sum(reduce_max(v, (1,)), (0, 1))),
    ]
    for f in functions:
        expected = np.stack([f(row) for row in rows])
        np.testing.assert_allclose(fg.vmap(f, in_axes=dim)(batched), expected, rtol=1e-13)
