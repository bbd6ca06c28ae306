"""Implicit differentiation against closed forms, in both modes, to third order, under jit and vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import implicit

A = np.array([2.0, 3.5, 8.0])


def newton(f: Any, x: Any, steps: int = 8) -> Any:
    for _ in range(steps):
        x = x - f(x) / fg.grad(f)(x)
    return x


def bisection(a: Any) -> Any:
    low, high = 0.0 * a, 10.0 + 0.0 * a
    for _ in range(56):
        middle = (low + high) / 2
        low, high = np.where(middle**2 < a, middle, low), np.where(middle**2 < a, high, middle)
    return low


def until_it_converges(a: Any) -> Any:
    x = a
    while abs(x * x - a) > 1e-15 * abs(a):
        x = (x + a / x) / 2
        if abs((x + a / x) / 2 - x) < 1e-16 * abs(x):
            break
    return x


SQUARE_ROOTS = {
    "bisection": implicit.root(lambda x, a: x**2 - a, bisection),
    "newton": implicit.root(lambda x, a: x**2 - a, lambda a: newton(lambda x: x**2 - a, 1.0 + a)),
    "custom_root": lambda a: fg.custom_root(lambda x: x**2 - a, 3.0, newton, lambda g, y: y / g(1.0)),
    "tangent_solve": implicit.root(lambda x, a: x**2 - a, bisection, lambda g, y: y / g(1.0)),
    "argmin": implicit.argmin(lambda x, a: x**3 / 3 - a * x, bisection),
    "by NumPy alone": implicit.root(lambda x, a: x**2 - a, lambda a: np.sqrt(fg.stop_gradient(a))),
}
DERIVATIVES = [lambda a: a**0.5, lambda a: a**-0.5 / 2, lambda a: -(a**-1.5) / 4, lambda a: 3 * a**-2.5 / 8]


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", SQUARE_ROOTS)
def test_square_roots(name: str, jit: Any) -> None:
    f = SQUARE_ROOTS[name]
    np.testing.assert_allclose(jit(f)(2.0), np.sqrt(2.0), rtol=1e-14)
    g = fg.grad(f)
    for order, derivative in ((1, g), (2, fg.grad(g)), (3, fg.grad(fg.grad(g)))):
        if order < 3 or name in ("bisection", "tangent_solve", "by NumPy alone"):
            np.testing.assert_allclose(jit(derivative)(2.0), DERIVATIVES[order](2.0), rtol=1e-12)
    np.testing.assert_allclose(jit(lambda a: fg.jvp(f, (a,), (3.0,))[1])(2.0), 3 * DERIVATIVES[1](2.0), rtol=1e-12)
    np.testing.assert_allclose(jit(fg.hessian(f))(2.0), DERIVATIVES[2](2.0), rtol=1e-12)
    np.testing.assert_allclose(jit(fg.vmap(fg.grad(f)))(A), DERIVATIVES[1](A), rtol=1e-12)
    np.testing.assert_allclose(jit(fg.grad(lambda a: fg.vmap(f)(a).sum()))(A), DERIVATIVES[1](A), rtol=1e-12)


def test_a_solver_that_looks_at_values() -> None:
    f = implicit.root(lambda x, a: x**2 - a, until_it_converges)
    assert f(2.0) == until_it_converges(2.0)
    np.testing.assert_allclose(fg.grad(f)(2.0), DERIVATIVES[1](2.0), rtol=1e-14)
    np.testing.assert_allclose(fg.grad(fg.grad(f))(2.0), DERIVATIVES[2](2.0), rtol=1e-13)
    with pytest.raises(fg.errors.TracerBoolConversionError):
        fg.jit(f)(2.0)


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_what_the_equation_captures_is_differentiated(jit: Any) -> None:
    def f(b: Any, a: Any) -> Any:
        scale = np.exp(b)
        return implicit.root(lambda x, a: x**2 * scale - a, lambda a: np.sqrt(a / scale))(a)

    exact = lambda b, a: np.sqrt(a / np.exp(b))
    for transform in (fg.grad, lambda f: fg.grad(fg.grad(f)), fg.hessian):
        np.testing.assert_allclose(jit(transform(f))(0.3, 2.0), transform(exact)(0.3, 2.0), rtol=1e-12)
    mixed = lambda f: fg.grad(lambda b: fg.grad(f, 1)(b, 2.0))
    np.testing.assert_allclose(jit(mixed(f))(0.3), mixed(exact)(0.3), rtol=1e-12)
    np.testing.assert_allclose(
        jit(fg.vmap(fg.grad(f), (0, None)))(A / 8, 2.0), fg.vmap(fg.grad(exact), (0, None))(A / 8, 2.0), rtol=1e-12
    )


def ridge_loss(w: Any, x: Any, y: Any, c: Any) -> Any:
    return np.sum((x @ w["a"] + w["b"] - y) ** 2) + c * np.sum(w["a"] ** 2)


def ridge(x: Any, y: Any, c: Any) -> Any:
    ones = np.ones((x.shape[0], 1))
    z = np.concatenate([x, ones], axis=1)
    w = np.linalg.solve(z.T @ z + c * np.diag(np.array([1.0, 1.0, 0.0])), z.T @ y)
    return {"a": w[:2], "b": w[2]}


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_ridge_regression_as_an_argmin_over_a_tree(jit: Any) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(6, 2)), random.normal(size=6)
    fitted = implicit.argmin(ridge_loss, ridge)
    target = lambda solve: lambda x, y, c: np.sum(solve(x, y, c)["a"] ** 2) + solve(x, y, c)["b"]
    for argnum in range(3):
        found = jit(fg.grad(target(fitted), argnum))(x, y, 0.7)
        np.testing.assert_allclose(found, fg.grad(target(ridge), argnum)(x, y, 0.7), rtol=1e-10, atol=1e-12)
    second = jit(fg.grad(fg.grad(lambda c: target(fitted)(x, y, c))))(0.7)
    np.testing.assert_allclose(second, fg.grad(fg.grad(lambda c: target(ridge)(x, y, c)))(0.7), rtol=1e-10)
    hessian = jit(fg.hessian(lambda y: target(fitted)(x, y, 0.7)))(y)
    np.testing.assert_allclose(hessian, fg.hessian(lambda y: target(ridge)(x, y, 0.7))(y), rtol=1e-9, atol=1e-11)


def test_a_system_of_equations() -> None:
    f = lambda x, a, n: np.stack([x[0] ** 2 + x[1] - a[0], x[1] * n - x[0] * a[1]])

    def solver(a: Any, n: Any) -> Any:
        x0 = (-a[1] / n + np.sqrt((a[1] / n) ** 2 + 4 * a[0])) / 2
        return np.stack([x0, x0 * a[1] / n])

    a = np.array([3.0, 1.5])
    g = implicit.root(f, solver)
    np.testing.assert_allclose(fg.jacrev(g)(a, 2), fg.jacrev(solver)(a, 2), rtol=1e-12)
    np.testing.assert_allclose(fg.jacfwd(g)(a, 2), fg.jacfwd(solver)(a, 2), rtol=1e-12)
    np.testing.assert_allclose(fg.jacfwd(fg.jacrev(g))(a, 2), fg.jacfwd(fg.jacrev(solver))(a, 2), rtol=1e-11)


def test_errors() -> None:
    with pytest.raises(fg.errors.CustomRuleError, match="gives 3 equations for 1 unknowns"):
        fg.grad(implicit.root(lambda x, a: x + a + np.ones(3), lambda a: -a))(1.0)
    with pytest.raises(fg.errors.SingularMatrixError):
        fg.grad(implicit.root(lambda x, a: 0.0 * x + a, lambda a: a))(1.0)
    with pytest.raises(fg.errors.UsageError):
        implicit.root(3, bisection)
    with pytest.raises(fg.errors.UsageError):
        implicit.argmin(lambda x: x, 3)
