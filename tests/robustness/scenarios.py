"""Small pieces of work with a known result: each goes through many layers, and begins with nothing remembered.

`SCENARIOS` maps a name to a function that makes the functions of the scenario anew; what it returns does the work, and
raises AssertionError if a result is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.core import canonical

X = np.array([0.5, 1.0, 2.0, -3.0])
Work = Callable[[], None]


def _equal(found: Any, expected: Any) -> None:
    """Without NumPy's own checks, which set the error state for a while."""
    assert type(found) is fg.Array, type(found)
    expected = np.asarray(expected)
    assert found.shape == expected.shape and bool((abs(found - expected) <= 1e-12).all()), (found, expected)


def derivatives() -> Work:
    """grad, vmap, hessian and jvp, with Python control flow."""

    def f(x: Any) -> Any:
        y = x * x if x[0] > 0 else -x
        return np.sum(np.sin(y))

    def work() -> None:
        _equal(fg.grad(f)(X), 2 * X * np.cos(X * X))
        _equal(fg.vmap(fg.grad(lambda v: v**3))(X), 3 * X**2)
        _equal(fg.hessian(lambda x: np.sum(x**3))(X), np.diag(6 * X))
        _equal(fg.jvp(f, (X,), (X,))[1], np.sum(2 * X * X * np.cos(X * X)))

    return work


def compiled() -> Work:
    """jit of a derivative, called three times; inside another; forgotten."""
    g = fg.jit(fg.grad(lambda x: np.sum(np.exp(x) * x)))
    outer = fg.jit(lambda x: g(x) + 1.0)
    expected = np.exp(X) * (1 + X)

    def work() -> None:
        for _ in range(3):
            _equal(g(X), expected)
            _equal(outer(X), expected + 1.0)
        g.clear_cache()
        _equal(g(X), expected)

    return work


def loops() -> Work:
    """A loop of unknown length and a scan, both modes, compiled and not, with a branch."""

    def newton(a: Any) -> Any:
        return fg.lax.while_loop(lambda x: np.abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)

    def total(x: Any) -> Any:
        step = lambda c, v: (fg.lax.cond(v > 0, lambda v: c + v * v, lambda v: c - v, v), c)
        return fg.lax.scan(step, 0.0, x)[0]

    g = fg.jit(fg.grad(total))

    def work() -> None:
        _equal(fg.jit(newton)(2.0), math.sqrt(2))
        for _ in range(2):
            _equal(g(X), np.where(X > 0, 2 * X, -1.0))
        _equal(fg.grad(newton)(9.0), 1 / 6)

    return work


def callbacks() -> Work:
    """Python called by machine code, which calls it again."""
    inner = fg.jit(lambda v: v * 2.0)

    def host(v: Any) -> Any:
        return inner(v) - v

    g = fg.jit(lambda x: fg.lax.fori_loop(0, 3, lambda i, y: fg.pure_callback(host, y, y) + 1.0, x))

    def work() -> None:
        for _ in range(2):
            _equal(g(X), X + 3.0)
        _equal(fg.numpy.sin(fg.numpy.cumsum(X)), np.sin(np.cumsum(X)))

    return work


def rules() -> Work:
    """Rules of the user's, checkpoint, a linear solve, and switches for debugging."""

    @fg.custom_vjp
    def f(x: Any) -> Any:
        return np.sum(x**2)

    f.defvjp(lambda x: (np.sum(x**2), x), lambda x, ct: (2 * x * ct,))
    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    solved = np.linalg.solve(a.T, np.ones(2))

    def work() -> None:
        _equal(fg.grad(fg.checkpoint(lambda x: f(np.sin(x))))(X), np.sin(2 * X))
        _equal(fg.grad(lambda b: np.sum(np.linalg.solve(a, b)))(np.ones(2)), solved)
        with fg.disable_jit():
            _equal(fg.jit(lambda x: x + 1.0)(X), X + 1.0)
        with fg.debug_nans():
            _equal(fg.grad(lambda x: np.sum(x * x))(X), 2 * X)

    return work


SCENARIOS: dict[str, Callable[[], Work]] = {
    "derivatives": derivatives,
    "compiled": compiled,
    "loops": loops,
    "callbacks": callbacks,
    "rules": rules,
}


def made(name: str) -> Work:
    """The work of a scenario; nothing of it was traced before."""
    with canonical._lock:
        canonical._programs.clear()
        canonical._count[0] = 0
    return SCENARIOS[name]()
