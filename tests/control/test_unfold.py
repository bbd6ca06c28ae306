"""Compiled derivatives of loops with effects, differentiated where values are known: stacks of one value at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.control.assemble import assemble
from funcgrad.control.branch import branch
from funcgrad.control.loop import INDEX
from funcgrad.core.ir import make_aval
from funcgrad.ops.arithmetic import mul

Function = Callable[..., Any]
X = np.array([0.5, 0.7])
MODES: dict[str, Callable[[Function], Function]] = {
    "reverse": lambda f: fg.jacrev(fg.jit(fg.grad(f))),
    "forward": lambda f: fg.jacfwd(fg.jit(fg.grad(f))),
    "both": lambda f: fg.jacfwd(fg.jacrev(fg.jit(fg.grad(f)))),
    "rows": lambda f: lambda x: fg.jacrev(lambda s: fg.jit(fg.vmap(fg.grad(f)))(np.stack([s * x, s * s])))(x),
    "rows outside": lambda f: lambda x: fg.jacfwd(lambda s: fg.vmap(fg.jit(fg.grad(f)))(np.stack([s * x, s * s])))(x),
}


def step(y: Any, x: Any) -> Any:
    return np.sin(y) * y * x[::-1] + 0.1


def lone(note: Function) -> Function:
    """A loop of three trips."""

    def body(s: Any, x: Any) -> Any:
        fg.debug.callback(note, s[0])
        return step(s[0], x), s[1] + 1

    return lambda x: np.sum(lax.while_loop(lambda s: s[1] < 3, lambda s: body(s, x), (x, 0))[0] ** 2)


def nested(note: Function) -> Function:
    """A loop of two trips, in which loops of one and two."""

    def inner(s: Any, x: Any) -> Any:
        fg.debug.callback(note, s[0])
        return step(s[0], x), s[1] + 1

    def outer(s: Any, x: Any) -> Any:
        y, k = s
        return lax.while_loop(lambda t: t[1] <= k, lambda t: inner(t, x), (y, 0))[0], k + 1

    return lambda x: np.sum(lax.while_loop(lambda s: s[1] < 2, lambda s: outer(s, x), (x, 0))[0] ** 2)


def plain(x: Any) -> Any:
    y = x
    for _ in range(3):
        y = step(y, x)
    return np.sum(y**2)


@pytest.mark.parametrize("loops", [lone, nested])
@pytest.mark.parametrize("mode", MODES)
def test_stacks_of_effects(mode: str, loops: Callable[[Function], Function]) -> None:
    log: list[float] = []
    f = loops(lambda v: log.append(float(np.sum(v))))
    derivative = MODES[mode]
    np.testing.assert_allclose(derivative(f)(X), derivative(plain)(X), rtol=1e-12)
    assert len(log) == (6 if "rows" in mode else 3)


def test_a_number_beyond_the_branches_is_that_of_the_last() -> None:
    heard: list[float] = []

    def body(i: Any, x: Any) -> list[Any]:
        fg.debug.callback(lambda v: heard.append(float(v)), x)
        return [x]

    def other(i: Any, x: Any) -> list[Any]:
        return [mul(x, x)]

    third = lambda i, x: [mul(x, np.float64(2.0))]
    branches = tuple([assemble("b", [INDEX, make_aval((), np.dtype(float))], f) for f in (body, other, third)])
    cases = ((-3, 5.0, 1.0), (0, 5.0, 1.0), (1, 25.0, 10.0), (2, 10.0, 2.0), (3, 10.0, 2.0), (9, 10.0, 2.0))
    for number, expected, slope in cases:
        heard.clear()
        f = lambda x, n=number: branch(branches, np.int64(n), x)[0]
        assert f(np.float64(5.0)) == expected == fg.jit(f)(np.float64(5.0))
        assert fg.grad(f)(np.float64(5.0)) == slope
        assert heard == [5.0] * (3 if number < 1 else 0)
