"""Loops and branches as Numba source: closed forms, Python's own loops, both modes, rows, and how the text reads.

A compilation costs Numba seconds, so most random programs and cases are in the slow suite.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import funcgrad as fg
from funcgrad import errors, lax
from funcgrad.lowering.numba_source import module
from tests.lax import test_random_loops as random_loops
from tests.lax.test_native import CASES, interpreted, recurrence
from tests.lowering.test_numba_source import alone, numba_and_numpy

os.environ.setdefault("NUMBA_OPT", "0")  # read when Numba is imported, which is later
slow = pytest.mark.slow


def numba(f: Callable[..., Any]) -> Callable[..., Any]:
    return fg.jit(f, lowering="numba")


def body_of(text: str) -> str:
    """The statements of a module's public function, without the comments at their ends."""
    return "\n".join([line.partition("  # ")[0].rstrip() for line in text.split('    """\n')[-1].splitlines()]) + "\n"


# -- values


def power(x: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, p: p * x, 1.0)


def root(a: Any) -> Any:
    return lax.while_loop(lambda x: abs(x * x - a) > 1e-14 * a, lambda x: 0.5 * (x + a / x), a)


def cubes(n: int) -> Callable[[Any], Any]:
    """Sums of x in three loops, one in the other."""
    return lambda x: lax.fori_loop(
        0, n, lambda i, s: lax.fori_loop(0, n, lambda j, s: lax.fori_loop(0, n, lambda k, s: s + x * x, s), s), 0.0 * x
    )


def test_closed_forms_of_both_orders() -> None:
    """x^7 by loops of known and unknown length, a root, x^2 n^3; their first and second derivatives."""
    functions = [lambda x: power(x, 7), lambda x: power(x, np.int64(7) + (x < 0)), root, cubes(3)]

    def f(x: Any) -> Any:
        slopes = [fg.grad(g)(x) for g in functions]
        return [g(x) for g in functions], slopes, [fg.grad(fg.grad(g))(x) for g in functions[::2]]

    x = 1.7
    values, slopes, curvatures = numba(f)(x)
    np.testing.assert_allclose(values, [x**7, x**7, math.sqrt(x), 27 * x**2], rtol=1e-13)
    np.testing.assert_allclose(slopes, [7 * x**6, 7 * x**6, 0.5 / math.sqrt(x), 54 * x], rtol=1e-12)
    np.testing.assert_allclose(curvatures, [42 * x**5, -0.25 * x**-1.5], rtol=1e-9)


def test_rows_of_loops_of_unknown_length_and_their_gradients() -> None:
    a = np.array([0.25, 2.0, 9.0, 1e6])
    f = numba(lambda a: (fg.vmap(root)(a), fg.vmap(fg.grad(root))(a)))
    np.testing.assert_allclose(f(a)[0], np.sqrt(a), rtol=1e-13)
    np.testing.assert_allclose(f(a)[1], 0.5 / np.sqrt(a), rtol=1e-10)


def test_no_trips() -> None:
    def f(x: Any, n: Any) -> Any:
        v = x * np.ones(3)
        scanned = lax.scan(lambda c, r: (c * r, (c, c[:2])), v, np.zeros((0, 3)))
        never = lax.while_loop(lambda v: v[0] > 5.0, lambda v: v * 2.0, v)
        return scanned, never, power(x, n), fg.grad(power)(x, n), fg.grad(lambda x: np.sum(v * power(x, n)))(x)

    found = numba(f)(2.0, 0)
    (end, (rows, parts)), never, one, slope, other = found
    assert end.tolist() == never.tolist() == [2.0] * 3
    assert rows.shape == (0, 3) and parts.shape == (0, 2) and rows.dtype == float
    assert (one, slope, other) == (1.0, 0.0, 0.0)


