"""Rows under `vmap` are alone: none raises, hangs or becomes NaN for what only another row would compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import OutOfBoundsError

TABLE = np.array([1.0, 2.0, 4.0])
N = 9  # two vectors and a rest
GOOD = np.arange(N) % 2 == 0
X = np.linspace(0.5, 1.5, N)


def chosen(pred: Any, risky: Callable[[Any], Any], x: Any) -> Any:
    """`risky` where the row may, a line where not."""
    return lax.cond(pred, risky, lambda x: 3.0 * x, x)


def gather(i: Any) -> Callable[[Any], Any]:
    return lambda x: x * fnp.asarray(TABLE)[i]


def solve(m: Any) -> Callable[[Any], Any]:
    return lambda x: np.sum(fnp.linalg.solve(m * x, np.array([1.0, 2.0])))


def endless(step: Any) -> Callable[[Any], Any]:
    """Never ends for a step of 0."""
    loop = lambda x: lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * x, s[1] + step), (1.0, step * 0))
    return lambda x: loop(x)[0]


def root(a: Any) -> Callable[[Any], Any]:
    return lambda x: np.sqrt(a * x)


def divided(k: Any) -> Callable[[Any], Any]:
    return lambda x: x * (7 // k + 7 % k)


def counted(k: Any) -> Callable[[Any], Any]:
    """More trips than anyone can wait for, where k is large."""
    return lambda x: lax.fori_loop(0, k, lambda i, y: y * x, 1.0)


def inner_gather(i: Any) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, 2, lambda j, y: y * x * fnp.asarray(TABLE)[i + j], 1.0)


MATRICES = np.where(GOOD[:, None, None], np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones((2, 2)))
pick = lambda good, bad: np.where(GOOD, good, bad)
# name: what the row does with its own data, the data of all rows, the value and the slope where it does
CASES: dict[str, tuple[Callable[..., Any], np.ndarray, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "an index outside": (gather, pick(2, 10**12), lambda x: 4 * x, lambda x: 4 + 0 * x),
    "an index outside, in a loop": (inner_gather, pick(1, -5), lambda x: 8 * x**2, lambda x: 16 * x),
    "a singular matrix": (solve, MATRICES, lambda x: 0.8 / x, lambda x: -0.8 / x**2),
    "a while without end": (endless, pick(1, 0), lambda x: x**3, lambda x: 3 * x**2),
    "too many trips": (counted, pick(3, 10**18), lambda x: x**3, lambda x: 3 * x**2),
    "a root of a negative number": (root, pick(4.0, -1.0), lambda x: 2 * np.sqrt(x), lambda x: 1 / np.sqrt(x)),
    "division by zero": (divided, pick(2, 0), lambda x: 4 * x, lambda x: 4 + 0 * x),
    "an overflowing quotient": (
        lambda k: lambda x: x * ((k - 4) // -1 + 4),
        pick(1, np.iinfo(np.int64).min + 4), lambda x: 7 * x, lambda x: 7 + 0 * x),
}  # fmt: skip
WAYS: dict[str, Callable[[Any], Any]] = {"vmap": fg.vmap, "jit vmap": lambda f: fg.jit(fg.vmap(f))}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nest", ["cond", "switch in a loop", "while", "cond in a cond"])
@pytest.mark.parametrize("name", CASES)
def test_a_row_does_not_compute_what_it_does_not_choose(name: str, nest: str, way: str) -> None:
    risky, data, value, slope = CASES[name]
    want, want_slope = np.where(GOOD, value(X), 3 * X), np.where(GOOD, slope(X), 3.0)

    def f(x: Any, d: Any, good: Any) -> Any:
        if nest == "cond":
            return chosen(good, risky(d), x)
        if nest == "cond in a cond":
            return lax.cond(x > 0, lambda x: chosen(good, risky(d), x), lambda x: x, x)
        if nest == "switch in a loop":
            branches = [lambda y: 3.0 * x, lambda y: risky(d)(x)]
            return lax.fori_loop(0, 2, lambda i, y: lax.switch(good * 1, branches, y), 0.0)
        done = lambda s: s[1]
        out = lax.while_loop(done, lambda s: (risky(d)(x), s[1] & False), (3.0 * x, good))
        return out[0]

    together = lambda g: WAYS[way](g)(X, data, GOOD)
    np.testing.assert_allclose(together(f), want, rtol=1e-13)
    np.testing.assert_allclose(together(fg.grad(f)), want_slope, rtol=1e-13)
    forward = lambda x, d, good: fg.jvp(lambda x: f(x, d, good), (x,), (1.0 + 0 * x,))[1]
    np.testing.assert_allclose(together(forward), want_slope, rtol=1e-13)
    total = lambda x: np.sum(fg.vmap(f)(x, data, GOOD))
    np.testing.assert_allclose(fg.jit(fg.grad(total))(X), want_slope, rtol=1e-13)
    assert np.all(np.isfinite(together(fg.grad(fg.grad(f)))))


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_chooses_it_raises(way: str) -> None:
    f = lambda x, i, good: chosen(good, gather(i), x)
    for derive in (lambda f: f, fg.grad):
        with pytest.raises(OutOfBoundsError, match="index 7 is out of bounds for axis 0 of length 3"):
            WAYS[way](derive(f))(X, pick(7, 1), GOOD)


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_are_done_or_have_no_trips_read_nothing(way: str) -> None:
    ends = np.arange(N) % 4
    f = lambda x, n: lax.fori_loop(0, n, lambda i, y: y * fnp.asarray(TABLE)[i] * x, 1.0)
    product = np.array([1.0, 1.0, 2.0, 8.0])[ends]
    np.testing.assert_allclose(WAYS[way](f)(X, ends), product * X**ends, rtol=1e-13)
    np.testing.assert_allclose(WAYS[way](fg.grad(f))(X, ends), product * ends * X ** (ends - 1.0), rtol=1e-13)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit])
def test_what_is_the_same_in_every_trip_has_no_derivative_without_a_trip(wrap: Any) -> None:
    f = lambda x, n: lax.fori_loop(0, n, lambda i, y: y * np.sqrt(x), 2.0)  # 2 xⁿᐟ²
    g = f
    for order, power in ((1, 1.5), (2, 0.75), (3, -0.375)):
        g = fg.grad(g)
        for x in (-1.0, 0.0):
            assert wrap(g)(x, 0) == 0.0, (order, x)
        np.testing.assert_allclose(wrap(g)(4.0, 3), 2 * power * 4.0 ** (1.5 - order), rtol=1e-13)
