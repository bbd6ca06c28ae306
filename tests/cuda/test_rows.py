"""Loops of independent rows: a thread for each, one launch for all trips, and the values of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1
from funcgrad.lowering.cuda.plan import Repeat
from tests.cuda.against_cpu import compared, compiled

rng = np.random.default_rng(3)
X = rng.normal(size=37)
X3 = rng.normal(size=(40, 3))
W = rng.normal(size=(3, 3))
T = rng.normal(size=(5, 40, 3))
times = lambda n, f: lambda x: lax.fori_loop(0, n, f, x)


def orbit(state: Any, steps: int = 20) -> Any:
    """Lorenz's system by the midpoint rule: the last state, and all of them."""
    slope = lambda s: np.stack([10 * (s[1] - s[0]), s[0] * (28 - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]])

    def trip(s: Any, _: Any) -> Any:
        s = s + 0.01 * slope(s + 0.005 * slope(s))
        return s, s

    return lax.scan(trip, state, None, length=steps)


def cell(h: Any, x: Any) -> Any:
    return np.tanh(h * 0.5 + x), (np.sum(h), x * 2.0)


def counted(shape: tuple[int, ...], axis: int) -> Any:
    return bind1(registry["iota"], shape=shape, dtype=np.dtype(float), axis=axis)


recurrent = lambda h, xs: lax.scan(cell, h, xs)
energy = lambda s: np.sum(orbit(s, 6)[0] ** 2)

ONE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "numbers": (fg.vmap(times(30, lambda i, x: x + 0.01 * np.sin(x) * i)), (X,), 1),
    "nobody batched it": (times(30, lambda i, x: x + 0.01 * np.sin(x)), (X,), 1),
    "a system": (fg.vmap(orbit), (X3,), 1),
    "its gradient": (fg.vmap(fg.grad(energy)), (X3 / 10,), 3),
    "a counter that rows share": (
        fg.vmap(lambda x: lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, s[1] * 0.9 + np.cos(s[1])), (0, x))),
        (X,), 2,
    ),
    "rows of what it reads": (fg.vmap(recurrent, in_axes=(0, 1)), (X3, T), 2),
    "rows elsewhere": (fg.vmap(recurrent, in_axes=(0, 1), out_axes=1), (X3, T), 5),
    "what the trips hand out": (fg.vmap(lambda x: orbit(x)[1]), (X3,), 1),
    "some of it": (fg.vmap(lambda h, xs: recurrent(h, xs)[1][0], in_axes=(0, 1)), (X3, T), 2),
    "the gradient of that": (fg.vmap(fg.grad(lambda s: np.sum(orbit(s)[1] ** 2))), (X3 / 10,), 4),
    "what all rows read": (fg.vmap(recurrent, in_axes=(0, None)), (X3, T[:, 0]), 2),
    "backwards": (fg.vmap(lambda h, xs: lax.scan(cell, h, xs, reverse=True), in_axes=(0, 1)), (X3, T), 2),
    "a product with a matrix": (
        fg.vmap(lambda x, w: lax.fori_loop(0, 5, lambda i, x: np.tanh(w @ x), x), in_axes=(0, None)), (X3, W), 1,
    ),
    "constants with rows": (
        fg.vmap(lambda x, a: lax.fori_loop(0, 5, lambda i, x: np.tanh(a * x + a[0]), x), in_axes=(0, 1)), (X3, X3.T), 2,
    ),
    "the number of the row": (times(5, lambda i, x: x * 0.5 + counted((40, 3), 0)), (X3,), 1),
    "the number, and what trips hand out": (
        lambda x: lax.scan(lambda c, _: (c * 0.5 + counted((40, 3), 0), c), x, None, length=20), (X3,), 2,
    ),
    "a number in the row": (times(5, lambda i, x: x * 0.5 + counted((40, 3), 1)), (X3,), 1),
    "trips that an argument says": (lambda x, n: fg.vmap(lambda x: lax.fori_loop(0, n, lambda i, x: x * 1.1 + i, x))(x),
                                    (X, np.int64(7)), 2),
    "no trips": (lambda x, n: fg.vmap(lambda x: lax.fori_loop(0, n, lambda i, x: x * 1.1, x))(x), (X, np.int64(0)), 2),
    "bools": (fg.vmap(times(4, lambda i, s: (s[0] * 1.1, s[1] | (s[0] > 1)))), ((X, X > 0),), 1),
    "movement": (
        fg.vmap(times(3, lambda i, x: np.pad(np.concatenate([x[::-1], x[:1]])[1:3], (0, 1)).reshape(3, 1).T[0])),
        (X3,), 1,
    ),
    "loops inside": (
        fg.vmap(times(3, lambda i, x: lax.fori_loop(0, 2 + i, lambda j, y: np.sin(y) + x * j, x))), (X,), 1,
    ),
    "scans inside": (fg.vmap(times(3, lambda i, x: np.sum(recurrent(x, np.outer(x, x))[1][1], 0))), (X3,), 1),
    "rows of a loop inside": (
        fg.vmap(times(3, lambda i, x: lax.scan(lambda c, y: (np.sin(c) + y, c * y), x[0], x)[1])), (X3,), 1,
    ),
    "a loop inside that rows share": (
        fg.vmap(times(3, lambda i, x: x * 0.9 + lax.fori_loop(0, i, lambda j, s: s + j, 0.0))), (X,), 1,
    ),
    "reductions": (fg.vmap(times(3, lambda i, x: x / np.max(np.abs(x)) + np.sum(x) - np.mean(x))), (X3,), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_all_trips_of_a_row_in_one_launch(name: str) -> None:
    f, args, launches = ONE[name]
    compared(f, args, scale=10.0)
    assert len(compiled(f, args).module.plan) == launches


TOGETHER: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "the mean of all": (times(3, lambda i, x: x - np.mean(x)), (X,)),
    "neighbours": (times(3, lambda i, x: x + 0.1 * np.roll(x, 1)), (X,)),
    "a product of all rows": (times(3, lambda i, x: np.tanh(x @ x.T @ x)), (X3,)),
    "the other way round": (times(3, lambda i, x: x[::-1] * 0.5), (X,)),
    "a sum of rows as a carry": (times(3, lambda i, s: (s[0] * 0.5, s[1] + np.sum(s[0]))), ((X, 0.0),)),
    "a matrix as large": (lambda x, w: times(3, lambda i, x: np.tanh(x @ w))(x), (X3[:, :1] @ X3[:, :1].T,) * 2),
    "rows that are large": (times(3, lambda i, x: np.sin(x)), (rng.normal(size=(5, 40)),)),
    "sorted": (fg.vmap(times(2, lambda i, x: np.sort(x) * 0.5)), (X3,)),
    "a loop of all rows inside": (times(3, lambda i, x: times(2, lambda j, y: y - np.mean(y))(x)), (X,)),
    "an index that is checked": (lambda x, t: times(3, lambda i, x: x + t[i])(x), (X, X[:3])),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_no_loop_of_independent_rows(name: str) -> None:
    f, args = TOGETHER[name]
    compared(f, args, scale=10.0)
    assert any([isinstance(step, Repeat) for step in compiled(f, args).module.plan])


def test_long_bodies_need_no_recursion() -> None:
    def trip(i: Any, x: Any) -> Any:
        for _ in range(1500):
            x = x + 1e-3
        return x

    compared(times(2, trip), (X,))
