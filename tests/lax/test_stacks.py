"""Derivatives of loops of unknown length, of any order and however nested: one native call, the values of Python loops.

The oracle is the same function written with Python's own loops and branches: nothing of `funcgrad.lax` is in it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.control.assemble import assemble, zero
from funcgrad.control.loop import INDEX, loop, loop_p
from funcgrad.control.rows import add_stacks, element_p, length_p
from funcgrad.core.ir import make_aval, stack_of, subprograms
from funcgrad.core.trace import bind1
from funcgrad.lowering.emit import native_form
from funcgrad.lowering.executable import Executable, executable
from funcgrad.lowering.forms import obstacles
from tests.lax.test_native import interpreted, same

# -- functions, and the same with Python's loops


def power(x: Any) -> Any:
    return np.sum(lax.while_loop(lambda s: s[1] < 4, lambda s: (s[0] * np.sin(s[0]) + x, s[1] + 1), (x, 0))[0])


def power_python(x: Any) -> Any:
    y = x
    for _ in range(4):
        y = y * np.sin(y) + x
    return np.sum(y)


def shrink(x: Any) -> Any:
    return np.sum(lax.while_loop(lambda y: np.sum(y * y) > 1.0, lambda y: y * 0.7 * np.cos(y * x), x) ** 2)


def shrink_python(x: Any) -> Any:
    y = x
    while np.sum(y * y) > 1.0:
        y = y * 0.7 * np.cos(y * x)
    return np.sum(y**2)


def counted(x: Any) -> Any:
    n = 2 + (np.sum(x) > 0)  # traced
    return np.sum(lax.fori_loop(0, n, lambda i, y: y * np.sin(x * y + i), x))


def counted_python(x: Any) -> Any:
    y = x
    for i in range(3):
        y = y * np.sin(x * y + i)
    return np.sum(y)


def varying(x: Any) -> Any:
    """A while loop in a scan, with other numbers of trips in each step, none in one."""

    def step(c: Any, k: Any) -> Any:
        y = lax.while_loop(lambda s: s[1] < k, lambda s: (np.sin(s[0]) * x, s[1] + 1), (c, 0))[0]
        return y + c, y

    c, ys = lax.scan(step, x, np.array([1, 3, 0, 2]))
    return np.sum(c) + np.sum(ys * ys)


def varying_python(x: Any) -> Any:
    c, total = x, 0.0
    for k in (1, 3, 0, 2):
        y = c
        for _ in range(k):
            y = np.sin(y) * x
        c, total = y + c, total + np.sum(y * y)
    return np.sum(c) + total


def nested(x: Any) -> Any:
    def step(s: Any) -> Any:
        y, j = s
        z = lax.while_loop(lambda t: t[1] < j, lambda t: (np.sin(t[0]) * x, t[1] + 1), (y, 0))[0]
        return z + y, j + 1

    return np.sum(lax.while_loop(lambda s: s[1] < 3, step, (x, 0))[0])


def nested_python(x: Any) -> Any:
    y = x
    for j in range(3):
        z = y
        for _ in range(j):
            z = np.sin(z) * x
        y = z + y
    return np.sum(y)


def chosen(x: Any) -> Any:
    """A while loop in a branch in a while loop; the other branch has no loop."""

    def step(s: Any) -> Any:
        y, j = s
        halve = lambda y: lax.while_loop(lambda t: np.sum(t) > 1, lambda t: t * 0.5 * np.cos(t), y)
        return lax.cond(np.sum(y) > 1, halve, lambda y: y * y * 2, y), j + 1

    return np.sum(lax.while_loop(lambda s: s[1] < 3, step, (x, 0))[0])


def chosen_python(x: Any) -> Any:
    y = x
    for _ in range(3):
        if np.sum(y) > 1:
            while np.sum(y) > 1:
                y = y * 0.5 * np.cos(y)
        else:
            y = y * y * 2
    return np.sum(y)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "while": (power, power_python),
    "while with a test of values": (shrink, shrink_python),
    "fori with traced bounds": (counted, counted_python),
    "while in a scan": (varying, varying_python),
    "while in a while": (nested, nested_python),
    "while in a branch in a while": (chosen, chosen_python),
}
POINTS = {"a number": np.float64(1.2), "in registers": np.array([0.5, 1.2, 2.0]), "kernels": np.linspace(0.1, 0.4, 20)}

# -- transforms


def again(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of the gradient."""
    return fg.grad(lambda x: np.sum(fg.grad(f)(x)))


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: np.sum(f(x))


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "first": fg.grad,
    "second": again,
    "third": lambda f: fg.grad(lambda x: np.sum(again(f)(x))),
    "hessian": fg.hessian,
    "forward over reverse": lambda f: fg.jacfwd(fg.jacrev(f)),
    "reverse over reverse": lambda f: fg.jacrev(fg.jacrev(f)),
}
ROWS: dict[str, tuple[Any, Any]] = {  # of the function, and row by row
    "rows of gradients": (lambda f: fg.vmap(fg.grad(f)), fg.grad),
    "rows of second derivatives": (lambda f: fg.vmap(again(f)), again),
    "rows of hessians": (lambda f: fg.vmap(fg.hessian(f)), fg.hessian),
    "gradient of rows": (lambda f: fg.grad(total(fg.vmap(f))), fg.grad),
    "gradient of rows of gradients": (lambda f: fg.grad(total(fg.vmap(fg.grad(f)))), again),
    "second derivative of rows": (lambda f: again(total(fg.vmap(f))), again),
}


