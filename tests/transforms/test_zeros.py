"""zeros: a Program without the inputs that are zero, and what they annihilate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.evaluate import execute
from funcgrad.transforms.zeros import zeros


def test_what_chooses_between_zeros_is_zero() -> None:
    program = fg.make_program(lambda x, t: (np.where(x > 0, t, 0.0), np.where(x > 0, x * t, -t) - 0.0))(2.0, 3.0)
    left, zero = zeros(program, (False, True))
    assert zero == (True, True) and "select" not in [e.primitive.name for e in left.equations]


def test_what_is_left_keeps_its_name_and_its_value() -> None:
    program = fg.make_program(lambda s, x, t: (x * s + np.sin(x) * t, np.sin(x) * t, x, 1.5))(2.0, 3.0, 5.0)
    left, zero = zeros(program, (False, False, True))
    assert left.input_names == ("s", "x") and zero == (False, True, False, False)
    assert [e.primitive.name for e in left.equations].count("mul") == 1
    assert tuple(execute(left, [2.0, 3.0])) == (6.0, 0.0, 3.0, 1.5)


def scanned(carry: Any, _: Any) -> Any:
    t, w = carry
    return (1.0 * t, w + 1.0), (2.0 * t, 1.0 * w)


BESIDE = {
    "fori_loop": lambda t, n: lax.fori_loop(0, 3, lambda i, c: (1.0 * c[0], c[1] + 1.0), (t, 0.0)),
    "fori_loop, n trips": lambda t, n: lax.fori_loop(0, n, lambda i, c: (1.0 * c[0], c[1] + 1.0), (t, 0.0)),
    "while_loop": lambda t, n: lax.while_loop(lambda c: c[1] < 3, lambda c: (1.0 * c[0], c[1] + 1.0), (t, 0.0)),
    "scan": lambda t, n: lax.scan(scanned, (t, 0.0), length=3)[0],
    "ys of scan": lambda t, n: (t, np.sum(lax.scan(scanned, (t, 0.0), length=3)[1][1])),
    "cond": lambda t, n: lax.cond(n > 0, lambda t: (t, 3.0), lambda t: (t, 5.0), t),
    "jit": lambda t, n: fg.jit(lambda t, n: (t, 1.0 * n))(t, n),
    "checkpoint": lambda t, n: fg.checkpoint(lambda t, n: (t, 1.0 * n))(t, n),
    "vmap": lambda t, n: tuple(
        np.sum(y) / 2 for y in fg.vmap(lambda t, n: (t, 1.0 * n))(np.stack([t, t]), np.stack([n, n]))
    ),
    "whole numbers": lambda t, n: (t, 1.0 * lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]), (0, t))[0]),
}


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit, fg.checkpoint])
@pytest.mark.parametrize("name", BESIDE)
def test_values_beside_tangents_that_are_zero(name: str, wrap: Any) -> None:
    """What makes tangents may make other values from nothing; these are no zeros."""
    f = fg.custom_jvp(lambda x, y, n: x + y * n)

    def rule(primals: Any, tangents: Any) -> Any:
        t, w = BESIDE[name](tangents[0], primals[2])
        return f(*primals), t + w * tangents[1]

    f.defjvp(rule)
    n = np.int64(3)
    expected = 3.0 if name != "ys of scan" else 0.0 + 1.0 + 2.0
    assert wrap(fg.grad(f, 1))(1.0, 1.0, n) == expected
    assert wrap(lambda y: fg.jvp(lambda y: f(1.0, y, n), (y,), (1.0,))[1])(1.0) == expected
    assert wrap(fg.grad(f))(1.0, 1.0, n) == 1.0
    assert wrap(fg.grad(f, (0, 1)))(1.0, 1.0, n) == (1.0, expected)


def test_values_of_a_rule_beside_tangents_that_are_zero() -> None:
    g = fg.custom_jvp(lambda y, x: 3.0 + y * 0 + x)

    @g.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        v, w = lax.fori_loop(0, 3, lambda i, c: (c[0] + 1.0, 1.0 * c[1]), (0.0, tangents[0]))
        return v + primals[1], w * 0.0 + tangents[1]

    assert g(1.0, 2.0) == 5.0 and fg.value_and_grad(g, 1)(1.0, 2.0) == (5.0, 1.0)
