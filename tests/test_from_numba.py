"""Numba both ways: njit functions in traced code, and traced functions in njit code. Few compilations, small ones."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors

os.environ.setdefault("NUMBA_OPT", "0")  # read when Numba is imported, which is later
numba = pytest.importorskip("numba")
ROWS = np.arange(6.0).reshape(2, 3) - 2.5


@pytest.fixture(scope="module")
def running() -> Any:
    """The running sum by a loop, which writes into its argument, and the last element."""

    @numba.njit
    def running_sum(x: Any) -> Any:
        for i in range(1, x.size):
            x[i] += x[i - 1]
        return x, x[-1]

    return running_sum


@pytest.fixture(scope="module")
def cube() -> Any:
    @numba.njit
    def cube(x: Any) -> Any:
        return x * x * x

    return cube


def test_arrays_in_and_out(running: Any) -> None:
    f = fg.from_numba(running, lambda x: (x, fg.ShapeDtypeStruct((), x.dtype)))
    x = ROWS[0].copy()
    for g in (f, fg.jit(f), fg.jit(lambda v: f(v * 1.0))):
        sums, last = g(x)
        np.testing.assert_array_equal(sums, [-2.5, -4.0, -4.5])
        assert last == -4.5
    np.testing.assert_array_equal(x, ROWS[0])
    strided = f(ROWS[:, 1])[0]  # a copy in C order
    np.testing.assert_array_equal(strided, [-1.5, 0.0])
    for g in (fg.vmap(f), fg.jit(fg.vmap(f))):
        np.testing.assert_array_equal(g(ROWS)[0], np.cumsum(ROWS, axis=1))
    with pytest.raises(errors.RuleError, match="the derivative of running_sum is not known"):
        fg.grad(lambda v: np.sum(f(v)[0]))(x)


def test_a_jvp_serves_both_modes(cube: Any) -> None:
    def rule(primals: Any, tangents: Any) -> Any:
        return f(*primals), 3.0 * primals[0] ** 2 * tangents[0]

    f = fg.from_numba(cube, lambda x: x, jvp=rule)
    for wrap in (lambda g: g, fg.jit):
        assert wrap(fg.grad(f))(2.0) == 12.0
        assert wrap(fg.grad(fg.grad(f)))(2.0) == 12.0
        assert wrap(lambda x: fg.jvp(f, (x,), (1.0,)))(2.0) == (8.0, 12.0)
        np.testing.assert_array_equal(wrap(fg.vmap(fg.grad(f)))(np.array([1.0, 2.0])), [3.0, 12.0])


def test_a_vjp_serves_reverse_mode(running: Any) -> None:
    f = fg.from_numba(
        running,
        lambda x: (x, fg.ShapeDtypeStruct((), x.dtype)),
        vjp=(lambda x: (f(x), None), lambda _, cts: (np.cumsum(cts[0][::-1])[::-1] + cts[1],)),
    )
    for wrap in (lambda g: g, fg.jit):
        found = wrap(fg.grad(lambda x: np.sum(f(x)[0]) + 10.0 * f(x)[1]))(ROWS[0])
        np.testing.assert_array_equal(found, [13.0, 12.0, 11.0])
    with pytest.raises(
        errors.ForwardModeError, match=r"running_sum: from_numba\(vjp=\.\.\.\) has a backward"
    ) as caught:
        fg.jvp(f, (ROWS[0],), (ROWS[0],))
    assert "pass jvp= in its place" in str(caught.value)


def test_errors_say_what_from_numba_takes() -> None:
    def plain(x: Any) -> Any:
        return x * x

    with pytest.raises(errors.ArgumentError, match="plain is a Python function that Numba did not compile") as caught:
        fg.from_numba(plain, lambda x: x)
    assert "@numba.njit" in str(caught.value)
    with pytest.raises(errors.RuleError, match="the derivative of plain is not known") as unknown:
        fg.grad(fg.from_numba(numba.njit(plain), lambda x: x))(1.0)
    assert "jvp=" in str(unknown.value)
    wrong = fg.from_numba(numba.njit(plain), lambda x: x, jvp=lambda p: p)
    with pytest.raises(errors.CustomRuleError, match="custom_jvp: the rule of plain does not take the arguments"):
        fg.grad(wrong)(1.0)


def test_a_result_of_another_type(running: Any) -> None:
    f = fg.from_numba(running, (fg.ShapeDtypeStruct((2,), float), fg.ShapeDtypeStruct((), float)))
    with pytest.raises(
        errors.CallbackError, match=r"running_sum returns f64\[3\] as result\[0\], declared is f64\[2\]"
    ):
        fg.jit(f)(ROWS[0])


def test_c_functions_of_numbers() -> None:
    @numba.cfunc("float64(float64, int64)")
    def scaled(x: Any, n: Any) -> Any:
        return x * n

    low_level = pytest.importorskip("scipy").LowLevelCallable(scaled.ctypes)
    for function in (scaled, low_level, scaled.ctypes):
        f = fg.from_numba(function, fg.ShapeDtypeStruct((), float))
        assert fg.jit(f)(2.5, 3) == 7.5
        np.testing.assert_array_equal(fg.vmap(f, in_axes=(0, None))(ROWS[0], 2), [-5.0, -3.0, -1.0])
        with pytest.raises(errors.ArgumentError, match="takes 2 numbers"):
            f(ROWS[0], 2)
    pointer = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.POINTER(ctypes.c_double))(scaled.address)
    with pytest.raises(errors.ArgumentError, match="not every argument and result is declared as a number"):
        fg.from_numba(pointer, fg.ShapeDtypeStruct((), float))


def test_wrong_arguments(cube: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="compiled by Numba, got int"):
        fg.from_numba(3, fg.ShapeDtypeStruct((), float))
    with pytest.raises(errors.ArgumentError, match="cube has a jvp and a vjp"):
        fg.from_numba(cube, lambda x: x, jvp=lambda p, t: (p, t), vjp=(abs, abs))
    with pytest.raises(errors.ArgumentError, match="the vjp of cube is a pair"):
        fg.from_numba(cube, lambda x: x, vjp=abs)  # type: ignore[arg-type]


# -- the other way


def test_a_gradient_called_from_njit_code() -> None:
    a = np.array([1.0, -2.0, 0.5])

    def loss(p: Any, k: Any) -> Any:
        return k * np.sum(a * p["x"] ** 3) + p["y"]

    point = {"x": np.zeros(3), "y": 0.0}
    handle = fg.jit(fg.value_and_grad(loss)).numba(point, 1)

    @numba.njit
    def descend(x: Any) -> Any:
        y = 0.0
        for _ in range(2):
            value, slope, _ = handle(x, y, 2)
            x = x - 0.125 * slope
        return x, value

    x = np.array([1.0, 0.5, -2.0])
    found, value = descend(x)
    first = x - 0.125 * 6 * a * x**2
    second = first - 0.125 * 6 * a * first**2
    np.testing.assert_allclose(found, second, rtol=1e-14)
    np.testing.assert_allclose(value, 2 * np.sum(a * first**3), rtol=1e-14)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_allclose(handle(frozen, 0.0, 2)[1], 6 * a * x**2, rtol=1e-14)
    with pytest.raises(ValueError, match=r"must have the shape \(3,\)"):
        handle(np.zeros(4), 0.0, 1)
    for wrong in (np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros(6)[::2]):
        with pytest.raises(TypeError, match="No matching definition"):
            handle(wrong, 0.0, 1)


def test_a_result_shares_no_memory_with_an_argument() -> None:
    x = np.arange(6.0)
    handle = fg.jit(lambda v: (v, v.reshape(2, 3))).numba(x)
    same, rows = handle(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(rows, x.reshape(2, 3))
    assert not np.shares_memory(same, x) and not np.shares_memory(rows, x)
    assert same.flags.writeable and rows.flags.writeable


def test_a_callback_has_no_numba_form(cube: Any) -> None:
    f = fg.from_numba(cube, lambda x: x)
    with pytest.raises(errors.UnsupportedError, match="callback"):
        fg.jit(f).numba(1.0)
    op = fg.extend.op(lambda x: x)
    op.def_shape(lambda x: x)
    with pytest.raises(errors.UnsupportedError):
        fg.jit(op).numba(1.0)
    with pytest.raises(errors.UnsupportedError):
        fg.jit(lambda x: x).numba(np.zeros(2, complex))
