"""Updates in place: where the old value is not needed there is no copy, where it is needed it stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.evaluate import run
from funcgrad.core.trace import eagerly
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.kernels import Loop
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify


def copies(f: Callable[..., Any], *args: Any) -> int:
    """How many kernels only copy a whole array; the result is checked against evaluation."""
    program = fg.make_program(f)(*args)
    before = [np.array(a) for a in args]
    with eagerly():
        found, expected = Executable(program)(args), run(program, args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(args, before, strict=True):
        np.testing.assert_array_equal(a, b)
    s = schedule(simplify(program))
    loops = [k for k in s.kernels if isinstance(k, Loop) and not k.equations and not k.reductions]
    return len([k for k in loops if any([w.target.size == w.target.root.aval.size for w in k.writes])])


X, I = fnp.asarray(np.arange(6.0)), np.array([4, 1, 4])


def test_a_chain_of_updates_copies_its_input_once() -> None:
    def f(x: Any, i: Any) -> Any:
        for k in range(5):
            x = x.at[i[k % 3]].set(x[i[(k + 1) % 3]] + 1.0)
            x = x.at[i].add(2.0)
        return x

    assert copies(f, X, I) == 1


def test_a_computed_value_is_not_copied() -> None:
    assert copies(lambda x, i: (np.sqrt(x) * 2.0).at[i].add(1.0).at[i[0]].set(7.0), X, I) == 0
    assert copies(lambda x, i: np.cumsum(x).at[i].add(1.0), X, I) == 0


KEPT: dict[str, Callable[[Any, Any], Any]] = {
    "it is a result": lambda y, i: (y, y.at[i].add(1.0)),
    "it is read": lambda y, i: y.at[i].add(1.0) * y,
    "it is reduced": lambda y, i: (y.at[i].add(1.0), np.sum(y * 2.0)),
    "a view is read": lambda y, i: y.at[i].add(1.0)[:3] + y[::-1][:3],
    "a view is a result": lambda y, i: (y.at[i].add(1.0), y[::-1]),
    "it is gathered": lambda y, i: (y.at[i].add(1.0), y[i]),
    "a window is read": lambda y, i: (y.at[i].add(1.0), y[i[0]]),
    "a window of a change of it": lambda y, i: y.at[i[1]].set(y[i[0]]) - y,
    "it is changed twice": lambda y, i: (y.at[i].add(1.0), y.at[i].multiply(3.0)),
    "it is changed twice, once through a view": lambda y, i: (y.at[i].add(1.0), y[::-1].at[i].multiply(3.0)),
    "a product reads it": lambda y, i: (y.at[i].add(1.0), np.outer(y, y) @ y),
    "a running sum reads it": lambda y, i: y.at[i].add(1.0) + np.cumsum(y),
    "an update takes its values from it": lambda y, i: y.at[i].add(1.0).at[i].set(y[:3]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_needed_is_kept(name: str) -> None:
    count = copies(lambda x, i: KEPT[name](np.cumsum(x), i), X, I)
    assert count >= 1 or name in ("it is gathered", "it is reduced")  # that can be done before
    copies(lambda x, i: KEPT[name](x, i), X, I)
    copies(lambda x, i: KEPT[name](x.at[i].add(5.0), i), X, I)


def test_values_read_before_an_update_are_the_old_ones() -> None:
    def f(x: Any, i: Any) -> Any:
        y = np.cumsum(x)
        old, window, total = y[i], y[i[0]], np.sum(y)
        z = y.at[i].set(-1.0)
        return z, old + 0.0, window * 2.0, total, z.at[0].set(window)

    assert copies(f, X, I) == 1  # of z, which is a result


def test_an_update_through_another_shape() -> None:
    f = lambda x, i: fnp.reshape(np.cumsum(x), (2, 3)).at[:, i[1]].set(0.0)
    assert copies(f, X, I) == 0


def test_gradients_through_updates() -> None:
    def f(x: Any, i: Any) -> Any:
        y = x * x
        y = y.at[i].add(x[:3]).at[i[0]].multiply(x[2])
        return np.sum(y * y.at[0].set(x[1]))

    found = fg.jit(fg.grad(f))(X, I)
    np.testing.assert_allclose(found, fg.grad(f)(X, I), rtol=1e-14)
    rows = np.stack([X, X + 1.0, X - 2.0])
    np.testing.assert_allclose(
        fg.jit(fg.vmap(fg.grad(f), in_axes=(0, None)))(rows, I), [fg.grad(f)(r, I) for r in rows], rtol=1e-14
    )