def check(f: Callable[..., Any], x: Any, want: Any) -> None:
    """`f` is one native module, and has the value `want`, compiled and eager."""
    compiled = Executable(fg.make_program(f)(x))
    assert obstacles(compiled.program, native_form) == []
    scale = np.max(np.abs(want)) + 1e-300
    np.testing.assert_allclose(fg.jit(f)(x), want, rtol=1e-10, atol=1e-12 * scale)
    np.testing.assert_allclose(f(x), want, rtol=1e-10, atol=1e-12 * scale)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_native_and_those_of_python_loops(name: str, transform: str, point: str) -> None:
    (f, plain), t, x = FUNCTIONS[name], TRANSFORMS[transform], POINTS[point]
    check(t(f), x, t(plain)(x))


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("transform", ROWS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_native_and_those_of_python_loops(name: str, transform: str, point: str) -> None:
    (f, plain), (t, one) = FUNCTIONS[name], ROWS[transform]
    rows = np.stack([POINTS[point] * k for k in (1.0, 0.6, 1.5)])
    check(t(f), rows, np.stack([one(plain)(r) for r in rows]))


def test_all_orders_of_a_root_have_their_closed_form() -> None:
    def root(a: Any) -> Any:
        return lax.while_loop(lambda x: abs(x * x - a) > 1e-15 * a, lambda x: 0.5 * (x + a / x), a)

    a, f = np.array([2.0, 3.0, 7.0]), root
    for order in range(1, 5):
        f = fg.grad(f)
        factor = prod([0.5 - k for k in range(order)])
        check(fg.vmap(f), a, factor * a ** (0.5 - order))


@pytest.mark.parametrize("n", [0, 1, 2, 5, 50])
def test_third_derivatives_of_powers(n: int) -> None:
    f = lambda x, n: lax.fori_loop(0, n, lambda i, y: y * x, 1.0)
    third = fg.jit(fg.grad(fg.grad(fg.grad(f))))
    want = n * (n - 1) * (n - 2) * 1.1 ** max(n - 3, 0)
    assert abs(third(1.1, n) - want) <= 1e-13 * want


def test_eager_derivatives_interpret_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def interpret(*args: Any, **params: Any) -> Any:
        raise AssertionError("a loop ran in Python")

    monkeypatch.setattr(loop_p, "interpret", interpret)
    rows = np.linspace(0.2, 1.5, 7)
    want = [fg.grad(power_python)(x) for x in rows]
    np.testing.assert_allclose(fg.vmap(fg.grad(power))(rows), want, rtol=1e-12)
    np.testing.assert_allclose(fg.grad(fg.jit(power))(rows[2]), want[2], rtol=1e-12)
    y, pull = fg.vjp(fg.vmap(varying), rows)
    np.testing.assert_allclose(pull(np.ones(7))[0], [fg.grad(varying_python)(x) for x in rows], rtol=1e-12)
    assert np.allclose(y, [varying_python(x) for x in rows])


def test_a_stack_crosses_an_operation_without_machine_code() -> None:
    """Between stages stacks are values like others."""
    f = lambda x: np.real(np.sum(np.exp(1j * fg.grad(power)(x))))
    plain = lambda x: np.real(np.sum(np.exp(1j * fg.grad(power_python)(x))))
    for x in POINTS.values():
        np.testing.assert_allclose(fg.jit(fg.grad(f))(x), fg.grad(plain)(x), rtol=1e-11)
    (reason, *_), _ = zip(*obstacles(Executable(fg.make_program(f)(0.5)).program, native_form), strict=True)
    assert reason == "convert of complex128"
    assert [k.kind for k in fg.cost(fg.grad(f), 0.5)].count("loop") == 4


def test_a_function_that_jit_returns_keeps_its_stacks() -> None:
    pull = fg.jit(lambda x: fg.vjp(power, x)[1])
    for x in POINTS.values():
        np.testing.assert_allclose(pull(x)(np.float64(2.0))[0], 2.0 * fg.grad(power)(x), rtol=1e-12)


# -- stacks as carries and as values of stacks


def made(shape: tuple[int, ...]) -> Callable[..., Any]:
    """Stacks that are carried, change places, are handed out whole, and are empty in the beginning."""
    elem = make_aval(shape, np.dtype(float))
    held = stack_of(elem)

    def carry(i: Any, x: Any, s: Any, t: Any) -> list[Any]:
        grow = assemble("grow", [INDEX, elem, INDEX], lambda k, x, i: [x * (k + i)])
        longer = loop(grow, i, [x, i], [], [])[0]
        return [t, add_stacks(s, longer) if shape else add_stacks(longer, s), s, bind1(length_p, t)]

    def f(x: Any, n: Any) -> Any:
        start = loop(assemble("rows", [INDEX, elem], lambda i, x: [x + i]), n, [x], [], [])[0]
        body = assemble("carry", [INDEX, elem, held, held], carry)
        s, t, handed, lengths = loop(body, np.int64(5), [x], [start, zero(held)], [], length=5)
        last = bind1(element_p, bind1(element_p, handed, np.int64(3)), n - 1)
        add = lambda i, total, a, b: [total + a * np.sin(b)]
        sums = assemble("sums", [INDEX, elem, elem, elem], add)
        inner = lambda i, total, q: [loop(sums, bind1(length_p, q), [], [total], [q, q])[0]]
        every = loop(assemble("every", [INDEX, elem, held], inner), np.int64(5), [], [last], [handed], length=5)
        return every[0], loop(sums, n, [], [last], [s, t])[0], lengths

    return f


@pytest.mark.parametrize("shape", [(), (3,), (40,)])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 300])
def test_stacks_that_are_carried(shape: tuple[int, ...], n: int) -> None:
    x = np.linspace(0.3, 0.9, prod(shape)).reshape(shape)[()]
    same(made(shape), x, np.int64(n), tol=1e-11)


