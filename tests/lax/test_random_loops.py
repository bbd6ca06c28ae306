"""Random programs of nested loops and branches against Python's own on NumPy values, both modes, two orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

State = dict[str, Any]
LONG = 40

# -- the same program for `lax` and for Python


class Python:
    """What `lax` has, as Python runs it on values that are known."""

    @staticmethod
    def scan(f: Any, init: Any, xs: Any, reverse: bool = False) -> Any:
        c, ys = init, []
        trips = range(len(xs[0]))
        for i in reversed(trips) if reverse else trips:
            c, y = f(c, tuple([x[i] for x in xs]))
            ys.append(y)
        if reverse:
            ys.reverse()
        return c, tuple([np.stack(column) for column in zip(*ys, strict=True)]) if ys else None

    @staticmethod
    def map(f: Any, xs: Any) -> Any:
        return Python.scan(lambda c, x: (c, (f(x[0]),)), None, (xs,))[1][0]

    @staticmethod
    def fori_loop(low: Any, high: Any, body: Any, value: Any) -> Any:
        for i in range(int(low), int(high)):
            value = body(i, value)
        return value

    @staticmethod
    def while_loop(test: Any, body: Any, value: Any) -> Any:
        while test(value):
            value = body(value)
        return value

    @staticmethod
    def cond(pred: Any, yes: Any, no: Any, *args: Any) -> Any:
        return yes(*args) if pred else no(*args)

    @staticmethod
    def switch(index: Any, branches: Any, *args: Any) -> Any:
        return branches[min(max(int(index), 0), len(branches) - 1)](*args)


def put(x: Any, i: Any, value: Any) -> Any:
    if isinstance(x, np.ndarray) and isinstance(value, np.ndarray | np.generic):
        x = x.copy()
        x[i] = value
        return x
    return fnp.asarray(x).at[i].set(value)


def as_float32(x: Any) -> Any:
    return x.astype(np.float32)


SIMPLE: dict[str, Callable[[State], State]] = {
    "number": lambda s: {"a": 0.7 * np.sin(s["a"]) + 0.2 * s["v"][0] * s["v"][2]},
    "single": lambda s: {"b": s["b"] * np.float32(0.5) + as_float32(s["a"] * s["a"])},
    "integer": lambda s: {"k": (s["k"] * 3 + 1) % 7},
    "divided": lambda s: {"k": s["k"] // (s["k"] % 3 + 1) + s["p"]},
    "flag": lambda s: {"p": (s["a"] > 0.17) ^ s["p"]},
    "parity": lambda s: {"p": s["k"] % 2 == 0},
    "turned": lambda s: {"v": 0.5 * s["v"][::-1] * s["a"] + s["v"] * 0.3},
    "long": lambda s: {"w": np.tanh(s["w"] * s["a"]) * 0.9 + 0.1 * s["v"][1]},
    "set": lambda s: {"w": put(s["w"], s["k"] % LONG, s["a"] * s["v"][1])},
    "read": lambda s: {"v": put(s["v"], s["k"] % 3, 0.4 * s["w"][s["k"] % 5] * s["a"])},
    "total": lambda s: {"a": s["a"] + 0.02 * np.sum(s["w"] * s["w"]) / LONG},
    "chosen": lambda s: {"a": np.where(s["p"], s["a"] * 0.9, s["a"] / (1.0 + s["a"] * s["a"]))},
    "root": lambda s: {"a": np.sqrt(0.3 + s["a"] * s["a"]) * 0.8},
    "swap": lambda s: {"v": s["w"][:3] * 0.5, "w": put(s["w"], 0, s["v"][0])},
}
PREDICATES: dict[str, Callable[[State], Any]] = {
    "flag": lambda s: s["p"],
    "sign": lambda s: s["a"] > 0.23,
    "odd": lambda s: s["k"] % 2 == 1,
    "long": lambda s: np.sum(s["w"]) > 0.5,
}


def block(depth: int) -> Any:
    step = st.sampled_from(list(SIMPLE)).map(lambda name: (name,))
    if not depth:
        return st.lists(step, min_size=1, max_size=2)
    inner, predicate = block(depth - 1), st.sampled_from(list(PREDICATES))
    nested = st.one_of(
        st.tuples(st.just("scan"), inner, st.integers(0, 3), st.booleans()),
        st.tuples(st.just("map"), inner, st.integers(1, 3)),
        st.tuples(st.just("fori"), inner, st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("fori, traced"), inner, st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("while"), inner, predicate, st.integers(1, 4)),
        st.tuples(st.just("cond"), inner, inner, predicate),
        st.tuples(st.just("switch"), st.lists(inner, min_size=1, max_size=3), st.integers(0, 2)),
    )
    return st.tuples(st.lists(step, max_size=1), nested, st.lists(step, max_size=2)).map(lambda t: [*t[0], t[1], *t[2]])


def run(L: Any, steps: Any, s: State) -> State:
    for step in steps:
        s = {**s, **(SIMPLE[step[0]](s) if step[0] in SIMPLE else NESTED[step[0]](L, s, *step[1:]))}
    return s


def scan(L: Any, s: State, body: Any, trips: int, reverse: bool) -> State:
    xs = np.arange(1.0, 1.0 + trips) * 0.3, np.arange(trips)

    def step(c: State, x: Any) -> Any:
        c = run(L, body, {**c, "a": c["a"] * x[0], "k": c["k"] + x[1]})
        return c, (c["a"] * x[0], c["k"], c["v"], c["w"])

    s, ys = L.scan(step, s, xs, reverse=reverse)
    if not trips:
        return s
    return {**s, "a": 0.2 * (s["a"] + np.sum(ys[0])), "k": s["k"] + ys[1][0], "v": 0.3 * ys[2][-1] + 0.1 * ys[3][0][:3]}


def mapped(L: Any, s: State, body: Any, rows: int) -> State:
    out = L.map(lambda x: run(L, body, {**s, "a": s["a"] * x, "v": s["v"] + x})["v"], s["w"][:rows])
    return {"v": 0.5 * s["v"] + 0.2 * np.sum(out, axis=0)}


def fori(L: Any, s: State, body: Any, low: int, high: Any) -> State:
    return L.fori_loop(low, high, lambda i, s: run(L, body, {**s, "a": s["a"] * 0.9 + 0.1 * i, "k": s["k"] + i}), s)


def whiles(L: Any, s: State, body: Any, predicate: str, limit: int) -> State:
    test = lambda c: (c[1] < limit + c[0]["k"] % 2) & PREDICATES[predicate](c[0])
    return L.while_loop(test, lambda c: (run(L, body, {**c[0], "a": c[0]["a"] * 1.1}), c[1] + 1), (s, s["k"] * 0))[0]


NESTED: dict[str, Callable[..., State]] = {
    "scan": scan,
    "map": mapped,
    "fori": lambda L, s, body, low, high: fori(L, s, body, low, high),
    "fori, traced": lambda L, s, body, low, n: fori(L, s, body, low, s["k"] % (n + 1)),
    "while": whiles,
    "cond": lambda L, s, yes, no, p: L.cond(PREDICATES[p](s), lambda s: run(L, yes, s), lambda s: run(L, no, s), s),
    "switch": lambda L, s, bodies, low: L.switch(
        s["k"] % 4 - low, [lambda s, body=body: run(L, body, s) for body in bodies], s
    ),
}


def function(L: Any, steps: Any) -> Callable[..., Any]:
    """All results as one vector, of (a, v, k, p)."""

    def f(a: Any, v: Any, k: Any, p: Any) -> Any:
        w = np.sin(np.arange(float(LONG)) * a) + v[0]
        s = run(L, steps, {"a": a, "b": as_float32(a * v[1]), "k": k, "p": p, "v": v, "w": w})
        rest = np.stack([s["a"], s["b"] * 1.0, s["k"] * 1.0, s["p"] * 1.0])
        return np.concatenate([rest, s["v"], s["w"]])

    return f


WEIGHTS = np.cos(np.arange(4.0 + 3 + LONG))
ROWS = [
    (0.7, np.array([0.4, -0.3, 0.9]), 2, True),
    (-0.4, np.array([0.1, 0.8, -0.6]), 5, False),
    (1.1, np.array([-0.7, 0.2, 0.5]), 3, True),
]


def values(row: Any) -> tuple[Any, ...]:
    a, v, k, p = row
    return np.float64(a), v, np.int64(k), np.bool_(p)


def derivatives(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Functions of (a, v, k, p): a vector or a tuple of arrays."""
    loss = lambda *args: np.sum(f(*args) * WEIGHTS)
    slope = fg.grad(loss, (0, 1))
    down = np.array([0.3, -1.0, 0.6])

    def along(g: Any) -> Any:
        return lambda a, v, k, p: fg.jvp(lambda a, v: g(a, v, k, p), (a, v), (1.0 + 0 * a, down + 0 * v))[1]

    turned = lambda *args: (lambda ga, gv: ga + np.sum(gv * down))(*slope(*args))
    return {
        "value": f,
        "reverse": slope,
        "forward": along(f),
        "forward over reverse": along(slope),
        "reverse over reverse": fg.grad(turned, (0, 1)),
        "reverse over forward": fg.grad(lambda *args: np.sum(along(f)(*args) * WEIGHTS), (0, 1)),
    }


