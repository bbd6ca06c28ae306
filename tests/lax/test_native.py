"""Loops and branches as machine code: one native module, and the values of evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import Literal
from funcgrad.core.trace import eagerly
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.registers.kinds import fits
from funcgrad.lowering.stages import is_native

A = np.random.default_rng(0).normal(size=(50, 50))
X = np.ones(50)
ROWS = np.stack([X, 2 * X, 3 * X])
TABLE = np.random.default_rng(1).normal(size=(20, 30))


def read(env: Any, atom: Any) -> Any:
    return atom.array if isinstance(atom, Literal) else env[atom]


def interpreted(f: Callable[..., Any], *args: Any) -> list[Any]:
    """The results with every equation evaluated, loops by Python."""
    program = fg.make_program(f)(*args)

    def run(p: Any, values: Any) -> list[Any]:
        env = dict(zip(p.inputs, values, strict=True))
        for e in p.equations:
            evaluate = e.primitive.interpret or e.primitive.evaluate
            env.update(zip(e.outputs, evaluate(*[read(env, a) for a in e.inputs], **e.params), strict=True))
        return [read(env, a) for a in p.outputs]

    with eagerly():
        return run(program, list(args))


def same(f: Callable[..., Any], *args: Any, native: bool = True, tol: float = 1e-12) -> None:
    program = fg.make_program(f)(*args)
    compiled = Executable(program)
    assert is_native(compiled.program) == native
    with eagerly():
        found = compiled(list(args))
    for a, b in zip(found, interpreted(f, *args), strict=True):
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def matrices(a: Any, x: Any) -> Any:
    return lax.scan(lambda x, _: (np.tanh(a @ x), x.sum()), x, None, length=5)


def shrink(a: Any, x: Any) -> Any:
    return lax.while_loop(lambda x: np.sum(x**2) > 1e-3, lambda x: np.tanh(a @ x) * 0.3, x)


def rows(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, r: (c + np.sum(r * w), np.exp(-r * w)), 0.0, x)


def recurrence(a: Any, n: int) -> Any:
    x = fnp.zeros(n).at[0].set(a)
    x = lax.fori_loop(1, n, lambda i, x: x.at[i].set(np.sin(x[i - 1]) * 1.2), x)
    return x.sum()


def rows_of_a_carry(x: Any) -> Any:
    """The results of the inner loop are a new array, not the carry that it reads."""
    return lax.fori_loop(0, 3, lambda i, w: lax.scan(lambda c, r: (c + r, c * r), 1.0, w)[1], x)


def nested_rows(x: Any, p: Any) -> Any:
    """A scan without xs hands out more than registers hold, in a branch."""
    steps = lambda x: lax.scan(lambda c, _: (c * 1.5, c * x[:7]), x[0], None, length=3)[1].sum()
    return lax.cond(p > 0, steps, lambda x: x[1], x)


def choice(x: Any, p: Any) -> Any:
    return lax.cond(p > 0, lambda x: np.sin(x) * 2, lambda x: x - 1, x)


def mixed(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        branches = [np.sin, lambda y: y * x, lambda y: lax.while_loop(lambda z: z < 5.0, lambda z: z * 1.5 + x, abs(y))]
        return lax.switch(i % 3, branches, y)

    return lax.fori_loop(0, 7, step, x)


def collatz(s: Any) -> Any:
    return np.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matrices": (matrices, (A, X)),
    "matrices, gradient": (fg.grad(lambda a, x: matrices(a, x)[1].sum()), (A, X)),
    "matrices, second derivative": (
        lambda a, x: fg.hvp(lambda x: matrices(a, x)[1].sum(), (x,), (x,)), (A, X)),
    "matrices, rows": (fg.vmap(matrices, (None, 0)), (A, ROWS)),
    "while with vectors": (shrink, (A * 0.1, X)),
    "while with vectors, gradient": (fg.grad(lambda a, x: shrink(a, x).sum()), (A * 0.1, X)),
    "rows": (rows, (TABLE, np.ones(30))),
    "rows, gradient": (fg.grad(lambda x, w: rows(x, w)[0] + np.sum(rows(x, w)[1]), (0, 1)), (TABLE, np.ones(30))),
    "map": (lambda x: lax.map(lambda r: np.sum(np.sin(r)), x), (TABLE,)),
    "choice": (choice, (X, np.float64(1))),
    "choice, gradient": (fg.grad(lambda x, p: choice(x, p).sum()), (X, np.float64(-1))),
    "choice, rows": (fg.vmap(choice), (ROWS, np.array([1.0, -1.0, 2.0]))),
    "recurrence": (lambda a: recurrence(a, 40), (np.float64(0.5),)),
    "recurrence, gradient": (fg.grad(lambda a: recurrence(a, 40)), (np.float64(0.5),)),
    "recurrence, rows": (fg.vmap(fg.grad(lambda a: recurrence(a, 40))), (np.array([0.1, 0.5]),)),
    "rows of a carry": (rows_of_a_carry, (np.linspace(0, 1, 40),)),
    "rows of a carry, gradient": (fg.grad(lambda x: rows_of_a_carry(x).sum()), (np.linspace(0, 1, 40),)),
    "rows in a branch": (nested_rows, (X, np.float64(1))),
    "mixed": (mixed, (np.float64(1.3),)),
    "mixed, gradient": (fg.grad(mixed), (np.float64(1.3),)),
    "mixed, rows": (fg.vmap(mixed), (np.array([1.3, 0.7, 2.0]),)),
    "mixed, gradients of rows": (fg.vmap(fg.grad(mixed)), (np.array([1.3, 0.7, 2.0]),)),
    "a table read by index": (lambda x: lax.fori_loop(0, 5, lambda i, s: s + x[i % 3] * i, 0.0), (X,)),
    "integers and bools": (
        lambda n: lax.while_loop(lambda s: s[0] != 1, collatz, (n, 0)),
        (np.int64(27),)),
    "float32": (lambda x: lax.scan(lambda c, r: (c * r, c > r), np.float32(2), x), (np.linspace(0, 2, 9, dtype="f4"),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_native_module_and_the_same_values(name: str) -> None:
    f, args = CASES[name]
    same(f, *args)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 31, 32, 33, 100])
def test_rows_side_by_side(n: int) -> None:
    def root(a: Any) -> Any:
        return lax.while_loop(lambda x: abs(x * x - a) > 1e-12 * a, lambda x: 0.5 * (x + a / x), a)

    a = np.random.default_rng(n).uniform(0.1, 1e6, n)
    same(fg.vmap(root), a)
    np.testing.assert_allclose(fg.jit(fg.vmap(root))(a), np.sqrt(a), rtol=1e-12)
    f32 = lambda a: lax.fori_loop(0, 20, lambda i, x: np.float32(0.5) * (x + a / x), a)
    same(fg.vmap(f32), a.astype("f4"), tol=1e-6)
    pairs = lambda v: lax.while_loop(lambda v: v.sum() < 10, lambda v: v * 2 + v[::-1], v)
    same(fg.vmap(pairs), np.abs(np.random.default_rng(n).normal(size=(n, 2))) + 0.1)


def test_a_row_that_is_done_stays_while_others_go_on() -> None:
    f = lambda a: lax.while_loop(lambda s: s[1] < a, lambda s: (s[0] / (s[1] - 2.0), s[1] + 1.0), (1.0, 0.0))[0]
    with np.errstate(all="ignore"):
        found = fg.jit(fg.vmap(f))(np.array([1.0, 2.0, 2.5, 0.0, 5.0]))
    assert found.tolist()[:2] == [-0.5, 0.5] and np.isinf(found[2]) and found[3] == 1.0 and np.isinf(found[4])


def test_threads_share_a_program_with_growing_buffers() -> None:
    from concurrent.futures import ThreadPoolExecutor

    f = fg.jit(
        fg.grad(lambda a: lax.while_loop(lambda s: s[1] < 200, lambda s: (np.sin(s[0]) * a, s[1] + 1), (a, 0))[0])
    )
    points = np.linspace(0.5, 1.5, 64)
    want = [float(f(p)) for p in points]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda p: float(f(p)), points.tolist() * 10))
    assert found == want * 10


def test_functions_that_share_steps_in_loops_and_branches() -> None:
    """What sine and cosine have in common is emitted once where both are, and nowhere that it might not have run."""

    def f(x: Any, p: Any) -> Any:
        y = lax.cond(p > 0, np.sin, lambda x: x, x)  # the steps of sin x stand in a block of their own
        z = lax.fori_loop(0, 3, lambda i, z: z + np.cos(x) * np.sin(z) + np.sin(2.0), y)
        return (
            np.cos(x) + np.tan(x) + z + np.cos(2.0) * lax.while_loop(lambda v: v < 2, lambda v: v + np.cos(v) ** 2, z)
        )

    for p in (1.0, -1.0):
        same(f, np.float64(0.7), np.float64(p))
        same(fg.grad(f), np.float64(0.7), np.float64(p))
    same(fg.vmap(f), np.linspace(0.1, 1.2, 13), np.resize([1.0, -1.0], 13))
    x = np.linspace(-30, 30, 1000)
    same(lambda x: np.sum(np.sin(x) * np.cos(x)) + np.sum(np.tan(x) + np.sin(2.0)) * np.cos(2.0), x)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8, np.bool_])
def test_a_large_constant_is_changed_in_place(dtype: Any) -> None:
    start = np.ones(100, dtype)
    f = lambda k: lax.fori_loop(0, 5, lambda i, x: x.at[k * i].set(x[i] * 0), fnp.ones(100, dtype))
    want = start.copy()
    for i in range(5):
        want[3 * i] = want[i] * 0
    np.testing.assert_array_equal(fg.jit(f)(3), want)
    same(f, np.int64(3))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_all_derivatives_of_a_recurrence_change_arrays_in_place(order: int) -> None:
    f = lambda a: recurrence(a, 100)
    for _ in range(order):
        f = fg.grad(f)
    loops = [e for e in Executable(fg.make_program(f)(0.5)).program.equations if e.primitive.name == "loop"]
    assert loops and all([fits(e) for e in loops])


def test_the_old_value_is_read_before_and_after_a_change() -> None:
    def step(i: Any, s: Any) -> Any:
        x, total = s
        y = x.at[i].set(2.0)
        return y, total + x[i] + 10.0 * y[i]  # x[i] may be read first, but is the old one

    x, total = fg.jit(lambda x: lax.fori_loop(0, 3, step, (x, 0.0)))(np.arange(40.0))
    assert total == 0.0 + 1.0 + 2.0 + 60.0 and x[:4].tolist() == [2.0, 2.0, 2.0, 3.0]


def test_a_long_loop_lets_other_threads_run() -> None:
    """While one thread is in a loop of a second or so, another one counts."""
    import threading
    import time

    loop = fg.jit(lambda x, n: fg.lax.fori_loop(0, n, lambda i, y: np.sin(y) + 1e-9 * i, x))
    loop(0.5, 10)
    counted, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.05)
    before = counted[0]
    loop(0.5, 50_000_000)
    during = counted[0] - before
    done.set()
    thread.join()
    assert during >= 20
