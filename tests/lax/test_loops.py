"""Loops and branches against Python's own: values, both modes, three orders, rows, and machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

ROWS = np.array([1.3, 1.7, 0.9])


# Each case is a function of one number with our loop, and the same in mpmath with Python's loop.


def _while(a: Any) -> Any:
    return lax.while_loop(lambda x: x < 10.0, lambda x: x * 1.5 + np.sin(a * x), a * a)


def _while_exact(a: Any) -> Any:
    x = a * a
    while x < 10:
        x = x * mpmath.mpf(1.5) + mpmath.sin(a * x)
    return x


def _scan(a: Any) -> Any:
    carry, ys = lax.scan(lambda c, x: (np.sin(c * a) + x, c * x), a, np.arange(1.0, 5.0))
    return carry * np.sum(ys**2)


def _scan_exact(a: Any) -> Any:
    c, total = a, mpmath.mpf(0)
    for x in range(1, 5):
        total += (c * x) ** 2
        c = mpmath.sin(c * a) + x
    return c * total


def _reverse_scan(a: Any) -> Any:
    carry, ys = lax.scan(lambda c, x: (c * x + a, c), a, np.array([0.5, -1.0, 2.0]), reverse=True)
    return carry + ys[0] * ys[2]


def _reverse_scan_exact(a: Any) -> Any:
    c, ys = a, [0, 0, 0]
    for k, x in ((2, 2), (1, -1), (0, mpmath.mpf(0.5))):
        ys[k] = c
        c = c * x + a
    return c + ys[0] * ys[2]


def _fori(a: Any) -> Any:
    return lax.fori_loop(2, 6, lambda i, x: x * np.cos(a) + i * a, a**2)


def _fori_exact(a: Any) -> Any:
    x = a**2
    for i in range(2, 6):
        x = x * mpmath.cos(a) + i * a
    return x


def _trips_vary(a: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0 + np.sin(a), y + 0.1) * 0.3

    return lax.fori_loop(0, 3, step, a)


def _trips_vary_exact(a: Any) -> Any:
    y = a
    for _ in range(3):
        x = y + mpmath.mpf(0.1)
        while x < 9:
            x = x * 2 + mpmath.sin(a)
        y = x * mpmath.mpf(0.3)
    return y


def _cond(a: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.cond(y > 2.0, lambda y: y / a, lambda y: y * y + a, y)

    return lax.fori_loop(0, 5, step, a)


def _cond_exact(a: Any) -> Any:
    y = a
    for _ in range(5):
        y = y / a if y > 2 else y * y + a
    return y


def _switch(a: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.switch(i, [np.sin, lambda y: y * a, lambda y: y + a * a], y)

    return lax.fori_loop(0, 4, step, a)


def _switch_exact(a: Any) -> Any:
    y = mpmath.sin(a) * a + a * a
    return y + a * a


def _in_place(a: Any) -> Any:
    x = fnp.zeros(40).at[0].set(a)
    x = lax.fori_loop(1, 40, lambda i, x: x.at[i].set(np.sin(x[i - 1]) * a), x)
    return np.sum(x)


def _in_place_exact(a: Any) -> Any:
    x = total = a
    for _ in range(1, 40):
        x = mpmath.sin(x) * a
        total += x
    return total


def _long_body(a: Any) -> Any:
    v = np.linspace(0.0, 1.0, 50)
    out = lax.fori_loop(0, 3, lambda i, y: np.tanh(y * a + v) + np.mean(y), v * a)
    return np.sum(out)


def _long_body_exact(a: Any) -> Any:
    v = [mpmath.mpf(float(x)) for x in np.linspace(0.0, 1.0, 50)]
    y = [x * a for x in v]
    for _ in range(3):
        mean = sum(y) / 50
        y = [mpmath.tanh(p * a + x) + mean for p, x in zip(y, v, strict=True)]
    return sum(y)


def _while_with_long_carry(a: Any) -> Any:
    out = lax.while_loop(lambda y: np.sum(y) < 60.0, lambda y: y * 1.2 + np.sin(y * a), np.ones(50) * a)
    return np.sum(out)


def _while_with_long_carry_exact(a: Any) -> Any:
    y = a
    while 50 * y < 60:
        y = y * mpmath.mpf(1.2) + mpmath.sin(y * a)
    return 50 * y


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "while": (_while, _while_exact),
    "scan": (_scan, _scan_exact),
    "reverse scan": (_reverse_scan, _reverse_scan_exact),
    "fori": (_fori, _fori_exact),
    "trips vary": (_trips_vary, _trips_vary_exact),
    "cond": (_cond, _cond_exact),
    "switch": (_switch, _switch_exact),
    "in place": (_in_place, _in_place_exact),
    "long body": (_long_body, _long_body_exact),
    "while with a long carry": (_while_with_long_carry, _while_with_long_carry_exact),
}


def exact(f: Callable[[Any], Any], x: float, order: int) -> float:
    with mpmath.workdps(40):
        return float(mpmath.diff(f, mpmath.mpf(x), order) if order else f(mpmath.mpf(x)))


DERIVATIVES: list[tuple[int, str, Callable[[Any], Callable[[Any], Any]]]] = [
    (0, "value", lambda f: f),
    (1, "reverse", fg.grad),
    (1, "forward", lambda f: lambda x: fg.jvp(f, (x,), (1.0,))[1]),
    (2, "reverse over reverse", lambda f: fg.grad(fg.grad(f))),
    (2, "forward over reverse", lambda f: lambda x: fg.jvp(fg.grad(f), (x,), (1.0,))[1]),
    (2, "reverse over forward", lambda f: fg.grad(lambda x: fg.jvp(f, (x,), (1.0,))[1])),
    (3, "reverse, three times", lambda f: fg.grad(fg.grad(fg.grad(f)))),
    (3, "forward over reverse over reverse", lambda f: lambda x: fg.jvp(fg.grad(fg.grad(f)), (x,), (1.0,))[1]),
]
WRAPPERS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "eager": lambda f, xs: [f(x) for x in xs],
    "jit": lambda f, xs: [fg.jit(f)(x) for x in xs],
    "vmap": lambda f, xs: fg.vmap(f)(xs),
    "jit vmap": lambda f, xs: fg.jit(fg.vmap(f))(xs),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(("order", "mode", "derive"), DERIVATIVES, ids=[m for _, m, _ in DERIVATIVES])
@pytest.mark.parametrize("name", CASES)
def test_against_closed_forms(name: str, order: int, mode: str, derive: Any, wrapper: str) -> None:
    ours, theirs = CASES[name]
    want = [exact(theirs, x, order) for x in ROWS.tolist()]
    got = np.asarray(WRAPPERS[wrapper](derive(ours), ROWS), float)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_branches_that_keep_stacks_of_integers_or_nothing() -> None:
    def powers(x: Any) -> Any:
        step = lambda s: (s[0] + 1, lax.cond(s[0] % 2 == 0, lambda c: np.sin(c) * x, lambda c: c * c, s[1]))
        return lax.while_loop(lambda s: s[0] < 2, step, (0, x))[1]  # (x sin x)²

    f = lambda x: lax.cond(x > 0.1, powers, lambda x: 2 * x, x)
    s, c = np.sin(0.7), np.cos(0.7)
    for g in (fg.grad(f), fg.jit(fg.grad(f))):
        np.testing.assert_allclose(g(0.7), 2 * 0.7 * s * (s + 0.7 * c), rtol=1e-14)
    none = lambda x: lax.cond(x > 0.1, lambda x: lax.fori_loop(0, 0, lambda i, c: np.sin(c) * x, x), lambda x: 2 * x, x)
    assert fg.grad(none)(0.7) == fg.jit(fg.grad(none))(0.7) == 1.0


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_rows_together(name: str) -> None:
    ours, theirs = CASES[name]
    want = [exact(theirs, x, 1) for x in ROWS.tolist()]
    total = lambda xs: np.sum(fg.vmap(ours)(xs))
    np.testing.assert_allclose(fg.grad(total)(ROWS), want, rtol=1e-9)
    np.testing.assert_allclose(fg.jit(fg.grad(total))(ROWS), want, rtol=1e-9)
    want = np.diag([exact(theirs, x, 2) for x in ROWS.tolist()])
    np.testing.assert_allclose(fg.hessian(total)(ROWS), want, rtol=1e-8, atol=1e-9)
