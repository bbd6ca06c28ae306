"""Foreign calls: what Numba compiled and what Python does, called by machine code, in loops and branches too."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors, lax
from funcgrad.lowering import executable
from funcgrad.lowering.entry_layout import DAMAGED
from funcgrad.lowering.registers.control import OUT_OF_MEMORY

os.environ.setdefault("NUMBA_OPT", "0")
numba = pytest.importorskip("numba")
SCALAR = fg.ShapeDtypeStruct((), float)
REPO = Path(__file__).resolve().parents[2]


@numba.njit
def root(x: Any) -> Any:
    if x < 0:
        raise ValueError("negative", x)
    return math.sqrt(x)


@numba.njit
def running(x: Any, n: Any) -> Any:
    """Writes into its argument, and hands it back."""
    for i in range(1, x.size):
        x[i] += x[i - 1]
    return x, n + 1


@numba.njit
def smooth(x: Any) -> Any:
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = 0.5 * (x[i] + x[i - 1])
    return out


from_root = fg.from_numba(root, SCALAR, jvp=lambda p, t: (from_root(*p), 0.5 * t[0] / from_root(*p)))
from_running = fg.from_numba(running, lambda x, n: (x, n))
from_smooth = fg.from_numba(smooth, lambda x: x)


def whole(f: Callable[..., Any], *args: Any) -> Any:
    """`f` compiled, which has to be one piece of machine code."""
    g = fg.jit(f)
    native = executable(g.trace(*args)).whole()
    assert native is not None
    return g, native


def callback(f: Callable[..., Any], result: Any = SCALAR) -> Callable[..., Any]:
    return lambda *args: fg.pure_callback(f, result, *args)


# -- what Numba compiled


def test_a_numba_function_is_called_by_machine_code() -> None:
    g, native = whole(lambda x: from_root(x + 1.0) * 2.0, 3.0)
    assert [t.compiled for t in native.foreign] == [True]
    assert [g(3.0), g(3.0), g(8.0)] == [4.0, 4.0, 6.0]
    for order, expected in enumerate([2.0, 0.25, -1 / 32, 3 / 256]):
        f = from_root
        for _ in range(order):
            f = fg.grad(f)
        g, native = whole(f, 4.0)
        assert all(t.compiled for t in native.foreign)
        assert g(4.0) == g(4.0) == fg.jit(fg.jit(f))(4.0) == expected
        np.testing.assert_allclose(fg.jit(fg.vmap(f))(np.array([4.0, 4.0])), [expected] * 2, rtol=1e-15)


def test_arguments_stay_as_they_are() -> None:
    captured = np.array([1.0, 2.0, 4.0])
    x = np.arange(6.0).reshape(2, 3)
    f = lambda x: (from_running(x[0], 1), from_running(captured, 2), from_running(x[:, 1:][0], 3), x)
    g, _ = whole(f, x[0:1])
    for _ in range(2):
        (a, n), (b, m), (c, k), same = g(x[0:1])
        np.testing.assert_array_equal(a, [0.0, 1.0, 3.0])
        np.testing.assert_array_equal(b, [1.0, 3.0, 7.0])
        np.testing.assert_array_equal(c, [1.0, 3.0])
        assert (n, m, k) == (2, 3, 4)
        np.testing.assert_array_equal(same, [[0.0, 1.0, 2.0]])
    np.testing.assert_array_equal(captured, [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(x, np.arange(6.0).reshape(2, 3))


def test_rows_that_share_an_argument() -> None:
    x, n = np.arange(6.0).reshape(2, 3), np.array([1, 2])
    outer = lambda x, n: fg.vmap(fg.vmap(from_running, (None, 0)), (0, None))(x, n)
    g, native = whole(outer, x, n)
    assert [t.compiled for t in native.foreign] == [True]
    sums, counts = g(x, n)
    assert sums.shape == (2, 2, 3)
    for i in range(2):
        for j in range(2):
            np.testing.assert_array_equal(sums[i, j], np.cumsum(x[i]))
            assert counts[i, j] == n[j] + 1
    turned = fg.jit(fg.vmap(from_running, (1, None)))(x, 1)[0]
    np.testing.assert_array_equal(turned, np.cumsum(x, axis=0).T)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint64", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,), (2, 0)])
def test_types(dtype: str, shape: tuple[int, ...]) -> None:
    @numba.njit
    def same(x: Any) -> Any:
        return x

    g, native = whole(fg.from_numba(same, lambda x: x), np.ones(shape, dtype))
    assert native.foreign[0].compiled
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    for _ in range(2):
        y = g(x)
        assert y.dtype == x.dtype and y.shape == shape
        np.testing.assert_array_equal(y, x)


def test_numbers_are_converted_as_python_does() -> None:
    @numba.njit
    def count(x: Any) -> Any:
        return x.size

    for dtype, compiled in [(np.float64, True), (np.float32, True), (np.int8, False)]:
        declared = fg.ShapeDtypeStruct((), dtype)
        g, native = whole(fg.from_numba(count, declared), np.ones(3))
        assert native.foreign[0].compiled == compiled
        found = g(np.ones(3))
        assert found == 3 and found.dtype == declared.dtype
    with pytest.raises(errors.CallbackError, match="count returns 300 as result, declared is i8"):
        fg.jit(fg.from_numba(count, fg.ShapeDtypeStruct((), np.int8)))(np.ones(300))


def test_trees_of_arguments_and_results() -> None:
    @numba.njit
    def swap(pair: Any, scale: Any) -> Any:
        return pair[1] * scale, (pair[0], scale)

    declared = lambda pair, scale: (pair[1], (pair[0], scale))
    g, native = whole(fg.from_numba(swap, declared), (np.ones(2), np.ones(3)), 2.0)
    assert native.foreign[0].compiled
    a, (b, c) = g((np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])), 2.0)
    assert a.tolist() == [2.0, 4.0, 6.0] and b.tolist() == [1.0, 2.0] and c == 2.0
    g, native = whole(lambda x: fg.from_numba(swap, (x, x))((x, x), 2.0), np.ones(2))
    assert not native.foreign[0].compiled  # another tree than declared: Python says so
    with pytest.raises(errors.CallbackError, match="result of swap"):
        g(np.ones(2))


def test_a_result_of_another_shape() -> None:
    g, native = whole(fg.from_numba(smooth, fg.ShapeDtypeStruct((2,), float)), np.ones(3))
    assert native.foreign[0].compiled
    with pytest.raises(errors.CallbackError, match=r"smooth returns f64\[3\] as result, declared is f64\[2\]") as info:
        g(np.ones(3))
    assert "test_foreign.py" in str(info.value)


def test_c_functions_are_called_directly() -> None:
    @numba.cfunc("float64(float64, int64)")
    def scaled(x: Any, n: Any) -> Any:
        return x * n

    g, native = whole(fg.from_numba(scaled, SCALAR), 1.5, 2)
    assert native.foreign[0].compiled and g(1.5, 2) == 3.0
    assert fg.jit(lambda x: lax.fori_loop(0, 4, lambda i, y: fg.from_numba(scaled, SCALAR)(y, i + 1), x))(1.0) == 24.0
    g, native = whole(fg.from_numba(scaled, SCALAR), 1.5, 2.0)
    assert not native.foreign[0].compiled  # a float is no int64, and ctypes says so
    with pytest.raises(ctypes.ArgumentError, match="argument 2"):
        g(1.5, 2.0)


# -- in loops and branches


def by_hand(x: float, trips: int) -> float:
    for i in range(trips):
        x = math.sqrt(x + i)
    return x


def test_numba_functions_in_loops() -> None:
    f = lambda x: lax.fori_loop(0, 20, lambda i, y: from_root(y + i), x)
    g, _ = whole(f, 3.0)
    assert g(3.0) == g(3.0) == by_hand(3.0, 20)
    np.testing.assert_allclose(fg.jit(fg.vmap(f))(np.array([3.0, 5.0])), [by_hand(3.0, 20), by_hand(5.0, 20)])
    slope = lambda x: (by_hand(x + 1e-6, 3) - by_hand(x - 1e-6, 3)) / 2e-6
    h = lambda x: lax.fori_loop(0, 3, lambda i, y: from_root(y + i), x)
    for wrap in (lambda g: g, fg.jit):
        np.testing.assert_allclose(wrap(fg.grad(h))(3.0), slope(3.0), rtol=1e-8)
        np.testing.assert_allclose(wrap(fg.vmap(fg.grad(h)))(np.array([3.0, 5.0])), [slope(3.0), slope(5.0)], rtol=1e-8)


@pytest.mark.parametrize("n", [3, 100])
def test_arrays_in_loops(n: int) -> None:
    """In registers, and as kernels."""

    def f(x: Any) -> Any:
        def step(y: Any, i: Any) -> Any:
            z = from_smooth(y * 2.0)
            sums, k = from_running(z, i)
            return z, (sums[-1], k)

        return lax.scan(step, x, np.arange(4))

    g, native = whole(f, np.ones(n))
    assert all(t.compiled for t in native.foreign)
    x = np.random.default_rng(0).normal(size=n)
    y, totals = x, []
    for _ in range(4):
        y = 0.5 * (2 * y + 2 * np.roll(y, 1))
        totals.append(np.cumsum(y)[-1])
    for _ in range(2):
        z, (sums, counts) = g(x)
        np.testing.assert_allclose(z, y, rtol=1e-14)
        np.testing.assert_allclose(sums, totals, rtol=1e-11, atol=1e-12)
        np.testing.assert_array_equal(counts, [1, 2, 3, 4])


def test_rows_loop_as_often_as_each_needs() -> None:
    def f(x: Any) -> Any:
        return lax.while_loop(lambda y: y > 2.0, lambda y: from_root(y), x)

    x = np.array([1.0, 16.0, 100.0, 2.5, 1e9])
    expected = []
    for v in x:
        while v > 2.0:
            v = math.sqrt(v)
        expected.append(v)
    g, _ = whole(fg.vmap(f), x)
    assert g(x).tolist() == expected


def test_only_the_branch_that_is_taken() -> None:
    f = lambda x: lax.cond(x < 0, lambda x: -x, lambda x: from_root(x), x)
    g, _ = whole(f, 4.0)
    assert [g(4.0), g(-3.0)] == [2.0, 3.0]
    h, _ = whole(fg.vmap(f), np.ones(3))
    assert h(np.array([4.0, -3.0, 9.0])).tolist() == [2.0, 3.0, 3.0]


def test_effects_in_branches_of_both_kinds() -> None:
    for n in (2, 60):
        seen: list[str] = []
        note = lambda tag, seen=seen: lambda v: seen.append(tag)

        def f(k: Any, x: Any, note: Any = note) -> Any:
            def branch(tag: str, scale: float) -> Any:
                def run(x: Any) -> Any:
                    fg.debug.callback(note(tag), x)
                    return from_smooth(x * scale)

                return run

            step = lambda i, y: lax.switch(k + i, [branch("a", 1.0), branch("b", 2.0), branch("c", 3.0)], y)
            return lax.fori_loop(0, 3, step, x)

        g, _ = whole(f, 0, np.ones(n))
        for k, expected in [(0, "abc"), (1, "bcc"), (-5, "aaa")]:
            seen.clear()
            factor = np.prod([{"a": 1.0, "b": 2.0, "c": 3.0}[letter] for letter in expected])
            np.testing.assert_array_equal(g(k, np.ones(n)), np.full(n, factor))
            assert "".join(seen) == expected


def test_callbacks_in_loops_of_both_kinds() -> None:
    for n in (2, 60):
        seen: list[Any] = []

        def f(x: Any, seen: Any = seen) -> Any:
            def step(i: Any, y: Any) -> Any:
                fg.debug.callback(lambda k, v: seen.append((int(k), v.copy())), i, y)
                y = fg.pure_callback(lambda v: v[::-1], y, y)
                fg.debug.callback(lambda k: seen.append(int(k)), 10 * i)
                return y + 1.0

            return lax.fori_loop(0, 3, step, x)

        g, _ = whole(f, np.ones(n))
        x = np.arange(float(n))
        for _ in range(2):
            seen.clear()
            np.testing.assert_array_equal(g(x), x[::-1] + 3.0)
            assert [s if isinstance(s, int) else s[0] for s in seen] == [0, 0, 1, 10, 2, 20]
            np.testing.assert_array_equal(seen[2][1], x[::-1] + 1.0)


# -- effects and errors


def test_effects_are_in_order_with_what_raises() -> None:
    seen: list[Any] = []
    note = lambda tag: lambda *x: seen.append(tag)

    def f(x: Any, i: Any) -> Any:
        fg.debug.callback(note("a"), x)
        y = x[i]  # raises if it is out of range
        fg.debug.callback(note("b"))
        z = lax.fori_loop(0, 2, lambda k, v: v + x[i + k], y)
        fg.debug.callback(note("c"))
        return z

    g, _ = whole(f, np.ones(4), 0)
    for index, expected in [(1, ["a", "b", "c"]), (4, ["a"]), (3, ["a", "b"])]:
        for _ in range(2):
            seen.clear()
            if expected == ["a", "b", "c"]:
                assert g(np.arange(4.0), index) == 1.0 + 1.0 + 2.0
            else:
                with pytest.raises(IndexError):
                    g(np.arange(4.0), index)
            assert seen == expected


def test_many_effects_stay_in_order() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        for k in range(40):
            fg.debug.callback(lambda v, k=k: seen.append(k), np.sin(x) if k % 3 else np.sum(x))
            if k % 5 == 0:
                lax.fori_loop(0, 2, lambda i, v, k=k: fg.io_callback(lambda v, k=k: (seen.append(k), v)[1], v, v), x)
        return x

    g, _ = whole(f, np.ones(3))
    g(np.ones(3))
    assert seen == [j for k in range(40) for j in ([k] * 3 if k % 5 == 0 else [k])]


def test_exceptions_of_numba_functions_are_the_users() -> None:
    g, native = whole(lambda x: lax.fori_loop(0, 5, lambda i, y: from_root(y) - 1.0, x), 9.0)
    assert native.foreign[0].compiled
    for _ in range(3):
        with pytest.raises(ValueError, match="negative") as info:
            g(9.0)
        assert type(info.value) is ValueError
        assert info.value.args == ("negative", math.sqrt(math.sqrt(2.0) - 1.0) - 1.0)
        assert 'raise ValueError("negative", x)' in "".join(traceback.format_exception(info.value))
    assert g(1e300) > 0

    @numba.njit
    def divided(x: Any) -> Any:
        return 1 // x

    with pytest.raises(ZeroDivisionError):
        fg.jit(fg.from_numba(divided, lambda x: x))(0)


def test_exceptions_of_callbacks_are_the_users() -> None:
    raised: list[Exception] = []

    class Mine(LookupError):
        """Can be referred to weakly."""

    def host(i: Any, x: Any) -> Any:
        if i == 3:
            raised.append(Mine("at three", i))
            raise raised[-1]
        return x

    for n in (2, 60):
        f = lambda x: lax.fori_loop(0, 9, lambda i, y: fg.pure_callback(host, y, i, y), x)
        g, _ = whole(f, np.ones(n))
        for _ in range(3):
            with pytest.raises(Mine) as info:
                g(np.ones(n))
            assert info.value is raised[-1] and info.value.args[0] == "at three"
            kept = weakref.ref(raised.pop())
            del info
            gc.collect()
            assert kept() is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, RecursionError])
def test_every_kind_of_exception(kind: type[BaseException]) -> None:
    def host(x: Any) -> Any:
        raise kind("stop")

    g = fg.jit(lambda x: lax.fori_loop(0, 3, lambda i, y: fg.pure_callback(host, y, y), x))
    for _ in range(2):
        with pytest.raises(kind, match="stop"):
            g(1.0)


def test_an_error_of_ours_in_a_callback_in_a_loop() -> None:
    g = fg.jit(lambda x: lax.fori_loop(0, 3, lambda i, y: fg.pure_callback(lambda v: v[:1], y, y), x))
    with pytest.raises(errors.CallbackError, match=r"returns f64\[1\] as result, declared is f64\[2\]") as info:
        g(np.ones(2))
    assert "test_foreign.py" in str(info.value)


def test_growing_buffers_are_freed_when_a_callback_raises() -> None:
    def host(x: Any) -> Any:
        if x > 100:
            raise OverflowError
        return x * 2

    def f(x: Any) -> Any:
        step = lambda y: np.sin(y) * 0 + fg.io_callback(host, SCALAR, fg.stop_gradient(y))
        return lax.while_loop(lambda y: y < 1e9, step, x)

    g = fg.jit(fg.grad(f))
    for _ in range(50):
        with pytest.raises(OverflowError):
            g(1.0)


@pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="no signals")
def test_ctrl_c_in_a_callback_in_a_loop() -> None:
    seen: list[int] = []

    def host(i: Any) -> None:
        seen.append(int(i))
        if i == 2:
            signal.raise_signal(signal.SIGINT)

    g = fg.jit(lambda n: lax.fori_loop(0, n, lambda i, y: (fg.debug.callback(host, i), y)[1], n))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            g(10**9)
        assert seen == [0, 1, 2]
        seen.clear()
    assert g(2) == 2 and seen == [0, 1]


@pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="no signals")
@pytest.mark.parametrize("n", [1, 60])
def test_ctrl_c_between_calls_of_numba_functions(n: int) -> None:
    as_pointer, trips = _pointer_intrinsic(), np.zeros(1)

    @numba.njit
    def slow(x: Any, address: Any) -> Any:
        numba.carray(as_pointer(address), (1,), np.float64)[0] += 1.0
        for _ in range(5_000_000):
            x[0] = math.sin(x[0])
        return x

    f = fg.from_numba(slow, lambda x, a: x)
    g, _ = whole(lambda x, a: lax.fori_loop(0, 900, lambda i, y: f(y, a), x), np.ones(n), 1)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        g(np.ones(n), trips.ctypes.data)
    timer.join()
    assert trips[0] < 900


# -- threads, re-entrancy, lifetimes


def test_a_callback_calls_its_own_caller() -> None:
    @fg.jit
    def factorial(n: Any) -> Any:
        inner = lambda n: fg.pure_callback(lambda m: factorial(m - 1.0), n, n)
        return lax.cond(n > 1.0, lambda n: n * inner(n) + np.sum(np.ones(40) * n) * 0.0, lambda n: n, n)

    assert factorial(1.0) == 1.0
    for _ in range(2):
        assert factorial(10.0) == math.factorial(10)

    @fg.jit
    def endless(n: Any) -> Any:
        return fg.pure_callback(lambda m: endless(m + 1.0), n, n) * 2.0

    with pytest.raises(RecursionError):
        endless(1.0)

    @fg.jit
    def deep(n: Any) -> Any:
        def host(m: Any) -> Any:
            if m == 0:
                raise LookupError("bottom")
            return deep(m - 1.0)

        return fg.pure_callback(host, n, n)

    for _ in range(2):
        with pytest.raises(LookupError, match="bottom"):
            deep(5.0)


def test_threads() -> None:
    numbers = fg.jit(lambda x: lax.fori_loop(0, 200, lambda i, y: from_root(y + i), x))
    large = fg.jit(lambda x: lax.fori_loop(0, 5, lambda i, y: from_smooth(fg.pure_callback(np.negative, y, y)), x))
    failing = fg.jit(lambda x: lax.fori_loop(0, 9, lambda i, y: from_root(y - 1.0), x))

    def host(i: Any, who: Any) -> Any:
        if i == 7:
            raise LookupError(int(who))
        return who

    python = fg.jit(lambda k: lax.fori_loop(0, 9, lambda i, y: fg.pure_callback(host, y, i, y), k))

    def work(k: int) -> None:
        x = np.full(50, float(k))
        x[::2] *= -1
        y = x
        for _ in range(5):
            y = 0.5 * (-y - np.roll(y, 1))
        for _ in range(10):
            assert numbers(float(k)) == by_hand(float(k), 200)
            np.testing.assert_array_equal(large(x), y)
            with pytest.raises(LookupError) as info:
                python(k)
            assert info.value.args == (k,)
            with pytest.raises(ValueError, match="negative") as other:
                failing(k + 0.5)
            v = k + 0.5
            while v - 1.0 >= 0:
                v = math.sqrt(v - 1.0)
            assert other.value.args == ("negative", v - 1.0)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_other_threads_run_while_a_numba_function_does() -> None:
    flag = np.zeros(1)

    @numba.njit
    def wait(x: Any, address: Any) -> Any:
        shared = numba.carray(as_pointer(address), (1,), np.float64)
        n = 0
        while shared[0] == 0.0 and n < 10**11:
            n += 1
        return x

    as_pointer = _pointer_intrinsic()
    f = fg.from_numba(wait, lambda x, a: x)
    g = fg.jit(f)
    flag[0] = 1.0
    g(1.0, flag.ctypes.data), g(1.0, flag.ctypes.data)
    flag[0] = 0.0

    def release() -> None:
        flag[0] = 1.0

    timer = threading.Timer(0.2, release)
    timer.start()
    assert g(3.0, flag.ctypes.data) == 3.0
    timer.join()


def _pointer_intrinsic() -> Any:
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic
    def as_pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.voidptr(types.int64), codegen

    return as_pointer


def test_functions_go_when_nobody_needs_them() -> None:
    class Host:
        def __call__(self, x: Any) -> Any:
            return x

    def made() -> weakref.ref[Host]:
        host = Host()
        g = fg.jit(lambda x: fg.pure_callback(host, x, x) + 1.0)
        assert g(3.0) == g(3.0) == 4.0
        return weakref.ref(host)

    kept = made()
    for _ in range(2):  # the key of a weak dictionary goes when its value has gone
        gc.collect()
    assert kept() is None


def test_a_function_outlives_the_one_that_made_it() -> None:
    def make(k: float) -> Any:
        @numba.njit
        def plus(x: Any) -> Any:
            return x + k

        double = lambda v: v * k
        return fg.jit(lambda x: fg.pure_callback(double, x, fg.from_numba(plus, lambda x: x)(x)))

    functions = [make(float(k)) for k in range(4)]
    gc.collect()
    for _ in range(2):
        assert [f(1.0) for f in functions] == [0.0, 2.0, 6.0, 12.0]


def test_clear_cache_while_it_runs() -> None:
    calls: list[int] = []

    def host(x: Any) -> Any:
        calls.append(1)
        g.clear_cache()
        gc.collect()
        return x + 1.0

    g = fg.jit(lambda x: lax.fori_loop(0, 3, lambda i, y: fg.pure_callback(host, y, y), x) * np.ones(30))
    for _ in range(3):
        np.testing.assert_array_equal(g(1.0), np.full(30, 4.0))
    assert len(calls) == 9


def test_a_second_process_takes_code_from_disk(tmp_path: Path) -> None:
    code = """
