"""scan with checkpoint=k: the same numbers as without, for less memory in reverse mode."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.control.loop_snapshots import division, start


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
@pytest.mark.parametrize(("n", "levels"), [(0, 1), (1, 3), (4, 1), (7, 1), (27, 2), (41, 9)])
def test_values_and_derivatives_are_those_of_the_plain_scan(n: int, levels: int, reverse: bool) -> None:
    def both(d: Any, wrap: Any = fg.jit) -> None:
        want = wrap(d(lambda a: loss(a, n, 0, reverse)))(0.9)
        found = wrap(d(lambda a: loss(a, n, levels, reverse)))(0.9)
        np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-11)

    both(lambda f: f)
    both(fg.value_and_grad)
    both(fg.grad, wrap=lambda f: f)
    both(lambda f: lambda a: fg.vmap(fg.grad(f))(a * np.array([0.5, 1.0, 1.1])))
    both(lambda f: fg.grad(fg.grad(f)))
    both(lambda f: fg.jacfwd(fg.grad(f)))


def iterated(n: int, levels: int) -> Any:
    """A map applied n times, to a number that it depends on as well."""
    return lambda a: lax.scan(lambda c, _: (np.sin(a * c), None), a, length=n, checkpoint=levels)[0]


def stages(f: Any) -> str:
    return fg.show(f, 0.7, stage="simplified")


def kept(f: Any) -> int:
    """The elements of all arrays in a Program, those of a block counted once."""
    shapes = re.findall(r"f64\[([\d,]+)\]", stages(f))
    return sum([int(np.prod([int(k) for k in shape.split(",")])) for shape in shapes])


def test_reverse_mode_keeps_few_carries() -> None:
    n = 100_000
    plain, once, twice, log = [kept(fg.grad(iterated(n, k))) for k in (0, 1, 2, 16)]
    assert plain >= n
    assert once <= 4 * n ** (1 / 2)
    assert twice <= 15 * n ** (1 / 3)
    assert log <= 4 * np.log2(n)
    assert kept(fg.grad(fg.grad(iterated(n, 1)))) <= 25 * n ** (1 / 2)


def test_programs_are_as_long_with_many_levels_as_with_few() -> None:
    for d in (fg.grad, lambda f: fg.grad(fg.grad(f))):
        few, many = [len(stages(d(iterated(100_000, k))).splitlines()) for k in (2, 20)]
        assert many <= 1.1 * few


@pytest.mark.parametrize("levels", [2, 5, 20])
def test_a_trip_is_run_as_often_as_it_says(levels: int) -> None:
    """A callback counts the trips: forward once, and then at most k + 1 times each."""
    n = 500
    calls: list[Any] = []

    def step(c: Any, _: Any) -> Any:
        return fg.pure_callback(
            lambda x: calls.append(0) or x, fg.ShapeDtypeStruct((), float), fg.stop_gradient(c)
        ) * c, _

    fg.jit(fg.grad(lambda a: lax.scan(step, a, length=n, checkpoint=levels)[0]))(1.0)
    assert n * 2 < len(calls) <= n * (levels + 2)


def fewest(trips: int, places: int) -> int:
    """How many trips are run again, at least, if so many carries can be kept: the best of all first divisions."""
    least = {(n, 1): n * (n - 1) // 2 for n in range(trips + 1)}
    for s in range(2, places + 1):
        for n in range(trips + 1):
            least[n, s] = min([m + least[n - m, s - 1] + least[m, s] for m in range(1, n)], default=0)
    return least[trips, places]


def of_schedule(trips: int, places: int, r: Any, b: Any) -> int:
    """How many the schedule runs again."""
    if trips <= 1:
        return 0
    m, before, behind = map(int, division(np.int64(trips), np.int64(places), np.int64(r), np.int64(b)))
    return m + of_schedule(trips - m, places - 1, r, behind) + of_schedule(m, places, r - 1, before)


@pytest.mark.parametrize("places", [1, 2, 3, 4, 7])
def test_no_schedule_runs_fewer_trips(places: int) -> None:
    for trips in (1, 2, 3, 5, 8, 13, 21, 34, 56):
        assert of_schedule(trips, places, *start(np.int64(trips), places)) == fewest(trips, places)


@pytest.mark.parametrize("levels", [1, 2])
def test_third_derivatives_rows_and_threads(levels: int) -> None:
    def derived(k: int, order: int) -> Any:
        f = iterated(23, k)
        for _ in range(order):
            f = fg.grad(f)
        return f

    a = np.array([0.4, 0.9, 1.3])
    want = [[derived(0, order)(x) for x in a] for order in (2, 3)]
    np.testing.assert_allclose(fg.jit(fg.vmap(derived(levels, 2)))(a), want[0], rtol=1e-10)
    with ThreadPoolExecutor(3) as pool:
        np.testing.assert_allclose(list(pool.map(fg.jit(derived(levels, 3)), a)), want[1], rtol=1e-10)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_carries_of_many_types(levels: int) -> None:
    """Numbers, flags, empty arrays and single precision, some of which the derivative never meets."""

    def f(a: Any, k: int) -> Any:
        def step(c: Any, x: Any) -> Any:
            n, odd, empty, single, y = c
            y = y * np.where(odd, np.cos(y), a) + 0.1 * single.astype(float)
            return (n + 3, n % 2 == 1, empty * a, np.tanh(single + x), y), {"y": y, "n": n, "e": empty}

        init = (np.int32(1), False, np.zeros((2, 0)), np.ones(2, np.float32), np.array([0.2, 0.5]) * a)
        xs = np.linspace(-1.0, 1.0, 2 * 31, dtype=np.float32).reshape(31, 2)
        c, ys = lax.scan(step, init, xs, checkpoint=k)
        return np.sum(c[4] * c[0]) + np.sum(ys["y"][::3] ** 2) + np.sum(c[3])

    for d in (fg.value_and_grad, lambda f: fg.jacfwd(fg.grad(f))):
        found, want = [fg.jit(d(lambda a, k=k: f(a, k)))(0.8) for k in (levels, 0)]
        np.testing.assert_allclose(found, want, rtol=1e-11)


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


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_weak_numbers_that_a_while_loop_keeps(levels: int) -> None:
    """The operand of a checkpoint in a while loop is a Python number, and one of the values that are kept."""
    block = lambda c, w: np.sin(c * w) * w

    def step(c: Any, w: Any) -> Any:
        if not levels:
            return fg.checkpoint(lambda c: block(c, w))(c)
        return lax.scan(lambda c, _: (block(c, w), None), c, length=5, checkpoint=levels)[0]

    def f(a: Any, w: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1], w)), (0, a))[1]

    def plain(a: Any, w: Any) -> Any:
        for _ in range(3 * (5 if levels else 1)):
            a = block(a, w)
        return a

    for d in (fg.grad, lambda f: fg.grad(lambda a, w: sum(fg.grad(f, (0, 1))(a, w)))):
        np.testing.assert_allclose([d(f)(0.7, 0.9), fg.jit(d(f))(0.7, 0.9)], [d(plain)(0.7, 0.9)] * 2, rtol=1e-12)
