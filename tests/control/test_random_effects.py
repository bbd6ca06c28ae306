"""Effects of random programs: the same calls, in the same order, however a function is run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax

Log = list[Any]
Step = Callable[[Any], Any]


def program(seed: int, log: Log) -> Step:
    """A random function of a scalar: arithmetic, effects, and what holds Programs."""
    r = random.Random(seed)
    count = iter(range(10**6))

    def effect() -> Step:
        name = next(count)
        note = lambda v: log.append((name, round(float(v), 9)))

        def result(v: Any) -> Any:
            note(v)
            return 0.5 + 0.1 * float(np.sin(float(v)))

        def draw(x: Any) -> Any:
            return x + fg.io_callback(result, fg.ShapeDtypeStruct((), float), fg.stop_gradient(x))

        return r.choice([lambda x: fg.debug.callback(note, x) or x, draw])

    def step(depth: int) -> Step:
        kind = r.choice(
            ["effect", "effect", "plain", "jit", "scan", "fori", "while", "cond", "grad", "dead"][
                : None if depth else 3
            ]
        )
        if kind == "effect":
            return effect()
        if kind == "plain":
            return r.choice([np.sin, lambda x: 0.5 * x + 0.3, lambda x: x * x * 0.5])
        body = block(depth - 1)
        if kind == "jit":
            return fg.jit(body)
        if kind == "scan":
            rows, reverse = np.arange(1.0, 1.0 + r.randrange(1, 4)), r.random() < 0.3

            def scan(x: Any) -> Any:
                c, ys = lax.scan(lambda c, k: (body(c) * 0.7 + 0.1 * k, c * k), x, rows, reverse=reverse)
                return c + 0.1 * np.sum(ys)

            return scan
        if kind == "fori":
            trips = r.randrange(0, 3)
            return lambda x: lax.fori_loop(0, trips, lambda i, c: body(c) * 0.9, x)
        if kind == "while":
            note = effect()

            def run(x: Any) -> Any:
                test = lambda s: note(s[0]) * 0 + s[1] < 2.0
                return lax.while_loop(test, lambda s: (body(s[0]) * 0.8, s[1] + 1.0), (x, 0.0))[0]

            return run
        if kind == "cond":
            other, at = block(depth - 1), r.uniform(-0.5, 0.8)
            return lambda x: lax.cond(x > at, body, other, x)
        if kind == "grad":
            return lambda x: x + 0.1 * fg.grad(lambda v: np.sin(body(v)) * v)(x)

        def dead(x: Any) -> Any:
            body(x)
            return x

        return dead

    def block(depth: int) -> Step:
        steps = [step(depth) for _ in range(r.randrange(1, 4))]

        def function(x: Any) -> Any:
            for s in steps:
                x = s(x)
            return x

        return function

    return block(3)


def check(seed: int) -> int:
    log: Log = []

    def logged(f: Callable[..., Any], *args: Any) -> tuple[Any, Log]:
        log.clear()
        return f(*args), list(log)

    f = program(seed, log)
    with fg.disable_jit():
        value, calls = logged(f, 0.7)
    runs = {
        "f": f,
        "jit": fg.jit(f),
        "jvp": lambda x: fg.jvp(f, (x,), (1.0,))[0],
        "grad": lambda x: fg.value_and_grad(f)(x)[0],
        "jit grad": lambda x: fg.jit(fg.value_and_grad(f))(x)[0],
        "grad jit": lambda x: fg.value_and_grad(fg.jit(f))(x)[0],
        "jit jvp": lambda x: fg.jit(lambda x: fg.jvp(f, (x,), (1.0,)))(x)[0],
    }
    for name, run in runs.items():
        found, seen = logged(run, 0.7)
        assert seen == calls, (seed, name)
        np.testing.assert_allclose(found, value, rtol=1e-12, err_msg=f"{seed} {name}")
    g = fg.grad(f)
    slope, _ = logged(fg.jit(g), 0.7)
    nested = {"grad grad": fg.grad(g), "grad jit grad": fg.grad(fg.jit(g)), "jit grad grad": fg.jit(fg.grad(g))}
    for name, run in nested.items():
        assert logged(run, 0.7)[1] == calls, (seed, name)
    np.testing.assert_allclose(logged(g, 0.7)[0], slope, rtol=1e-10)

    rows = np.array([0.7, -0.2, 0.7])
    expected = sorted(c for x in rows for c in logged(f, float(x))[1])
    ways = {
        "vmap": fg.vmap(f),
        "jit vmap": fg.jit(fg.vmap(f)),
        "vmap jit grad": fg.vmap(fg.jit(g)),
        "vmap grad jit grad": fg.vmap(fg.grad(fg.jit(g))),
        "grad vmap jit grad": fg.grad(lambda xs: np.sum(fg.vmap(fg.jit(g))(xs))),
    }
    for name, run in ways.items():
        assert sorted(logged(run, rows)[1]) == expected, (seed, name)
    return len(calls)


@pytest.mark.parametrize("seed", range(15))
def test_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15, 200))
def test_many_random_programs(seed: int) -> None:
    check(seed)
