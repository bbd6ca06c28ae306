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
from funcgrad.lowering.kernels import Control, Loop
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


# -- what loops carry


def kept(f: Callable[..., Any], *args: Any) -> int:
    """How many carries of loops begin where their results are to be; the result is checked as in `copies`."""
    copies(f, *args)
    s = schedule(simplify(fg.make_program(f)(*args)))
    return sum([len(k.kept) for k in s.kernels if isinstance(k, Control)])


def filled(y: Any, n: Any = 20) -> Any:
    """A loop that changes an array step by step; the array is too large for registers."""
    return fg.lax.fori_loop(1, n, lambda i, y: y.at[i].set(2.0 * y[i - 1] - y[i]), y)


def mixed(y: Any, n: int = 4) -> Any:
    """A loop whose body is a kernel."""
    return fg.lax.fori_loop(0, n, lambda i, y: y[::-1] * 0.5 - y + i, y)


Y = fnp.asarray(np.linspace(-1.0, 1.0, 64))
LOOPS = {"registers": filled, "kernels": mixed}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_works_where_its_operand_is(name: str) -> None:
    loop = LOOPS[name]
    assert kept(lambda x: loop(np.cumsum(x)), Y) == 1
    assert kept(lambda x: np.max(loop(loop(np.cumsum(x)) * 0.5)), Y) == 2
    assert kept(lambda x: loop(np.cumsum(x), 0), Y) <= 1  # without a trip
    assert kept(lambda x: loop(np.cumsum(x).at[3].set(1.0)).at[5].add(2.0), Y) == 1


NEEDED: dict[str, Callable[[Any, Any], Any]] = {
    "an argument": lambda loop, x: loop(x),
    "a result": lambda loop, x: (loop(y := np.cumsum(x)), y),
    "read later": lambda loop, x: loop(y := np.cumsum(x)) * y,
    "a view of it is read later": lambda loop, x: loop(y := np.cumsum(x))[:5] + y[::-1][:5],
    "reversed": lambda loop, x: loop(np.cumsum(x)[::-1]),
    "of two loops": lambda loop, x: loop(y := np.cumsum(x)) + loop(y, 3),
}


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_leaves_what_is_needed(name: str, loop: str) -> None:
    count = kept(lambda x: NEEDED[name](LOOPS[loop], x), Y)
    assert count == (1 if name in ("reversed", "of two loops") else 0)  # a copy of its own, the last one that reads


def test_a_carry_that_the_loop_reads_otherwise() -> None:
    step = lambda y: lambda i, z: z.at[i].set(z[i - 1] + y[63 - i])
    assert kept(lambda x: fg.lax.fori_loop(1, 60, step(y := np.cumsum(x)), y), Y) == 0

    def both(x: Any) -> Any:
        y = np.cumsum(x)
        return fg.lax.fori_loop(1, 60, lambda i, s: (s[0].at[i].set(s[1][i - 1]), s[1].at[i].set(s[0][i])), (y, y))

    assert kept(both, Y) == 0

    def rows(x: Any) -> Any:
        y = np.cumsum(x)
        return fg.lax.scan(lambda z, r: (z.at[0].set(z[1] + r), z[2] * r), y, y)

    assert kept(rows, Y) == 0


def test_a_while_loop_and_gradients_in_place() -> None:
    def f(x: Any) -> Any:
        y = np.cumsum(x)
        step = lambda s: (s[0].at[s[1]].multiply(0.5), s[1] + 1)
        return fg.lax.while_loop(lambda s: s[0][s[1]] < 10.0, step, (y * y, 0))[0]

    assert kept(f, Y + 1.0) >= 1
    g = lambda x: np.sum(filled(np.sin(x)) ** 2)
    np.testing.assert_allclose(fg.jit(fg.grad(g))(Y), fg.grad(g)(Y), rtol=1e-12)
    rows = np.stack([Y, Y + 1.0, Y - 2.0])
    np.testing.assert_allclose(fg.jit(fg.vmap(fg.grad(g)))(rows), [fg.grad(g)(r) for r in rows], rtol=1e-12)
