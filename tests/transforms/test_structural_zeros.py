"""Structural zeros: what a `where`, a clip, an index or a basis vector put to zero stays zero, in every mode and at
second order; a zero that merely happens does not annihilate; and no second derivative is lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp

inf, nan = np.inf, np.nan
A = np.array([1.0, 2.0, -1.5])

# function, point, first derivative, second derivative
TABLE: dict[str, tuple[Any, float, float, float]] = {
    "where(x>0, sqrt(x), 0)": (lambda x: np.where(x > 0, np.sqrt(x), 0.0), 0.0, 0.0, 0.0),
    "where(x>0, x**1.5, 0)": (lambda x: np.where(x > 0, x**1.5, 0.0), 0.0, 0.0, 0.0),
    "where(x>0, x sqrt(x), 0)": (lambda x: np.where(x > 0, x * np.sqrt(x), 0.0), 0.0, 0.0, 0.0),
    "where(x>0, x log(x), 0)": (lambda x: np.where(x > 0, x * np.log(x), 0.0), 0.0, 0.0, 0.0),
    "where(x>0, log(x), 0)": (lambda x: np.where(x > 0, np.log(x), 0.0), 0.0, 0.0, 0.0),
    "where(x>0, 1/x, 0)": (lambda x: np.where(x > 0, 1 / x, 0.0), 0.0, 0.0, 0.0),
    "where(x>5, x inf, 7x)": (lambda x: np.where(x > 5, x * inf, 7 * x), 3.0, 7.0, 0.0),
    "where(x>5, log(x-9), x²)": (lambda x: np.where(x > 5, np.log(x - 9), x * x), 3.0, 6.0, 2.0),
    "where(|x|<1, sqrt(1-x²), 0) at 1": (lambda x: np.where(abs(x) < 1, np.sqrt(1 - x * x), 0.0), 1.0, 0.0, 0.0),
    "where(|x|<1, sqrt(1-x²), 0) at 2": (lambda x: np.where(abs(x) < 1, np.sqrt(1 - x * x), 0.0), 2.0, 0.0, 0.0),
    "where(|x|<1, arcsin(x), x³) at 2": (lambda x: np.where(abs(x) < 1, np.arcsin(x), x**3), 2.0, 12.0, 12.0),
    "sqrt(where(x>0, x, 0))": (lambda x: np.sqrt(np.where(x > 0, x, 0.0)), 0.0, 0.0, 0.0),
    "log(where(x>0, x, 1))": (lambda x: np.log(np.where(x > 0, x, 1.0)), 0.0, 0.0, 0.0),
    "exp(where(x>0, 1/x, 0))": (lambda x: np.exp(np.where(x > 0, 1 / x, 0.0)), 0.0, 0.0, 0.0),
    "sqrt(maximum(x, 0))": (lambda x: np.sqrt(np.maximum(x, 0.0)), -1.0, 0.0, 0.0),
    "sqrt(clip(x, 0, 1)) below": (lambda x: np.sqrt(np.clip(x, 0.0, 1.0)), -1.0, 0.0, 0.0),
    "arccos(clip(x, -1, 1)) above": (lambda x: np.arccos(np.clip(x, -1.0, 1.0)), 2.0, 0.0, 0.0),
    "norm([x, x])": (lambda x: np.linalg.norm(np.stack([x, x])), 0.0, 0.0, 0.0),
    "std([x, x, x])": (lambda x: np.std(np.stack([x, x, x])), 2.0, 0.0, 0.0),
    "hypot(x, x) at 2": (lambda x: np.hypot(x, x), 2.0, np.sqrt(2), 0.0),
    "hypot(x, 3)": (lambda x: np.hypot(x, 3.0), 0.0, 0.0, 1 / 3),
    "sum(sqrt(pad(x)))": (lambda x: np.sum(np.sqrt(np.pad(np.reshape(x, 1), (1, 2)))), 4.0, 0.25, -1 / 32),
    "sum(sqrt([x, 0, 0]))": (
        lambda x: np.sum(np.sqrt(np.concatenate([np.reshape(x, 1), np.zeros(2)]))), 4.0, 0.25, -1 / 32,
    ),
    "sqrt(x [0, 1])[1]": (lambda x: np.sqrt(x * np.array([0.0, 1.0]))[1], 4.0, 0.25, -1 / 32),
    "sqrt(x [0, 1])[indices]": (lambda x: np.sqrt(x * np.array([0.0, 1.0]))[np.array([1, 1])].sum(), 4.0, 0.5, -1 / 16),
    "zeros.at[1].set(x), sqrt, sum": (lambda x: np.sum(np.sqrt(fnp.zeros(3).at[1].set(x))), 4.0, 0.25, -1 / 32),
    "zeros.at[[1]].set(x), sqrt, sum": (
        lambda x: np.sum(np.sqrt(fnp.zeros(3).at[np.array([1])].set(x))), 4.0, 0.25, -1 / 32,
    ),
    "zeros.at[[1, 1]].add(x), sqrt, sum": (
        lambda x: np.sum(np.sqrt(fnp.zeros(3).at[np.array([1, 1])].add(x / 2))), 4.0, 0.25, -1 / 32,
    ),
    "max(sqrt([0, x]))": (lambda x: np.max(np.sqrt(x * np.array([0.0, 1.0]))), 4.0, 0.25, -1 / 32),
    "(sqrt(x) - 1)²": (lambda x: (np.sqrt(x) - 1) ** 2, 1.0, 0.0, 0.5),
    "where(x>0, (sqrt(x) - 1)², 0)": (lambda x: np.where(x > 0, (np.sqrt(x) - 1) ** 2, 0.0), 1.0, 0.0, 0.5),
    "least squares without residual": (lambda x: 0.5 * np.sum((np.exp(x) * A - A) ** 2), 0.0, 0.0, float(A @ A)),
    "where(x>0, (log x)², 0) at 1": (lambda x: np.where(x > 0, np.log(x) ** 2, 0.0), 1.0, 0.0, 2.0),
    "logaddexp(x, 0)": (lambda x: np.logaddexp(x, 0.0), 0.0, 0.5, 0.25),
    "logsumexp([x, -inf])": (lambda x: fnp.logsumexp(np.stack([x, x * 0 - inf])), 1.0, 1.0, 0.0),
    "sqrt(x)": (np.sqrt, 0.0, inf, -inf),
    "sqrt(x x), by accident": (lambda x: np.sqrt(x * x), 0.0, nan, nan),
    "sqrt(where(x>0, x, 0) - x), by accident": (lambda x: np.sqrt(np.where(x > 0, x, 0.0) - x), 1.0, nan, nan),
    "sqrt(where(x>0, x, 0) + (-x)), by accident": (lambda x: np.sqrt(np.where(x > 0, x, 0.0) + -x), 1.0, nan, nan),
    "x sqrt(x), by accident": (lambda x: x * x * (1 / x), 0.0, nan, nan),
}  # fmt: skip


def test_the_table_is_large() -> None:
    assert len(TABLE) >= 20


def forward(f: Any) -> Any:
    return lambda x: fg.jvp(f, (x,), (1.0,))[1]


def same(found: Any, expected: float) -> None:
    np.testing.assert_allclose(float(found), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("mode", [forward, fg.grad], ids=["jvp", "vjp"])
@pytest.mark.parametrize("name", TABLE)
def test_first_derivative(name: str, mode: Any, wrap: Any) -> None:
    f, x, first, _ = TABLE[name]
    same(mode(wrap(f))(x), first)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("outer", [forward, fg.grad], ids=["fwd", "rev"])
@pytest.mark.parametrize("inner", [forward, fg.grad], ids=["fwd", "rev"])
@pytest.mark.parametrize("name", TABLE)
def test_second_derivative(name: str, inner: Any, outer: Any, wrap: Any) -> None:
    f, x, _, second = TABLE[name]
    same(outer(inner(wrap(f)))(x), second)
    same(wrap(outer(inner(f)))(x), second)


@pytest.mark.parametrize("name", TABLE)
def test_derivatives_of_rows(name: str) -> None:
    f, x, first, second = TABLE[name]
    rows = np.array([x, x])
    np.testing.assert_allclose(fg.vmap(fg.grad(f))(rows), [first] * 2, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(fg.vmap(fg.hessian(f))(rows), [second] * 2, rtol=1e-13, atol=1e-15)


def test_a_basis_vector_is_structural() -> None:
    f = lambda x: np.sqrt(x[0]) + x[1]
    x = np.array([0.0, 1.0])
    for jacobian in (fg.jacfwd, fg.jacrev, fg.grad):
        assert jacobian(f)(x).tolist() == [inf, 1.0]
        assert fg.jit(jacobian(f))(x).tolist() == [inf, 1.0]
    g = lambda x: np.sqrt(x)
    for jacobian in (fg.jacfwd, fg.jacrev):
        assert jacobian(g)(x).tolist() == [[inf, 0.0], [0.0, 0.5]]


def test_row_norms_with_a_zero_row() -> None:
    points = np.array([[3.0, 4.0], [0.0, 0.0]])
    rows = lambda p: np.sum(np.sqrt(np.sum(p * p, axis=1)))
    guarded = lambda p: np.sum((lambda s: np.where(s > 0, np.sqrt(s), 0.0))(np.sum(p * p, axis=1)))
    np.testing.assert_allclose(fg.grad(guarded)(points), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-15)
    assert np.isnan(fg.grad(rows)(points)[1]).all()
    norms = lambda p: np.linalg.norm(p, axis=1).sum()
    np.testing.assert_allclose(fg.grad(norms)(points), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-15)


def test_no_guard_without_a_structural_zero() -> None:
    program = fg.make_program(fg.grad(lambda x: np.sum(np.tanh(x) * x)))(np.ones(3))
    names = {e.primitive.name for e in program.equations}
    assert not names & {"mask_mul", "mask_div"}


def test_guards_inside_a_call() -> None:
    inner = fg.jit(lambda x: np.sqrt(x) * 3.0)
    f = lambda x: np.where(x > 0, inner(x), 0.0)
    assert float(fg.grad(f)(0.0)) == 0.0
    assert float(fg.grad(fg.grad(f))(0.0)) == 0.0
    assert float(fg.jvp(lambda x: inner(np.where(x > 0, x, 0.0)), (0.0,), (1.0,))[1]) == 0.0


INSIDE = {
    "jit": lambda f, x: fg.jit(f)(x),
    "scan": lambda f, x: fg.lax.scan(lambda c, s: (f(c), s), x, np.ones(1))[0],
    "loop of loop": lambda f, x: fg.lax.fori_loop(
        0, 1, lambda i, x: fg.lax.fori_loop(0, 1, lambda i, x: f(x), x), x
    ),
    "cond": lambda f, x: fg.lax.cond(np.sum(x) > 0, f, np.cos, x),
    "checkpoint": lambda f, x: fg.checkpoint(f)(x),
}  # fmt: skip


@pytest.mark.parametrize("where", INSIDE)
@pytest.mark.parametrize("outer", [lambda f: f, fg.jit])
def test_values_beside_tangents_are_not_linear(where: str, outer: Any) -> None:
    """A divisor made by an operation with a body: it depends on x, but is no tangent."""
    f = lambda x: 2.0 / np.where(x > 0, INSIDE[where](np.sin, x), 0.0)
    x, v = np.array([0.5, 1.0]), np.array([1.0, -3.0])
    y, y_dot = outer(lambda x, v: fg.jvp(f, (x,), (v,)))(x, v)
    np.testing.assert_allclose(y, 2 / np.sin(x), rtol=1e-14)
    np.testing.assert_allclose(y_dot, -2 * np.cos(x) / np.sin(x) ** 2 * v, rtol=1e-14)


def test_a_quotient_in_a_loop_in_a_loop() -> None:
    shared = lambda x: fg.vjp(lambda x: fg.lax.cummax(x, 0), x)[1](np.array([2.0, 3.0, 5.0]))[0]
    inner = lambda x: fg.lax.fori_loop(0, 1, lambda i, x: shared(x) * x, x)
    f = lambda x: fg.lax.fori_loop(0, 1, lambda i, x: inner(x), x)
    x, v = np.array([0.9, -0.8, 1.4]), np.array([1.0, 2.0, 3.0])
    y, y_dot = fg.jvp(f, (x,), (v,))
    np.testing.assert_allclose(y, np.array([5.0, 0.0, 5.0]) * x, rtol=1e-14)
    np.testing.assert_allclose(y_dot, np.array([5.0, 0.0, 5.0]) * v, rtol=1e-14)
