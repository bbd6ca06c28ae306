"""sort and argsort against NumPy's: every dtype, axis and layout, NaN and equal elements, derivatives and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import AxisError, DtypeError, ParameterError
from tests.numpy.routes import traced
from tests.rule_checker import check_rules

rng = np.random.default_rng(5)
SPECIAL = np.array([3.0, np.nan, -0.0, 0.0, 1.0, -np.inf, 0.0, np.nan, -0.0, np.inf, 1.0, -2.0])
DTYPES = ("float64", "float32", "float16", "int64", "int8", "uint64", "bool")


def values(dtype: str) -> Any:
    """Numbers with equal ones among them, of shape (3, 2, 4); floats with NaN, infinities and both zeros."""
    if dtype.startswith("float"):
        return np.concatenate([SPECIAL, SPECIAL[::-1]]).reshape(3, 2, 4).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 5, (3, 2, 4)).astype(dtype)


def ways(f: Callable[..., Any], x: Any) -> list[Any]:
    """The results of a function, computed at once, traced, and compiled."""
    return [f(fnp.asarray(x)), traced(f, (x,), {})[0], fg.jit(f)(x)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -3])
def test_sort_and_argsort_are_numpys(dtype: str, axis: int | None) -> None:
    x = values(dtype)
    for view in (x, x[:, :, ::-1], np.asfortranarray(x)):
        order, wanted = np.argsort(view, axis, kind="stable"), np.sort(view, axis, kind="stable")
        for found in ways(lambda x: fnp.argsort(x, axis), view):
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, order)
        for found in ways(lambda x: fnp.sort(x, axis), view):
            assert found.dtype == x.dtype
            np.testing.assert_array_equal(found, wanted)
            if dtype.startswith("f"):
                np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (0, 3), (1, 1), (2, 300)])
def test_lengths(shape: tuple[int, ...]) -> None:
    x = rng.integers(-9, 9, shape) * 0.5
    for f in (np.sort, np.argsort):
        for found in ways(lambda x, f=f: f(x, kind="stable"), x):
            np.testing.assert_array_equal(found, f(x, kind="stable"))


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_loops_of_numba(dtype: str) -> None:
    x = values(dtype)
    order, ordered = fg.jit(lambda x: (fnp.argsort(x), fnp.sort(x)), lowering="numba")(x)
    np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(ordered, np.sort(x, kind="stable"))


def test_numpys_functions_and_the_method_lead_here() -> None:
    x = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    f = lambda x: (np.sort(x, 0), np.sort(x, kind="stable"), np.sort(x, stable=True), np.argsort(x, None), x.argsort(1))
    for found, wanted in zip(fg.jit(f)(x), f(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert fnp.sort([3, 1, 2]).tolist() == [1, 2, 3] and fnp.argsort([[2.0], [1.0]], 0).tolist() == [[1], [0]]


def test_derivatives_of_any_order() -> None:
    x = np.array([[3.0, -1.0, 2.0, 0.5], [0.0, 4.0, 1.0, -2.0]])
    check_rules(lambda x: fnp.sort(x, 1) ** 3 * x, x, oracle="difference")
    check_rules(lambda x: fnp.sort(x, 0) * fnp.sort(x), x, oracle="difference")
    f = lambda x: np.sum(np.sort(x) ** 2 * np.arange(4.0))
    rank = np.argsort(np.argsort(x))
    assert fg.vmap(fg.grad(f))(x).tolist() == fg.jit(fg.vmap(fg.grad(f)))(x).tolist() == (2 * x * rank).tolist()
    assert fg.vmap(fg.grad(f), 1, 1)(x.T).tolist() == (2 * x * rank).T.tolist()
    assert fg.hessian(f)(x[0]).tolist() == np.diag(2.0 * rank[0]).tolist()
    median = fg.grad(lambda x: np.sort(x)[2])
    assert median(np.array([5.0, 1.0, 4.0, 2.0, 3.0])).tolist() == [0, 0, 0, 0, 1]


def test_the_derivative_of_equal_elements_goes_to_their_places_in_order() -> None:
    weights = np.array([1.0, 10.0, 100.0])
    assert fg.grad(lambda x: np.sort(x) @ weights)(np.array([2.0, 2.0, 1.0])).tolist() == [10.0, 100.0, 1.0]
    tangent = fg.jvp(np.sort, (np.array([np.nan, 2.0, 1.0]),), (np.array([1.0, 2.0, 3.0]),))[1]
    assert tangent.tolist() == [3.0, 2.0, 1.0]


def test_what_is_refused() -> None:
    x = np.ones((2, 3))
    for f in (fnp.sort, fnp.argsort):
        with pytest.raises(DtypeError, match="complex numbers are not ordered"):
            f(x + 1j)
        with pytest.raises(AxisError, match="axis 2 is out of range"):
            f(x, 2)
        with pytest.raises(AxisError):
            f(np.float64(1.0))
        with pytest.raises(ParameterError, match="kind is 'quicksort', 'mergesort', 'heapsort', 'stable' or None"):
            f(x, kind="fast")
        with pytest.raises(ParameterError, match="order= is for arrays with fields"):
            f(x, order="a")
        with pytest.raises(ParameterError, match="kind= and stable= were given"):
            f(x, kind="stable", stable=True)
