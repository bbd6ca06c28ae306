"""Compiled derivatives of loops with effects, differentiated where values are known: stacks of one value at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax

Function = Callable[..., Any]
X = np.array([0.5, 0.7])
MODES: dict[str, Callable[[Function], Function]] = {
    "reverse": lambda f: fg.jacrev(fg.jit(fg.grad(f))),
    "forward": lambda f: fg.jacfwd(fg.jit(fg.grad(f))),
    "both": lambda f: fg.jacfwd(fg.jacrev(fg.jit(fg.grad(f)))),
    "rows": lambda f: lambda x: fg.jacrev(lambda s: fg.jit(fg.vmap(fg.grad(f)))(np.stack([s * x, s * s])))(x),
    "rows outside": lambda f: lambda x: fg.jacfwd(lambda s: fg.vmap(fg.jit(fg.grad(f)))(np.stack([s * x, s * s])))(x),
}


@pytest.mark.parametrize("mode", MODES)
def test_stacks_of_effects(mode: str) -> None:
    log: list[float] = []

    def f(x: Any) -> Any:
        def body(s: Any) -> Any:
            fg.debug.callback(lambda v: log.append(float(np.sum(v))), s[0])
            return np.sin(s[0]) * s[0] * x[::-1] + 0.1, s[1] + 1

        return np.sum(lax.while_loop(lambda s: s[1] < 3, body, (x, 0))[0] ** 2)

    def plain(x: Any) -> Any:
        y = x
        for _ in range(3):
            y = np.sin(y) * y * x[::-1] + 0.1
        return np.sum(y**2)

    derivative = MODES[mode]
    np.testing.assert_allclose(derivative(f)(X), derivative(plain)(X), rtol=1e-12)
    assert len(log) == (6 if "rows" in mode else 3)