def test_a_large_value_of_a_stack() -> None:
    elem = make_aval((40,), np.dtype(float))

    def f(x: Any, n: Any, i: Any) -> Any:
        rows = loop(assemble("rows", [INDEX, elem], lambda i, x: [x + i]), n, [x], [], [])[0]
        return bind1(element_p, rows, i)

    program = fg.make_program(f)(np.zeros(40), np.int64(0), np.int64(0))
    for n, i, want in ((3, 2, 2.0), (3, 3, 0.0), (0, 0, 0.0), (3, -1, 0.0), (3, 2**62, 0.0)):
        (found,) = executable(program)([np.zeros(40), np.int64(n), np.int64(i)])
        assert found.tolist() == [want] * 40


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.float64])
def test_values_of_every_width(dtype: Any) -> None:
    """Stacks as results and as operands of machine code; values of several widths lie in one row."""
    elem, number = make_aval((3,), np.dtype(dtype)), make_aval((), np.dtype(dtype))
    pick = lambda i, x: [x, x[1], x > x[0], x.astype(float)]
    rows = assemble("rows", [INDEX, elem], pick)
    read = assemble("read", [INDEX, number, elem, number], lambda i, c, a, b: [b, a])
    x = np.array([1, 0, 1], dtype)

    def f(x: Any, n: Any) -> Any:
        found = loop(rows, n, [x], [], [])
        return loop(read, n, [], [x[0]], [found[0], found[1]])[0]

    same(f, x, np.int64(9))
    assert interpreted(f, x, np.int64(9))[0] == x[1]


# -- memory


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


