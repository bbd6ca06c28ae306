"""scan with checkpoint=k: the same numbers as without, for less memory in reverse mode."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax


def loss(a: Any, n: int, levels: int, reverse: bool = False) -> Any:
    """A chaotic map with an input and an output in each trip."""
    xs = {"x": np.linspace(0.0, 1.0, n), "w": np.linspace(1.0, 2.0, 2 * n).reshape(n, 2)}

    def step(c: Any, row: Any) -> Any:
        new = fnp.sin(a * c) + row["x"] * row["w"]
        return new, {"y": new[0] * c[1], "z": new}

    c, ys = lax.scan(step, a * np.array([0.3, 0.7]), xs, reverse=reverse, checkpoint=levels)
    weights = np.linspace(-1.0, 1.0, n)
    return np.sum(c) + np.sum(weights * ys["y"]) + np.sum(ys["z"][:, 1] * weights**2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("n", "levels"), [(0, 1), (1, 3), (4, 1), (7, 1), (27, 2)])
def test_values_and_derivatives_are_those_of_the_plain_scan(n: int, levels: int, reverse: bool) -> None:
    def both(d: Any, wrap: Any = fg.jit) -> None:
        want = wrap(d(lambda a: loss(a, n, 0, reverse)))(0.9)
        found = wrap(d(lambda a: loss(a, n, levels, reverse)))(0.9)
        np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-11)

    both(lambda f: f)
    both(fg.value_and_grad)
    both(fg.grad, wrap=lambda f: f)
    both(lambda f: lambda a: fg.vmap(fg.grad(f))(a * np.array([0.5, 1.0, 1.1])))
    if levels == 1:
        both(lambda f: fg.grad(fg.grad(f)))
        both(lambda f: fg.jacfwd(fg.grad(f)))


def kept(f: Any) -> int:
    """The elements of all arrays in a gradient's Program, those of a block counted once."""
    text = fg.show(fg.grad(f), 0.7, stage="simplified")
    return sum([int(np.prod([int(k) for k in shape.split(",")])) for shape in re.findall(r"f64\[([\d,]+)\]", text)])


def test_reverse_mode_keeps_the_carries_of_blocks() -> None:
    def f(n: int, levels: int) -> Any:
        return lambda a: lax.scan(lambda c, _: (np.sin(a * c), None), a, length=n, checkpoint=levels)[0]

    n = 10_000
    plain, once, twice, log = [kept(f(n, k)) for k in (0, 1, 2, 5)]
    assert plain >= n
    assert once <= 20 * n ** (1 / 2)
    assert twice <= 30 * n ** (1 / 3)
    assert log <= 50 * n ** (1 / 6)


@pytest.mark.parametrize("levels", [-1, 1.5, "all"])
def test_levels_are_whole(levels: Any) -> None:
    with pytest.raises(fg.errors.ArgumentError, match="levels"):
        lax.scan(lambda c, x: (c, x), 0.0, np.ones(9), checkpoint=levels)


def test_a_carry_of_another_type_is_named() -> None:
    with pytest.raises(fg.errors.CarryTypeError, match="carry"):
        lax.scan(lambda c, x: ((c[0], c[1].astype(np.float32)), x), (0.0, np.ones(3)), np.ones(9), checkpoint=1)


@pytest.mark.parametrize("levels", [1, 2])
def test_carries_that_are_python_numbers(levels: int) -> None:
    xs = np.arange(11.0)
    total, before = lax.scan(lambda c, x: (c + x, c), 0, xs, checkpoint=levels)
    assert total.dtype == before.dtype == np.float64
    assert total == 55.0 and before.tolist() == [0, 0, 1, 3, 6, 10, 15, 21, 28, 36, 45]
    assert fg.grad(lambda a: lax.scan(lambda c, x: (c + x * a, None), 0, xs, checkpoint=levels)[0])(2.0) == 55.0
    with fg.disable_jit():
        assert lax.scan(lambda c, x: (c + x, None), 0, xs, checkpoint=levels)[0] == 55.0
