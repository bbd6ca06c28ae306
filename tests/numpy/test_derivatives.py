"""Derivatives of what is made of several ops: against differences, against each other, and at singular points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from tests.numpy.samples import array

I = np.array([[0, 2], [1, 0]])
MASK = array((2, 3), "bool")
FUNCTIONS = {
    "sum": lambda x: fnp.sum(x, 1, where=MASK),
    "prod": lambda x: fnp.prod(x, 0),
    "mean": lambda x: x.mean(0),
    "mean of a part": lambda x: fnp.mean(x, where=MASK),
    "var": lambda x: x.var(1, ddof=1),
    "std": lambda x: x.std(),
    "max": lambda x: x.max(0),
    "min": lambda x: fnp.min(x, initial=-1, where=MASK),
    "ptp": lambda x: fnp.ptp(x),
    "cumsum": lambda x: fnp.cumsum(x, 1),
    "cumprod": lambda x: fnp.cumprod(x),
    "average": lambda x: fnp.average(x, 0, x[:, 0] ** 2 + 1),
    "logsumexp": lambda x: fnp.logsumexp(x, 1),
    "logsumexp with factors": lambda x: fnp.logsumexp(x, 0, x**2 + 1),
    "nanmean": lambda x: fnp.nanmean(x),
    "nanstd": lambda x: fnp.nanstd(x, 0),
    "norm": lambda x: fnp.linalg.norm(x),
    "norm 1": lambda x: fnp.linalg.norm(x, 1),
    "norm 3": lambda x: fnp.linalg.norm(x, 3, axis=1),
    "norm inf": lambda x: fnp.linalg.norm(x, np.inf),
    "where": lambda x: fnp.where(MASK, x, x**2),
    "clip": lambda x: fnp.clip(x, -0.5, x.mean()),
    "select": lambda x: fnp.select([MASK], [x], x * 2),
    "nan_to_num": lambda x: fnp.nan_to_num(x),
    "reshape": lambda x: x.reshape(3, 2) ** 2,
    "transpose": lambda x: x.T * np.arange(2),
    "flip": lambda x: fnp.flip(x, 0) * x,
    "roll": lambda x: fnp.roll(x, 1, 1) * x,
    "tile": lambda x: fnp.tile(x, (2, 1)),
    "repeat": lambda x: fnp.repeat(x, [1, 2], 0),
    "pad": lambda x: fnp.pad(x, 1, constant_values=x[0, 0]),
    "pad edge": lambda x: fnp.pad(x, 2, "edge"),
    "pad reflect": lambda x: fnp.pad(x, 1, "reflect"),
    "diag": lambda x: fnp.diag(x[0], 1),
    "diagonal": lambda x: fnp.diagonal(x, 1),
    "trace": lambda x: fnp.trace(x),
    "tril": lambda x: fnp.tril(x),
    "concatenate": lambda x: fnp.concatenate([x, x**2], 1),
    "stack": lambda x: fnp.stack([x, x**2], 1),
    "block": lambda x: fnp.block([[x, x], [x[:1] ** 2, x[1:]]]),
    "split": lambda x: fnp.split(x, [1], 1)[1],
    "insert": lambda x: fnp.insert(x, 1, x[:, 0] ** 2, 1),
    "delete": lambda x: fnp.delete(x, 1, 1),
    "sort": lambda x: fnp.sort(x, 1) * x,
    "take": lambda x: fnp.take(x, I, 1),
    "take_along_axis": lambda x: fnp.take_along_axis(x, I, 1),
    "linspace": lambda x: fnp.linspace(x[0], x[1], 4),
    "geomspace": lambda x: fnp.geomspace(x[0] ** 2 + 1, 5.0, 4),
    "full": lambda x: fnp.full((2, 3), x[0]),
    "meshgrid": lambda x: fnp.meshgrid(x[0], x[1])[0],
    "matmul": lambda x: x @ x.T,
    "matmul with stacks": lambda x: x[:, None] @ fnp.stack([x.T, x.T]),
    "dot": lambda x: fnp.dot(x, x[0]),
    "inner": lambda x: fnp.inner(x, x),
    "outer": lambda x: fnp.outer(x[0], x[1]),
    "tensordot": lambda x: fnp.tensordot(x, x, 2),
    "kron": lambda x: fnp.kron(x, x),
    "cross": lambda x: fnp.cross(x[0], x[1]),
    "vdot": lambda x: fnp.vdot(x, x**2),
    "einsum": lambda x: fnp.einsum("ij,kj,k->i", x, x, x[:, 0]),
    "einsum diagonal": lambda x: fnp.einsum("ii->i", x[:, :2]),
    "diff": lambda x: fnp.diff(x, 2),
    "gradient": lambda x: fnp.gradient(x, axis=1),
    "trapezoid": lambda x: fnp.trapezoid(x, x**3),
    "polyval": lambda x: fnp.polyval(x[0], x[1]),
    "vander": lambda x: fnp.vander(x[0]),
    "getitem": lambda x: x[1, ::-1] * x[0, 1],
    "gather": lambda x: x[:, [0, 0, 2]] ** 2,
    "mask": lambda x: x[MASK] ** 2,
    "at set": lambda x: x.at[0, ::2].set(x[1, :2] ** 2),
    "at add": lambda x: x.at[:, [0, 0]].add(x[:, :2] ** 2),
    "at multiply": lambda x: x.at[[0, 0]].multiply(x),
    "at mask": lambda x: x.at[MASK].set(x[0, 0] ** 2),
    "at divide": lambda x: x.at[1].divide(x[0] ** 2 + 1),
    "at power": lambda x: (x**2).at[[1, 1]].power(3.0),
    "modf": lambda x: fnp.modf(x)[0],
    "float_power": lambda x: fnp.float_power(x**2, 1.5),
    "power": lambda x: x**3 + x**2 + x**-1,
    "fabs": lambda x: fnp.fabs(x),
    "remainder": lambda x: fnp.divmod(x, 0.7)[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name: str) -> None:
    f = FUNCTIONS[name]
    x, direction = array((2, 3)), array((2, 3), seed=5)
    y, y_dot = fg.jvp(f, (x,), (direction,))
    step = 1e-5
    numeric = (np.asarray(f(fnp.asarray(x + step * direction))) - np.asarray(f(fnp.asarray(x - step * direction)))) / (
        2 * step
    )
    np.testing.assert_allclose(y_dot, numeric, rtol=1e-6, atol=1e-7)
    weight = array(np.shape(y), seed=6)
    _, back = fg.vjp(f, x)
    (x_bar,) = back(weight)
    np.testing.assert_allclose(np.vdot(x_bar, direction), np.vdot(weight, y_dot), rtol=1e-11)  # <x_bar, v> = <w, J v>
    # second order: forward over reverse against reverse over forward
    a = fg.jvp(lambda x: fg.vjp(f, x)[1](weight)[0], (x,), (direction,))[1]
    b = fg.grad(lambda x: fnp.vdot(weight, fg.jvp(f, (x,), (direction,))[1]))(x)
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batching(name: str) -> None:
    f = FUNCTIONS[name]
    rows = np.stack([array((2, 3)), array((2, 3), seed=1)])
    got = fg.vmap(f)(rows)
    want = np.stack([np.asarray(f(fnp.asarray(row))) for row in rows])
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


# -- singular points (SEMANTICS, first table)


@pytest.mark.parametrize("f", [fnp.std, fnp.var, np.std, lambda x: fnp.linalg.norm(x - 3.0), lambda x: fnp.nanstd(x)])
def test_spread_of_a_constant_has_derivative_zero(f: Any) -> None:
    x = np.full(4, 3.0)
    np.testing.assert_array_equal(fg.grad(f)(x), np.zeros(4))
    assert np.all(np.isfinite(fg.grad(lambda x: fg.grad(f)(x) @ np.arange(4.0))(x)))


@pytest.mark.parametrize("order", [None, 1, 2, 3, np.inf])
def test_norm_of_a_zero_vector_has_derivative_zero(order: Any) -> None:
    gradient = fg.grad(lambda x: fnp.linalg.norm(x, order))(np.zeros(3))
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_nan_still_goes_through() -> None:
    assert np.isnan(fg.grad(fnp.std)(np.array([1.0, np.nan]))).all()
    assert np.isnan(fnp.std(np.array([1.0, np.nan])))
    assert np.isnan(fnp.linalg.norm(np.array([1.0, np.nan])))


def test_logsumexp_of_nothing_has_derivative_zero() -> None:
    value, gradient = fg.value_and_grad(fnp.logsumexp)(np.full(3, -np.inf))
    assert value == -np.inf
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_logsumexp_to_second_order() -> None:
    x = np.array([1000.0, 1001.0, 998.0])
    p = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    np.testing.assert_allclose(fg.grad(fnp.logsumexp)(x), p, rtol=1e-13)
    np.testing.assert_allclose(fg.hessian(fnp.logsumexp)(x), np.diag(p) - np.outer(p, p), rtol=1e-12, atol=1e-16)
    x = np.array([0.0, -np.inf, 1.0])
    assert np.all(np.isfinite(fg.hessian(fnp.logsumexp)(x)))


def test_the_branch_not_taken() -> None:
    np.testing.assert_array_equal(
        fg.grad(lambda x: fnp.where(x > 0, fnp.sqrt(x), 0.0).sum())(np.array([0.0, 4.0])), [0, 0.25]
    )
    np.testing.assert_array_equal(fg.grad(lambda x: fnp.sum(x**0))(np.zeros(2)), [0, 0])


def test_duplicate_positions_of_set() -> None:
    def f(v: Any) -> Any:
        return fnp.zeros(2).at[np.array([0, 0])].set(v)[0]

    np.testing.assert_array_equal(fg.grad(f)(np.array([1.0, 2.0])), [0, 1])


def test_the_product_rule_at_zeros() -> None:
    np.testing.assert_array_equal(fg.grad(fnp.prod)(np.array([0.0, 2.0, 3.0])), [6, 0, 0])


@pytest.mark.parametrize("dtype", [int, np.uint8, bool])
def test_whole_numbers_on_the_way_have_derivative_zero(dtype: Any) -> None:
    f = lambda x: x.astype(dtype).astype(float) * x**2
    x = np.array([2.75, 0.5])
    whole = x.astype(dtype).astype(float)
    np.testing.assert_array_equal(fg.jvp(f, (x,), (np.array([3.0, 5.0]),))[1], whole * 2 * x * [3.0, 5.0])
    np.testing.assert_array_equal(fg.grad(lambda x: f(x).sum())(x), whole * 2 * x)
    np.testing.assert_array_equal(fg.jit(fg.hessian(lambda x: f(x).sum()))(x), np.diag(whole * 2))


def test_weak_arguments() -> None:
    assert fg.grad(lambda x: x**2 * 3)(2.0) == 12.0
    assert fg.grad(lambda x: (x * np.float32(2)) ** 2)(np.float32(1.5)).dtype == np.float32