def test_carries_that_change_places_and_dtypes() -> None:
    """No body reads a carry that is half new."""

    def step(s: Any, x: Any) -> Any:
        a, b, v, w, k, p, c = s
        s = b, a + b, w, v * x + w[::-1], np.int8(3) * k, ~p, c * np.float32(0.5)
        return s, (a, v, k, p, c, w[1:])

    def python(a: Any, v: Any, xs: Any) -> Any:
        s, ys = (np.float64(a), np.float64(1.0), v, 2.0 * v, np.int8(5), np.bool_(True), np.float32(3)), []
        for x in xs:
            s, y = step(s, x)
            ys.append(y)
        return s, tuple([np.stack(column) for column in zip(*ys, strict=True)])

    def ours(a: Any, v: Any, xs: Any) -> Any:
        s = (a, 1.0, v, 2.0 * v, np.int8(5), np.bool_(True), np.float32(3))
        return lax.scan(step, s, xs)

    args = 0.5, np.array([1.0, -2.0, 3.0]), np.array([0.5, -1.5, 2.0, 0.25, 1.0])
    with np.errstate(over="ignore"):
        expected = python(*args)
    found = numba(ours)(*args)
    for x, y in zip(fg.tree.leaves(found), fg.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype and np.array_equal(x, y)
    given = args[1].copy()
    numba(ours)(args[0], given, args[2])
    assert np.array_equal(given, args[1])


@pytest.mark.parametrize("longest", [100, 5])
def test_results_of_inner_loops_are_not_written_again(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old carry is read after the inner loop, which is a function of its own if code is long."""
    monkeypatch.setattr(module, "LONGEST", longest)

    def step(s: Any, _: Any) -> Any:
        v, total = s
        w = lax.fori_loop(0, 3, lambda i, v: v[::-1] * 0.5 + i, v)
        u = lax.cond(w[0] > 1.0, lambda v: lax.fori_loop(0, 1, lambda i, v: v * 0.5, v), lambda v: v + 1.0, w)
        return (w, total + v * w + u), u

    def python(v: Any) -> Any:
        total, us = np.zeros(4), []
        for _ in range(5):
            w = v
            for i in range(3):
                w = w[::-1] * 0.5 + i
            u = w * 0.5 if w[0] > 1.0 else w + 1.0
            v, total = w, total + v * w + u
            us.append(u)
        return total, np.stack(us)

    v = np.array([8.0, -1.0, 3.0, 0.5])
    f = lambda v: (lambda s, us: (s[1], us))(*lax.scan(step, (v, np.zeros(4)), None, length=5))
    assert ("kernel_0" in fg.to_numba(f, v)) == (longest == 5)
    found, _ = numba_and_numpy(f, [v])
    for a, b in zip(found, python(v), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_body_returns_in_another_shape() -> None:
    """Carries, rows, stacks and branches are views of values of as many elements: from () to (1,), (4,) to (2, 2)."""
    square = lambda x: x.reshape(2, 2)
    unknown = lambda x, trip: lax.while_loop(lambda s: s[0] < 3 + 0 * np.sum(x), trip, (0.0, x))[1]

    def f(x: Any) -> Any:
        one = lax.scan(lambda c, a: (np.sin(c[0] + a).reshape(1), np.sin(c[0] * a).reshape(1)), x[:1], x)
        four = lax.scan(lambda c, a: (square(np.sin(c.reshape(4) + a)), square(np.cos(c.reshape(4)))), square(x), x)
        trip = lambda s: (s[0] + 1, square(np.sin(s[1]) * square(s[1]).reshape(4)).reshape(4))
        first = lax.cond(x[0] > 0, lambda x: np.sin(x[0]).reshape(1), lambda x: x[1:2], x)
        return (
            one,
            four,
            fg.grad(lambda x: np.sum(unknown(x, trip)))(x),
            first,
            lax.cond(x[0] < 0, square, lambda x: square(np.sin(x)), x),
        )

    x = np.linspace(0.1, 1.0, 4)
    for found, expected in zip(*[fg.tree.leaves(g(x)) for g in (numba(f), f)], strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_choices_are_clamped_and_only_one_is_computed() -> None:
    branches = [lambda x: x, lambda x: x + x[x[0].astype(int)], lambda x: x[::-1]]
    f = numba(lambda i, x: lax.switch(i, branches, x))
    x = np.array([3.0, 1.0])
    assert [f(i, x).tolist() for i in (-4, 0, 2, 9)] == [[3.0, 1.0], [3.0, 1.0], [1.0, 3.0], [1.0, 3.0]]
    with pytest.raises(errors.OutOfBoundsError, match="index 3 is out of bounds"):
        f(1, x)
    assert f(1, np.array([1.0, 1.0])).tolist() == [2.0, 2.0]


def test_a_position_outside_ends_a_loop() -> None:
    f = numba(lambda x: lax.while_loop(lambda s: s[0] >= 0, lambda s: (s[0] + 1, s[1] + x[s[0]]), (0, 0.0))[1])
    with pytest.raises(errors.OutOfBoundsError, match="index 3 is out of bounds for axis 0 of length 3"):
        f(np.ones(3))


FEW = ["rows, gradient", "mixed, gradient", "matrices, gradient", "choice, rows", "rows of a carry, gradient"]


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=slow) for n in CASES])
def test_the_same_values_as_evaluation(name: str) -> None:
    f, args = CASES[name]
    found, _ = numba_and_numpy(f, list(args))
    for a, b in zip(found, interpreted(f, *args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def check_random(steps: Any, orders: tuple[str, ...]) -> None:
    """A random program of loops against Python's own, alone and in rows."""
    ours = random_loops.derivatives(random_loops.function(lax, steps))
    theirs = random_loops.derivatives(random_loops.function(random_loops.Python, steps))
    points = [random_loops.values(r) for r in random_loops.ROWS]
    columns = [np.stack(c) for c in zip(*points, strict=True)]
    for name in orders:
        want = np.stack([random_loops.flat(theirs[name](*q)) for q in points])
        random_loops.close(random_loops.flat(numba(ours[name])(*points[0])), want[0], (steps, name))
        rows = numba(fg.vmap(ours[name]))(*columns)
        random_loops.close(random_loops.flat_rows(rows), want, (steps, name, "vmap"))


def test_a_small_program_of_nested_loops_and_branches() -> None:
    steps = [("scan", [("cond", [("while", [("set",)], "sign", 2)], [("root",)], "odd"), ("swap",)], 3, True)]
    check_random(steps, ("value",))


@slow
def test_one_program_of_nested_loops_and_branches() -> None:
    inner = [("while", [("set",), ("swap",)], "sign", 2), ("read",)]
    steps = [("scan", [("cond", inner, [("fori, traced", [("root",)], 1, 3)], "odd"), ("total",)], 3, True), ("swap",)]
    check_random(steps, ("value", "reverse"))


@slow
@settings(max_examples=30, deadline=None)
@given(random_loops.block(3))
def test_random_programs(steps: Any) -> None:
    check_random(steps, ("value", "reverse", "forward"))


@slow
@settings(max_examples=8, deadline=None)
@given(random_loops.block(2))
def test_random_programs_of_second_order(steps: Any) -> None:
    check_random(steps, random_loops.ALL[3:])


# -- the text


def test_a_gradient_of_loops_stands_alone(tmp_path: Path) -> None:
    text = fg.to_numba(fg.value_and_grad(root), 1.0)
    printed = alone(text, "print(*value_and_grad_root(2.0))", tmp_path)
    np.testing.assert_allclose([float(v) for v in printed.split()], [math.sqrt(2), 0.5 / math.sqrt(2)], rtol=1e-12)


def test_an_njit_function_calls_it() -> None:
    import numba as nb

    slope = fg.jit(fg.grad(lambda w, xs: lax.scan(lambda c, x: (np.tanh(c * w + x), None), w, xs)[0])).numba(
        1.0, np.ones(4)
    )

    @nb.njit
    def total(xs: Any) -> Any:
        s = 0.0
        for k in range(3):
            s += slope(0.1 * k, xs)
        return s

    def plain(w: Any, xs: Any) -> Any:
        c = w
        for x in xs:
            c = np.tanh(c * w + x)
        return c

    xs = np.linspace(-1, 1, 4)
    expected = sum(float(fg.grad(plain)(0.1 * k, xs)) for k in range(3))
    np.testing.assert_allclose(total(xs), expected, rtol=1e-12)


def test_how_loops_read() -> None:
    def scan(a: Any, x: Any) -> Any:
        return lax.scan(lambda c, x: (np.sin(c) + x, c), a, x)

    def double(v: Any) -> Any:
        return lax.while_loop(lambda v: v[0] < 9.0, lambda v: 2.0 * v, v)

    assert (
        body_of(fg.to_numba(scan, 1.0, np.ones(9)))
        == """\
    if x.shape != (9,):
        raise ValueError("x must have the shape (9,)")
    c = np.empty(9)
    b = a
    for t in range(9):
        d = x[t]
        e = np.sin(b)
        f = e + d
        c[t] = b
        b = f
    return b, c
"""
    )
    assert (
        body_of(fg.to_numba(double, np.ones(3)))
        == """\
    if v.shape != (3,):
        raise ValueError("v must have the shape (3,)")
    a = v[0] < 9.0
    b = a
    c = v.copy()
    d = np.empty(3)
    while b:
        for i in range(3):
            d[i] = 2.0 * c[i]
        e = d[0] < 9.0
        b = e
        c, d = d, c
    return c
"""
    )


def test_how_branches_read() -> None:
    f = lambda k, x: lax.switch(k, [np.sin, lambda x: x * 2.0, lambda x: x], lax.cond(x > 0, np.sqrt, np.abs, x))
    assert (
        body_of(fg.to_numba(f, 1, 2.0))
        == """\
    a = x > 0.0
    if a:
        b = np.sqrt(x)
    else:
        b = np.abs(x)
    if k <= 0:
        c = np.sin(b)
    elif k == 1:
        c = b * 2.0
    else:
        c = b
    return c
"""
    )


def test_an_array_is_changed_in_place() -> None:
    text = body_of(fg.to_numba(fg.grad(lambda a: recurrence(a, 40)), 1.0))
    loops = text.split("for t in ")[1:]
    assert len(loops) == 2 and all(".copy()" not in loop for loop in loops)


def test_long_bodies_call_functions() -> None:
    def step(v: Any, x: Any) -> Any:
        for k in range(24):
            v = np.tanh(v * x[k % 3] + np.roll(v, 1))
        return v, v.sum()

    f = lambda v, x: lax.scan(step, v, x)
    args = [np.array([0.1, -0.4, 0.3]), np.linspace(-1, 1, 12).reshape(4, 3)]
    text = fg.to_numba(f, *args)
    assert "def kernel_0(" in text and len(body_of(text).splitlines()) < 150
    found, expected = numba_and_numpy(f, args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