def flat(x: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(part)) for part in (x if isinstance(x, tuple) else (x,))])


def flat_rows(x: Any) -> np.ndarray:
    return np.concatenate([np.reshape(np.asarray(q), (len(q), -1)) for q in (x if isinstance(x, tuple) else (x,))], 1)


def check(steps: Any, orders: tuple[str, ...]) -> None:
    ours, theirs = derivatives(function(lax, steps)), derivatives(function(Python, steps))
    points = [values(r) for r in ROWS]
    columns = [np.stack(c) for c in zip(*points, strict=True)]
    # the same k and p for every row: bounds and choices that come from them are not batched
    shared = [(a, v, *points[0][2:]) for a, v, *_ in points]
    for name in orders:
        want = np.stack([flat(theirs[name](*q)) for q in points])
        if name == "value":
            close(flat(ours[name](*points[0])), want[0], (steps, name))
        close(flat(fg.jit(ours[name])(*points[0])), want[0], (steps, name, "jit"))
        close(flat_rows(fg.jit(fg.vmap(ours[name]))(*columns)), want, (steps, name, "jit vmap"))
        if name == "forward over reverse":
            continue
        want = np.stack([flat(theirs[name](*q)) for q in shared])
        got = fg.vmap(ours[name], (0, 0, None, None))(*columns[:2], *points[0][2:])
        close(flat_rows(got), want, (steps, name, "vmap"))


def close(found: Any, want: Any, where: Any) -> None:
    atol = 2e-6 if "single" in repr(where) else 1e-10  # float32 sums in another order
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=atol, err_msg=repr(where))


FIRST = ("value", "reverse", "forward")
ALL = (*FIRST, "forward over reverse", "reverse over reverse", "reverse over forward")


@settings(max_examples=3)
@given(block(3))
def test_values_and_slopes(steps: Any) -> None:
    check(steps, FIRST)


@settings(max_examples=2)
@given(block(2))
def test_curvature(steps: Any) -> None:
    check(steps, ALL)


@pytest.mark.slow
@settings(max_examples=100)
@given(block(3))
def test_many(steps: Any) -> None:
    check(steps, ALL)
