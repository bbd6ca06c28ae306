"""The elementwise functions against NumPy's, on every route and for every pair of dtypes."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.base.errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from funcgrad.numpy.elementwise import functions, ops
from tests.numpy.routes import check_call
from tests.numpy.samples import DTYPES, SHAPES, array

ARITY = {name: len(inspect.signature(f).parameters) for name, f in functions.items()}
UNARY = sorted(name for name, n in ARITY.items() if n == 1)
BINARY = sorted(name for name, n in ARITY.items() if n == 2)
ALIASES = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_invert", "bitwise_left_shift",
    "bitwise_not", "bitwise_right_shift", "degrees", "mod", "pow", "radians", "true_divide", "conj",
]  # fmt: skip
EITHER_ZERO = {"maximum", "minimum", "fmax", "fmin"}  # of 0.0 and -0.0 NumPy's loops give one or the other


def is_exact(name: str) -> bool:
    op = ops.get(getattr(np, name))
    return op is not None and op.traits.exact and name not in EITHER_ZERO


def undefined(name: str, x: np.ndarray, y: np.ndarray | int = 1) -> bool:
    """1 / 0 of integers, 0 with us; integers to a negative power, where NumPy raises if it finds one."""
    both = np.result_type(x, y)
    if name == "reciprocal":
        return both.kind in "biu" and not np.all(x)
    return name == "power" and both.kind in "biu" and not np.all(np.asarray(y) >= 0)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_operand(name: str, dtype: str) -> None:
    for shape in SHAPES:
        for x in (array(shape, dtype, special=True), array(shape, dtype)):
            if not undefined(name, x):
                check_call(name, x, exact=is_exact(name), scale=10)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_operands(name: str, dtype: str) -> None:
    for other in DTYPES:
        x, y = array((3,), dtype, special=True), array((3,), other, special=True, seed=1)[::-1]
        if not undefined(name, x, y):
            check_call(name, x, y, exact=is_exact(name), scale=100)
    for a, b in [((2, 3), ()), ((), (0,)), ((2, 1), (3,)), ((0, 3), (1,)), ((), ())]:
        x, y = array(a, dtype), np.abs(array(b, dtype, seed=1)) if dtype != "bool" else array(b, dtype)
        check_call(name, x, y, exact=is_exact(name), scale=100)
    check_call(name, array((2,), dtype), array((3,), dtype))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("scalar", [2, 0.5, True, -1, 300, 2**40])
def test_a_python_scalar_is_weak(name: str, scalar: float) -> None:
    for dtype in DTYPES:
        x = array((3,), dtype, special=True)
        if not (name == "power" and x.dtype.kind in "biu"):
            check_call(name, x, scalar, exact=is_exact(name), scale=100)
            check_call(name, scalar, x, exact=is_exact(name), scale=100)


@pytest.mark.parametrize("name", ALIASES)
def test_other_names_are_numpys(name: str) -> None:
    n = 2 if name in ("atan2", "bitwise_left_shift", "bitwise_right_shift", "mod", "pow", "true_divide") else 1
    for dtype in ("int64", "float64"):
        check_call(name, *[np.abs(array((3,), dtype, seed=i)) + 1 for i in range(n)], scale=10)


def test_a_function_of_python_numbers_gives_a_strong_result() -> None:
    assert fnp.sin(1.0).dtype == np.float64
    assert fnp.add(1, 2).dtype == np.int64
    assert (fnp.add(1, 2) + np.float32(1)).dtype == np.float64


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
@pytest.mark.parametrize("number", [300, -1, 2**70, -(2**70)])
def test_comparisons_with_numbers_outside_the_range(name: str, number: int) -> None:
    for dtype in ("uint8", "int8", "int64"):
        for shape in ((), (3,)):
            check_call(name, array(shape, dtype), number)
            check_call(name, number, array(shape, dtype))


def test_comparisons_of_int64_and_uint64_are_exact() -> None:
    x, y = np.array([2**62 + 1, -1, 5]), np.array([2**62, 2**64 - 1, 5], np.uint64)
    for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
        check_call(name, x, y)
        check_call(name, y, x)


def test_power_of_integers() -> None:
    x = array((3,), "int32")
    for exponent in (0, 1, 2, 3):
        check_call("power", x, exponent)
    check_call("power", x, -1)
    check_call("power", x, 2.0)
    check_call("power", np.abs(x), 0.5, scale=10)


def test_keywords() -> None:
    x = fnp.ones(3)
    assert fnp.sin(x, out=None, where=True, casting="same_kind", order="K", dtype=None, subok=True).shape == (3,)
    with pytest.raises(UnsupportedError, match=r"sin: the keyword out= is not supported"):
        fnp.sin(x, out=x)
    with pytest.raises(UnsupportedError, match="where="):
        fnp.sin(x, where=x > 0)
    with pytest.raises(ArgumentError, match="unexpected keyword argument 'axis'"):
        fnp.sin(x, axis=0)
    with pytest.raises(ArgumentError, match="add: takes 2 positional arguments, got 1"):
        fnp.add(x)


def test_operands_that_are_none() -> None:
    with pytest.raises(ArgumentError, match="sin: expected an array or a number, got None"):
        fnp.sin(None)
    with pytest.raises(ArgumentError, match="add: expected an array or a number, got a str: 'a'"):
        fnp.add(1.0, "a")
    with pytest.raises(DtypeError, match="sin: funcgrad computes with bool, integers and floats"):
        fnp.sin(np.array(["a"]))
    with pytest.raises(DtypeError, match="masked"):
        fnp.sin(np.ma.masked_array([1.0], [True]))
    with pytest.raises(ShapeError, match="nested lists"):
        fnp.sin([[1.0], [1.0, 2.0]])
    with pytest.raises(DtypeError, match="bitwise_and: not defined for f64 and i64"):
        fnp.bitwise_and(np.ones(2), np.ones(2, int))


def test_foreign_byte_order_and_layout() -> None:
    x = array((4, 6), "float64")
    check_call("sin", x.astype(">f8"), scale=10)
    check_call("add", x[::2, ::-3], x.T[::3, ::2].T, exact=True)


def test_signatures_and_docstrings() -> None:
    for name, f in functions.items():
        assert f.__name__ == name and f.__doc__, name
        assert all(p.kind is p.POSITIONAL_ONLY for p in inspect.signature(f).parameters.values())
