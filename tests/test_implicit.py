"""Implicit differentiation against closed forms, in both modes, to third order, under jit and vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

import funcgrad as fg
from funcgrad import errors, implicit
from funcgrad.control.linear_solve import transposed
from funcgrad.core.evaluate import execute

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


# -- linear systems


def conjugate_gradients(matvec: Any, b: Any) -> Any:
    x, r, p = 0.0 * b, b, b
    for _ in range(3):
        q = matvec(p)
        step = (r @ r) / (p @ q)
        x, last, r = x + step * p, r @ r, r - step * q
        p = r + (r @ r) / last * p
    return x


def by_matrix(matvec: Any, b: Any) -> Any:
    return np.linalg.solve(fg.jacfwd(matvec)(0.0 * b), b)


RANDOM = np.random.default_rng(3)
M, B, V = RANDOM.normal(size=(3, 3)) + 3 * np.eye(3), RANDOM.normal(size=3), RANDOM.normal(size=(3, 3))


def general(a: Any, b: Any) -> Any:
    return fg.custom_linear_solve(lambda x: a @ x, b, by_matrix, by_matrix)


def spd(a: Any, b: Any) -> Any:
    return fg.custom_linear_solve(lambda x: a @ (a.T @ x) + x, b, conjugate_gradients, symmetric=True)


def spd_exact(a: Any, b: Any) -> Any:
    return np.linalg.solve(a @ a.T + np.eye(3), b)


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("solve", "exact"), [(general, np.linalg.solve), (spd, spd_exact)], ids=["general", "spd"])
def test_linear_systems(solve: Any, exact: Any, jit: Any) -> None:
    near = {"rtol": 1e-9, "atol": 1e-11}
    np.testing.assert_allclose(solve(M, B), exact(M, B), **near)
    for argnum in (0, 1):
        for transform in (fg.jacfwd, fg.jacrev, lambda f, i: fg.jacfwd(fg.jacrev(f, i), 0)):
            found = jit(transform(solve, argnum))(M, B)
            np.testing.assert_allclose(found, transform(exact, argnum)(M, B), **near)
    scalar = lambda f: lambda t: np.sum(f(M + t * V, B) ** 3)
    for order in (fg.grad, lambda f: fg.grad(fg.grad(f)), lambda f: fg.grad(fg.grad(fg.grad(f)))):
        np.testing.assert_allclose(jit(order(scalar(solve)))(0.1), order(scalar(exact))(0.1), rtol=1e-8)
    stack, rights = np.stack([M, M + V / 4]), np.stack([B, 2 * B + 1])
    for axes in ((0, 0), (None, 0), (0, None)):
        args = (stack if axes[0] == 0 else M, rights if axes[1] == 0 else B)
        rows = lambda f, axes=axes: lambda *p: fg.vmap(f, axes)(*p)
        np.testing.assert_allclose(jit(rows(solve))(*args), rows(exact)(*args), **near)
        total = lambda f, rows=rows: fg.grad(lambda *p: np.sum(rows(f)(*p) ** 2), (0, 1))
        for found, expected in zip(jit(total(solve))(*args), total(exact)(*args), strict=True):
            np.testing.assert_allclose(found, expected, **near)


def test_the_solver_is_not_differentiated() -> None:
    """A solver that works with what has no derivative: rounded inverses, refined by a step."""
    inverse = np.linalg.inv(M)
    solve = lambda matvec, b: inverse @ fg.stop_gradient(b)
    f = lambda a, b: fg.custom_linear_solve(lambda x: a @ x, b, solve, lambda v, ct: inverse.T @ fg.stop_gradient(ct))
    np.testing.assert_allclose(fg.jacrev(f, 1)(M, B), inverse, rtol=1e-12)
    np.testing.assert_allclose(fg.jacfwd(f, 0)(M, B), fg.jacfwd(np.linalg.solve, 0)(M, B), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(fg.jacrev(f, 0)(M, B), fg.jacfwd(np.linalg.solve, 0)(M, B), rtol=1e-10, atol=1e-12)


def test_systems_of_trees() -> None:
    matvec = lambda t: {"u": 2.0 * t["u"] + t["v"].sum(), "v": 3.0 * t["v"] - t["u"]}

    def solve(matvec: Any, b: Any) -> Any:
        flat, unravel = fg.tree.ravel_pytree(b)
        return unravel(by_matrix(lambda x: fg.tree.ravel_pytree(matvec(unravel(x)))[0], flat))

    b = {"u": 1.0, "v": np.array([2.0, -1.0])}
    f = lambda b: fg.custom_linear_solve(matvec, b, solve, solve)
    for x in (f(b), fg.jit(f)(b)):
        back = matvec(x)
        np.testing.assert_allclose((back["u"], *back["v"]), (1.0, 2.0, -1.0), rtol=1e-13)
    gradient = fg.grad(lambda b: f(b)["u"])(b)  # the first row of the inverse of [[2, 1, 1], [-1, 3, 0], [-1, 0, 3]]
    first = np.linalg.inv(np.array([[2.0, 1, 1], [-1, 3, 0], [-1, 0, 3]]))[0]
    np.testing.assert_allclose((gradient["u"], *gradient["v"]), first, rtol=1e-13)


def test_errors_of_linear_systems() -> None:
    forward_only = lambda a: fg.custom_linear_solve(lambda x: a @ x, B, by_matrix)[0]
    assert np.isfinite(fg.jacfwd(forward_only)(M)).all()
    with pytest.raises(fg.errors.RuleError, match="needs transpose_solve"):
        fg.grad(forward_only)(M)
    with pytest.raises(fg.errors.LinearityError):
        fg.grad(lambda b: fg.custom_linear_solve(lambda x: x * x, b, by_matrix, by_matrix).sum())(B)
    with pytest.raises(fg.errors.CustomRuleError, match="the result of matvec must have the shape of b"):
        fg.grad(lambda b: fg.custom_linear_solve(lambda x: x[:2], b, by_matrix).sum())(B)
    with pytest.raises(fg.errors.CustomRuleError, match="the result of solve must have the tree of b"):
        fg.grad(lambda b: fg.custom_linear_solve(lambda x: x, b, lambda m, b: (b,)).sum())(B)
    with pytest.raises(fg.errors.UsageError):
        fg.custom_linear_solve(M, B, by_matrix)


# -- solvers that need values


def _brent(a: Any) -> Any:
    return scipy.optimize.brentq(lambda x: x**3 - a, 0.0, 10.0, xtol=1e-15)


def _hybrid(a: Any) -> Any:
    return scipy.optimize.root(lambda x: x**3 - a, np.ones(2), tol=1e-14).x


def test_a_solver_of_scipy_under_eager_derivatives() -> None:
    """The cube root and its derivatives at 8: 2, 1/12, -1/144, 5/3456."""
    f = fg.implicit.root(lambda x, a: x**3 - a, _brent)
    for want in (2.0, 1 / 12, -1 / 144, 5 / 3456):
        np.testing.assert_allclose(f(8.0), want, rtol=1e-11)
        f = fg.grad(f)
    g = fg.implicit.root(lambda x, a: x**3 - a, _hybrid)
    a = np.array([8.0, 27.0])
    np.testing.assert_allclose(fg.jacobian(g)(a), np.diag([1 / 12, 1 / 27]), atol=1e-10)
    second = fg.jacfwd(fg.jacrev(g))(a)
    np.testing.assert_allclose(second[[0, 1], [0, 1], [0, 1]], -2 / 9 * a ** (-5 / 3), rtol=1e-8)


def test_a_minimiser_of_scipy() -> None:
    def loss(x: Any, a: Any) -> Any:
        return np.sum((x - a) ** 2) + np.sum(x**4)

    def solver(a: Any) -> Any:
        return scipy.optimize.minimize(loss, a, args=(a,), tol=1e-12).x

    a = np.array([0.3, -1.2])
    x = fg.implicit.argmin(loss, solver)(a)
    np.testing.assert_allclose(
        fg.jacobian(fg.implicit.argmin(loss, solver))(a), np.diag(2 / (2 + 12 * x**2)), rtol=1e-8
    )


@pytest.mark.parametrize("way", [fg.jit, lambda f: fg.jit(fg.grad(f)), lambda f: lambda a: fg.vmap(f)(a * np.ones(2))])
def test_where_values_are_not_known_a_solver_of_scipy_says_what_to_do(way: Any) -> None:
    f = fg.implicit.root(lambda x, a: x**3 - a, _brent)
    with pytest.raises(fg.errors.TracerValueError, match=r"hint: .*pure_callback\(solver"):
        way(f)(8.0)
    shape = fg.ShapeDtypeStruct((), float)
    called = fg.implicit.root(lambda x, a: x**3 - a, lambda a: fg.pure_callback(_brent, shape, a))
    found = way(called)(8.0)
    np.testing.assert_allclose(np.unique(found), 1 / 12 if found.ndim == 0 and found < 1 else 2.0, rtol=1e-11)


def test_an_exception_of_a_solver_keeps_its_type_and_gets_a_note() -> None:
    def solver(a: Any) -> Any:
        raise OSError("no license")

    f = fg.implicit.root(lambda x, a: x - a, solver)
    with pytest.raises(OSError, match="no license") as info:
        fg.jit(f)(1.0)
    assert "pure_callback" in info.value.__notes__[0]
    with pytest.raises(OSError, match="no license") as info:
        fg.grad(f)(1.0)
    assert not hasattr(info.value, "__notes__")


def test_what_a_users_solve_returns_is_checked_under_its_own_name() -> None:
    f = fg.implicit.root(lambda x, a: x - a, lambda a: a, lambda g, y: np.sum(y))
    with pytest.raises(fg.errors.CustomRuleError, match=r"the result of tangent_solve .* of x: expected \(2,\), got"):
        fg.jacobian(f)(np.ones(2))
    f = fg.implicit.root(lambda x, a: x - a, lambda a: a, lambda g, y: (y,))
    with pytest.raises(fg.errors.CustomRuleError, match="the result of tangent_solve must have the tree of x"):
        fg.jacobian(f)(np.ones(2))
    square = lambda b: fg.custom_linear_solve(lambda x: x * x, b, lambda f, b: np.sqrt(b), lambda f, b: f(b))
    with pytest.raises(fg.errors.LinearityError, match="matvec is not linear: mul of what depends on x"):
        fg.jacobian(square)(np.ones(2))


def test_one_of_two_right_hand_sides_moves() -> None:
    m = np.array([[2.0, 1.0], [-1.0, 3.0]])
    matvec = lambda x: (m[0, 0] * x[0] + m[0, 1] * x[1], m[1, 0] * x[0] + m[1, 1] * x[1])
    solve = lambda m: lambda matvec, b: tuple(np.linalg.solve(m, np.stack(b)))
    f = lambda a, b: np.stack(fg.custom_linear_solve(matvec, (a, b), solve(m), solve(m.T)))
    for k in (0, 1):
        for d in (fg.jacfwd(f, k), fg.jacrev(f, k), fg.jit(fg.jacrev(f, k))):
            np.testing.assert_allclose(d(1.0, 2.0), np.linalg.inv(m)[:, k], rtol=1e-15)


def test_a_system_is_transposed_for_each_number_of_captured_values() -> None:
    program = fg.make_program(lambda a, x: 3 * x)(2.0, 5.0)
    assert tuple(execute(transposed(program, 1), [2.0, 7.0])) == (21.0,)
    assert tuple(execute(transposed(program, 0), [7.0])) == (0.0, 21.0)


def test_a_singular_derivative_is_named() -> None:
    double = fg.implicit.root(lambda x, a: (x - a) ** 2, lambda a: a)
    for wrap in (lambda f: f, fg.jit):
        with pytest.raises(
            errors.SingularMatrixError, match="root: the derivative of f in x, at the solution, is sing"
        ):
            wrap(fg.grad(double))(1.0)


def test_a_linear_solve_on_plain_arrays_is_checked_as_under_transforms() -> None:
    matvec, b = (lambda v: 2 * v), np.ones(3)
    for wrap in (lambda f: f, fg.jit):
        with pytest.raises(errors.CustomRuleError, match=r"the result of solve must have the shape of b: .*\(3,\)"):
            wrap(lambda b: fg.custom_linear_solve(matvec, b, lambda mv, b: np.ones(2)))(b)
        with pytest.raises(errors.CustomRuleError, match="the result of matvec must have the shape of b"):
            wrap(lambda b: fg.custom_linear_solve(lambda v: v[:2], b, lambda mv, b: mv(b)))(b)
        with pytest.raises(errors.CustomRuleError, match="the result of solve must have the tree of b"):
            wrap(lambda b: fg.custom_linear_solve(matvec, b, lambda mv, b: (b, b)))(b)
        np.testing.assert_array_equal(
            wrap(lambda b: fg.custom_linear_solve(matvec, b, lambda mv, b: b / mv(b / b)))(b), [0.5, 0.5, 0.5]
        )


def test_as_many_equations_as_unknowns_without_derivatives_too() -> None:
    seven = fg.implicit.root(lambda x, a: (x - a) * np.ones(7), lambda a: a)
    for wrap in (lambda f: f, fg.jit, fg.grad):
        with pytest.raises(errors.CustomRuleError, match="root: f gives 7 equations for 1 unknowns"):
            wrap(seven)(1.0)
    calls = []

    def equation(x: Any, a: Any) -> Any:
        calls.append(1)
        return x - a

    one = fg.implicit.root(equation, lambda a=2.0: a)
    assert one(3.0) == 3.0 and one(a=4.0) == 4.0 and one() == 2.0
    assert len(calls) == 1  # looked at once