import sys, numpy as np, numba
padding = [object() for _ in range(int(sys.argv[1]))]
import funcgrad as fg
from funcgrad import lax
from funcgrad.lowering import machine

@numba.njit
def twice(x):
    if x > 50.0:
        raise ValueError("large")
    return 2.0 * x

f = fg.from_numba(twice, fg.ShapeDtypeStruct((), float))
made = []
original = machine.compile_object
executable = sys.modules["funcgrad.lowering.executable"]
executable.compile_object = lambda *a: made.append(1) or original(*a)
g = fg.jit(lambda x: lax.fori_loop(0, 3, lambda i, y: fg.pure_callback(lambda v: v + 1.0, y, f(y)), x))
print(g(1.0), g(2.0), len(made))
try:
    g(40.0)
except ValueError as error:
    print(error)
"""
    environment = {**os.environ, "FUNCGRAD_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(REPO)}
    found = []
    for padding in ("0", "100000"):
        command = [sys.executable, "-c", code, padding]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        found.append(run.stdout.split("\n"))
    assert found[0][:2] == ["15.0 23.0 1", "large"]
    assert found[1][:2] == ["15.0 23.0 0", "large"]


# -- operations of the user's


def test_an_operation_that_numba_compiled() -> None:
    @fg.extend.op
    @numba.njit
    def power(x: Any, n: Any) -> Any:
        if n < 0:
            raise ValueError("negative power")
        return x**n

    power.def_shape(lambda x, n: x)
    power.def_jvp(lambda t, y, x, n: t * n * power(x, n=n - 1))
    for order, expected in enumerate([16.0, 32.0, 48.0, 48.0]):
        f = lambda x: power(x, n=4)
        for _ in range(order):
            f = fg.grad(f)
        g, native = whole(f, 2.0)
        assert all(t.compiled for t in native.foreign)
        assert f(2.0) == g(2.0) == expected
        np.testing.assert_array_equal(fg.jit(fg.vmap(f))(np.array([2.0, 2.0])), [expected] * 2)
    with pytest.raises(ValueError, match="negative power"):
        fg.jit(lambda x: lax.fori_loop(0, 3, lambda i, y: power(y, n=-1), x))(2.0)
    assert fg.jit(lambda x: lax.fori_loop(0, 3, lambda i, y: power(y, n=2), x))(2.0) == 256.0
    x = np.array([1.0, 3.0])
    np.testing.assert_array_equal(fg.jit(lambda x: power(x, n=2))(x), x**2)
    g, native = whole(lambda x: power(x, n=(1, 2)), 2.0)  # has no power: Numba says so when it is called
    assert not native.foreign[0].compiled
    with pytest.raises(numba.errors.TypingError):
        g(2.0)


def test_an_operation_with_several_results() -> None:
    @fg.extend.op
    @numba.njit
    def split(x: Any) -> Any:
        return np.sort(x), x.sum()

    split.def_shape(lambda x: (x, fg.ShapeDtypeStruct((), x.dtype)))
    rows = np.array([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]])
    g, native = whole(lambda x: fg.vmap(split)(x * 1.0), rows)
    assert [t.compiled for t in native.foreign] == [True]
    ordered, sums = g(rows)
    np.testing.assert_array_equal(ordered, np.sort(rows, axis=1))
    np.testing.assert_array_equal(sums, [6.0, 15.0])


def test_an_operation_in_python_in_a_loop() -> None:
    @fg.extend.op
    def gamma(x: Any) -> Any:
        return math.gamma(x)

    gamma.def_shape(lambda x: x)
    f = lambda x: lax.fori_loop(0, 2, lambda i, y: gamma(y), x)
    g, native = whole(f, 4.0)
    assert [t.compiled for t in native.foreign] == [False]
    assert g(4.0) == 120.0
    assert fg.jit(fg.vmap(f))(np.array([4.0, 3.0])).tolist() == [120.0, 1.0]
    with pytest.raises(OverflowError):
        g(10.0)


def test_memory_errors_are_told_from_damage() -> None:
    _, native = whole(lambda x: x + 1.0, 1.0)
    with pytest.raises(MemoryError):
        native.fail(OUT_OF_MEMORY)
    with pytest.raises(errors.ProgramError):
        native.fail(DAMAGED)