def peak_of(f: Callable[[], Any]) -> float:
    """MB that a call needs at most, beyond what was there."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    f()
    (line,) = [s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM")]
    return int(line.split()[1]) / 1024 - before


def chain(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[1] < n, lambda s: (np.sin(s[0]) * x, s[1] + 1), (x, 0))[0]


def kept(f: Callable[..., Any], *args: Any) -> int:
    """Bytes that are kept of each trip of the first loop."""
    program = Executable(fg.make_program(f)(*args)).program
    e = next(e for e in program.equations if e.primitive.name == "loop")
    return sum([a.size * a.dtype.itemsize for a in e.params["body"].out_avals[e.params["carry"] :]])


def test_memory_is_trips_times_what_is_kept() -> None:
    f, trips = fg.grad(chain), 4_000_000
    g = fg.jit(f)
    g(0.5, 10)
    want = trips * kept(f, 0.5, 10) / 2**20
    for _ in range(2):
        assert 0.8 * want <= peak_of(lambda: g(0.5, trips)) <= 1.2 * want
    assert want >= 30


def test_memory_of_loops_in_loops() -> None:
    """Rows of inner loops are kept once, and what an inner loop made is gone after the trip."""

    def f(x: Any, n: Any, k: Any) -> Any:
        return lax.while_loop(lambda s: s[1] < n, lambda s: (chain(s[0] * x, k), s[1] + 1), (x, 0))[0]

    g = fg.jit(fg.grad(f))
    g(0.5, 3, 3)
    n, k = 1000, 2000
    want = n * k * kept(fg.grad(chain), 0.5, 10) / 2**20
    assert peak_of(lambda: g(0.5, n, k)) <= 1.2 * want
    assert peak_of(lambda: fg.jit(f)(0.5, n, k)) < 5


def test_memory_is_given_back_on_every_way_out() -> None:
    table, trips = np.ones(3), 300_000  # 4.8 MB each time

    def f(x: Any, n: Any, bad: Any) -> Any:
        step = lambda s: (np.sin(s[0]) * x * fnp.asarray(table)[np.where(s[1] == bad, 7, 0)], s[1] + 1)
        return lax.while_loop(lambda s: s[1] < n, step, (x, 0))[0]

    g = fg.jit(fg.grad(f))
    eager = fg.vmap(fg.grad(f), (0, None, None))
    rows = np.array([0.5, 0.7])
    g(0.5, 10, -1)
    eager(rows, 10, -1)
    g(0.5, trips, -1)
    before = resident()
    for _ in range(15):
        with pytest.raises(IndexError):
            g(0.5, trips, trips - 1)
        with pytest.raises(MemoryError):
            fg.jit(fg.grad(lambda x, n: lax.fori_loop(0, n, lambda i, y: y * x, 1.0)))(0.5, 2**61)
    for _ in range(4):
        with pytest.raises(IndexError):
            eager(rows, trips, trips - 1)
        eager(rows, trips, -1)
    assert resident() - before < 30


INTERRUPTS = """
import os, subprocess, time
from tests.lax.test_stacks import chain, fg, resident

g = fg.jit(fg.grad(chain))
g(0.5, 10)
before = resident()
for _ in range(3):
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -INT {os.getpid()}"])
    start, ended = time.perf_counter(), False
    try:
        g(0.5, 60_000_000)
        ended = True
    except KeyboardInterrupt:
        pass
    killer.wait()
    assert not ended and time.perf_counter() - start < 30
assert resident() - before < 30, resident() - before
print("given back")
"""


def test_an_interrupt_gives_memory_back() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTS], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "given back\n", done.stderr


@pytest.mark.parametrize("n", [2**58, 2**60, 2**61, 2**62 + 5])
def test_more_trips_than_memory(n: int) -> None:
    g = fg.jit(fg.grad(lambda x, n: lax.fori_loop(0, n, lambda i, y: y * x, 1.0)))
    with pytest.raises(MemoryError, match="no memory for the values that a loop keeps"):
        g(2.0, n)
    assert g(2.0, 10) == 5120.0 and g(2.0, 0) == 0.0 and g(2.0, -5) == 0.0


def test_the_survey_holds_what_it_says() -> None:
    """Nested stacks, stacks of branches, empty ones and lengths all occur above."""
    kinds: set[str] = set()

    def visit(p: Any) -> None:
        for e in p.equations:
            kinds.add(e.primitive.traits.kind)
            for _, q in subprograms(e):
                visit(q)

    for name in FUNCTIONS:
        for t in (TRANSFORMS["third"], ROWS["rows of hessians"][0]):
            x = POINTS["in registers"]
            visit(
                Executable(fg.make_program(t(FUNCTIONS[name][0]))(x if t is TRANSFORMS["third"] else x[None])).program
            )
    assert kinds >= {"loop", "branch", "stack_length", "stack_empty", "stack_element"}
