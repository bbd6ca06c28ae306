"""Callbacks: what is called, how often, in which order, and with what."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.check import check
from funcgrad.errors import ArgumentError, CallbackError, NanError, ParameterError, RuleError, ShapeError

SCALAR = fg.ShapeDtypeStruct((), float)
X = np.array([1.0, 2.0, 3.0])


class Log:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        values = [*args, *kwargs.values()]
        assert all(type(v) is np.ndarray for v in values if not isinstance(v, str))
        found = tuple([v if isinstance(v, str) else v.tolist() for v in values])
        self.seen.append(found[0] if len(found) == 1 else found)

    def take(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen


def ways(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """`f` and its first two derivatives, evaluated and compiled in several nestings."""
    return {
        "f": f,
        "jit": fg.jit(f),
        "jit of jit": fg.jit(lambda x: fg.jit(f)(x)),
        "grad": fg.grad(f),
        "jit grad": fg.jit(fg.grad(f)),
        "grad jit": fg.grad(fg.jit(f)),
        "jvp": lambda x: fg.jvp(f, (x,), (1.0,))[1],
        "jit jvp": fg.jit(lambda x: fg.jvp(f, (x,), (1.0,))[1]),
        "linearize": lambda x: fg.linearize(f, x)[1](1.0),
        "vjp": lambda x: fg.vjp(f, x)[1](1.0)[0],
        "jacfwd": fg.jacfwd(f),
        "hessian": fg.hessian(f),
        "jit hessian": fg.jit(fg.hessian(f)),
        "grad grad": fg.grad(fg.grad(f)),
        "grad jit grad": fg.grad(fg.jit(fg.grad(f))),
        "jit grad grad jit": fg.jit(fg.grad(fg.grad(fg.jit(f)))),
    }


WAYS = list(ways(lambda x: x))
ORDER = {"f": 0, "jit": 0, "jit of jit": 0} | dict.fromkeys(
    ["hessian", "jit hessian", "grad grad", "grad jit grad", "jit grad grad jit"], 2
)  # of the derivative; 1 where nothing is said


# -- values


def test_a_pure_callback_computes() -> None:
    double = lambda x: fg.pure_callback(lambda v: 2 * v, fg.ShapeDtypeStruct((3,), float), x)
    for g in (double, fg.jit(double), fg.jit(lambda x: fg.jit(double)(x))):
        assert g(X).tolist() == [2.0, 4.0, 6.0]
    assert type(double(X)) is fg.Array


def test_trees_go_in_and_out() -> None:
    def f(x: Any) -> Any:
        declared = {"sum": SCALAR, "pair": (X, np.zeros(2, np.int32))}
        host = lambda d, *, k: {"sum": d["a"].sum() + k, "pair": (d["a"] * d["b"], np.array([1, 2], np.int32))}
        return fg.pure_callback(host, declared, {"a": x, "b": 2.0}, k=10.0)

    for g in (f, fg.jit(f)):
        out = g(X)
        assert out["sum"] == 16.0 and out["pair"][0].tolist() == [2.0, 4.0, 6.0]
        assert out["pair"][1].dtype == np.int32 and out["pair"][1].tolist() == [1, 2]


def test_python_scalars_take_the_declared_dtype() -> None:
    half = fg.ShapeDtypeStruct((), np.float32)
    out = fg.jit(lambda x: fg.pure_callback(lambda v: 1, half, x))(1.0)
    assert out.dtype == np.float32 and out == 1.0


def test_results_and_arguments_are_copies() -> None:
    buffer, kept = np.zeros(3), []

    def host(v: Any) -> Any:
        kept.append(v)
        buffer[:] = v
        return buffer

    f = lambda x: fg.pure_callback(host, X, x + 0.0)
    for g in (f, fg.jit(f)):
        kept.clear()
        x = X.copy()
        a, b = g(x), g(x + 1)
        assert a.tolist() == [1.0, 2.0, 3.0] and b.tolist() == [2.0, 3.0, 4.0]
        a[:] = 0.0
        x[:] = 7.0
        assert kept[0].tolist() == [1.0, 2.0, 3.0] and buffer.tolist() == [2.0, 3.0, 4.0]
        kept[0][:] = 5.0  # the callback owns its arguments
        assert x.tolist() == [7.0, 7.0, 7.0]


def test_an_argument_that_is_a_result_too_is_not_shared() -> None:
    kept: list[Any] = []

    @fg.jit
    def f(x: Any) -> Any:
        y = x * 2
        fg.debug.callback(kept.append, y)
        fg.debug.callback(kept.append, x)
        return y

    x = X.copy()
    y = f(x)
    y[:] = x[:] = 0.0
    assert [k.tolist() for k in kept] == [[2.0, 4.0, 6.0], [1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (np.zeros(2), r"host returns f64\[2\] as result, declared is f64\[3\]"),
        (np.zeros(3, np.float32), r"host returns f32\[3\] as result, declared is f64\[3\]"),
        (np.zeros(3, complex), r"host returns c128\[3\] as result, declared is f64\[3\]"),
        ("text", r"host returns a str as result, declared is f64\[3\]"),
        ((X, X), "callback: the result of host"),
        (None, "callback: the result of host"),
    ],
)
def test_results_are_checked(returned: Any, text: str) -> None:
    def host(v: Any) -> Any:
        return returned

    f = lambda x: fg.pure_callback(host, X, x)
    for g in (f, fg.jit(f), fg.vmap(f)):
        with pytest.raises(CallbackError, match=text):
            g(np.ones((2, 3)))
    with pytest.raises(ValueError, match="host"):
        f(X)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="is declared by something with a shape"):
        fg.pure_callback(np.sin, float, 1.0)
    with pytest.raises(ParameterError, match="vmap_method"):
        fg.pure_callback(np.sin, SCALAR, 1.0, vmap_method="magic")
    with pytest.raises(ArgumentError, match="string"):
        fg.io_callback(print, None, "text")


# -- effects


@pytest.mark.parametrize("way", WAYS)
def test_every_effect_happens_once_and_in_order(way: str) -> None:
    log = Log()

    def f(x: Any) -> Any:
        fg.debug.callback(log, "start", x)
        y = np.sin(x)
        fg.io_callback(log, None, y)
        fg.debug.callback(log, "constant", 1)
        fg.debug.callback(log, "constant", 1)
        return x * y

    g = ways(f)[way]
    expected = [("start", 0.5), np.sin(0.5), ("constant", 1), ("constant", 1)]
    for _ in range(2):
        result = g(0.5)
        assert log.take() == expected
    exact = [0.5 * np.sin(0.5), np.sin(0.5) + 0.5 * np.cos(0.5), 2 * np.cos(0.5) - 0.5 * np.sin(0.5)]
    np.testing.assert_allclose(result, exact[ORDER.get(way, 1)], rtol=1e-14)


@pytest.mark.parametrize("way", WAYS)
def test_results_of_an_effect_are_used_in_derivatives(way: str) -> None:
    counter = [0]

    def draw() -> Any:
        counter[0] += 1
        return 3.0 * counter[0]

    def f(x: Any) -> Any:
        return fg.io_callback(draw, SCALAR) * x * x + fg.io_callback(draw, SCALAR) * x

    g = ways(f)[way]
    assert g(2.0) == [24.0, 18.0, 6.0][ORDER.get(way, 1)]  # 3 x² + 6 x
    assert counter == [2]


@pytest.mark.parametrize("way", WAYS)
def test_effects_in_a_loop_happen_once_a_trip(way: str) -> None:
    log = Log()

    def f(x: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            fg.debug.callback(log, k, c)
            w = fg.io_callback(lambda k: 1.0 + k, SCALAR, k)
            return c * x * w, c

        y, ys = lax.scan(step, 1.0, np.arange(3.0))
        fg.debug.callback(log, ys)
        return y

    result = ways(f)[way](0.5)
    assert log.take() == [(0.0, 1.0), (1.0, 0.5), (2.0, 0.5), [1.0, 0.5, 0.5]]
    assert result == [6 * 0.125, 18 * 0.25, 36 * 0.5][ORDER.get(way, 1)]  # 6 x³


@pytest.mark.parametrize("way", WAYS)
def test_effects_in_nested_loops_and_branches(way: str) -> None:
    log = Log()

    def f(x: Any) -> Any:
        def inner(j: Any, c: Any) -> Any:
            def odd(c: Any) -> Any:
                fg.debug.callback(log, "odd", j)
                return c * x

            def even(c: Any) -> Any:
                fg.debug.callback(log, "even", j)
                return c

            return lax.cond(j % 2 == 1, odd, even, c)

        def outer(i: Any, c: Any) -> Any:
            fg.debug.callback(log, "outer", i)
            return lax.fori_loop(0, i + 1, inner, c)

        return lax.fori_loop(0, 3, outer, x)

    result = ways(f)[way](2.0)
    rounds = [[("outer", i), *[("odd" if j % 2 else "even", j) for j in range(i + 1)]] for i in range(3)]
    assert log.take() == [x for r in rounds for x in r]
    assert result == [8.0, 12.0, 12.0][ORDER.get(way, 1)]  # x³


@pytest.mark.parametrize("way", WAYS)
def test_effects_in_a_while_loop(way: str) -> None:
    log = Log()

    def f(x: Any) -> Any:
        def going(v: Any) -> Any:
            fg.debug.callback(log, "test", v)
            return v < 10.0

        def step(v: Any) -> Any:
            fg.debug.callback(log, "step", v)
            return v * x

        return lax.while_loop(going, step, x)

    result = ways(f)[way](3.0)
    assert log.take() == [("test", 3.0), ("step", 3.0), ("test", 9.0), ("step", 9.0), ("test", 27.0)]
    assert result == [27.0, 27.0, 18.0][ORDER.get(way, 1)]  # x³


def test_an_effect_that_nothing_uses_happens() -> None:
    log = Log()

    def f(x: Any) -> Any:
        def trip(i: Any, c: Any) -> Any:
            fg.io_callback(lambda v: (log(v), v)[1], SCALAR, x + i)
            return c

        lax.fori_loop(0, 2, trip, None)
        lax.cond(x > 0, lambda: log_it(x), lambda: None)
        return None

    def log_it(x: Any) -> None:
        fg.debug.callback(log, x)

    for g in (f, fg.jit(f), fg.jit(lambda x: fg.jit(f)(x))):
        g(1.0)
        assert log.take() == [1.0, 2.0, 1.0]


def test_equal_effects_are_not_shared_and_pure_callbacks_are() -> None:
    calls: list[str] = []

    def pure() -> Any:
        calls.append("pure")
        return 1.0

    def io() -> Any:
        calls.append("io")
        return 1.0

    @fg.jit
    def f(x: Any) -> Any:
        fg.pure_callback(lambda: calls.append("unused") or 1.0, SCALAR)
        a = fg.pure_callback(pure, SCALAR) + fg.pure_callback(pure, SCALAR)
        return a + fg.io_callback(io, SCALAR) + fg.io_callback(io, SCALAR) + x

    assert f(1.0) == 5.0
    assert sorted(calls) == ["io", "io", "pure"]


def test_an_effect_in_a_loop_stays_there_although_it_is_the_same_in_every_trip() -> None:
    log = Log()

    @fg.jit
    def f(x: Any) -> Any:
        def trip(i: Any, c: Any) -> Any:
            fg.debug.callback(log, np.sin(x))
            return c + fg.pure_callback(np.cos, SCALAR, x)

        return lax.fori_loop(0, 3, trip, 0.0)

    assert f(0.0) == 3.0
    assert log.take() == [0.0] * 3
    calls: list[Any] = []
    g = fg.jit(
        lambda n, x: lax.fori_loop(
            0, n, lambda i, c: c + fg.pure_callback(lambda v: calls.append(v) or v, SCALAR, x), 0.0
        )
    )
    assert g(0, 2.0) == 0.0 and not calls  # no trip, no call


def test_effects_before_an_error_have_happened() -> None:
    log = Log()

    def f(x: Any, i: Any) -> Any:
        fg.debug.callback(log, "before", i)
        y = x[i]
        fg.debug.callback(log, "after", i)
        return y

    for g in (fg.jit(f), fg.grad(f), f):
        with pytest.raises(IndexError):
            g(X, np.int64(5)) if g is not f else g(fg.numpy.asarray(X), np.int64(5))
        assert log.take() == [("before", 5)]


def test_values_on_demand_bring_no_effect_about_twice() -> None:
    log = Log()

    def f(x: Any) -> Any:
        fg.debug.callback(log, "a", x)
        y = x * x
        if y > 1:  # the value is asked for
            fg.debug.callback(log, "b", y)
            y = y * fg.io_callback(lambda: (log("draw"), 2.0)[1], SCALAR)
        if y > 2:
            fg.debug.callback(log, "c", y)
        return y

    for g, value in ((fg.grad(f), 8.0), (fg.grad(fg.grad(f)), 4.0), (fg.jacfwd(f), 8.0)):
        assert g(2.0) == value
        assert log.take() == [("a", 2.0), ("b", 4.0), "draw", ("c", 8.0)]


# -- rows


@pytest.mark.parametrize("compiled", [False, True])
def test_one_call_per_row(compiled: bool) -> None:
    log = Log()

    def f(x: Any) -> Any:
        fg.debug.callback(log, "row", x)
        fg.debug.callback(log, "all")
        return fg.pure_callback(lambda v: v * 10, SCALAR, x)

    g = fg.vmap(f)
    assert (fg.jit(g) if compiled else g)(X).tolist() == [10.0, 20.0, 30.0]
    assert log.take() == [("row", 1.0), ("row", 2.0), ("row", 3.0), "all"]


def test_rows_of_rows_and_of_derivatives() -> None:
    log = Log()

    def f(x: Any) -> Any:
        fg.debug.callback(log, x)
        return x * x

    m = np.arange(4.0).reshape(2, 2)
    for g in (fg.vmap(fg.vmap(f)), fg.jit(fg.vmap(fg.vmap(f)))):
        assert g(m).tolist() == (m * m).tolist()
        assert log.take() == [0.0, 1.0, 2.0, 3.0]
    for h in (fg.vmap(fg.grad(f)), fg.jit(fg.vmap(fg.grad(f))), fg.grad(lambda x: fg.vmap(f)(x).sum())):
        assert h(X).tolist() == (2 * X).tolist()
        assert log.take() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_all_rows_in_one_call(method: str) -> None:
    shapes: list[Any] = []

    def host(a: Any, b: Any) -> Any:
        shapes.append((a.shape, b.shape))
        return a * b

    def f(a: Any, b: Any) -> Any:
        return fg.pure_callback(host, fg.ShapeDtypeStruct((2,), float), a, b, vmap_method=method)

    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, 10.0])
    g = fg.vmap(f, in_axes=(1, None), out_axes=0)
    for run in (g, fg.jit(g)):
        assert run(a, b).tolist() == (a.T * b).tolist()
        assert shapes.pop() == ((3, 2), (1, 2) if method == "expand_dims" else (3, 2))
        assert not shapes
    twice = fg.vmap(fg.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(a.T, np.stack([b, -b]))
    assert twice.tolist() == [(a.T * b).tolist(), (-a.T * b).tolist()]


def test_one_call_per_row_of_any_axis_with_what_is_shared() -> None:
    shapes: list[Any] = []

    def host(a: Any, b: Any) -> Any:
        shapes.append((a.shape, b.shape))
        return a * b

    def f(a: Any, b: Any) -> Any:
        return fg.pure_callback(host, fg.ShapeDtypeStruct((2,), float), a, b)

    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, 10.0])
    g = fg.vmap(f, in_axes=(1, None), out_axes=0)
    for run in (g, fg.jit(g)):
        shapes.clear()
        assert run(a, b).tolist() == (a.T * b).tolist()
        assert shapes == [((2,), (2,))] * 3


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_that_go_their_own_ways(compiled: bool) -> None:
    log = Log()

    def f(n: Any) -> Any:
        def trip(i: Any, c: Any) -> Any:
            fg.debug.callback(log, n, i)
            return c + 1.0

        return lax.fori_loop(0, n, trip, 0.0)

    g = fg.vmap(f)
    assert (fg.jit(g) if compiled else g)(np.array([2, 0, 1])).tolist() == [2.0, 0.0, 1.0]
    assert log.take() == [(2, 0), (2, 1), (1, 0)]


# -- derivatives


def test_an_unknown_derivative_is_refused_with_a_reason() -> None:
    def host(v: Any) -> Any:
        return v

    f = lambda x: fg.pure_callback(host, SCALAR, x) + x
    for g in (fg.grad(f), fg.jit(fg.grad(f)), fg.jacfwd(f), fg.grad(fg.jit(f))):
        with pytest.raises(RuleError, match=r"the derivative of host is not known, and operand 0 \(f64\[\]\)"):
            g(1.0)
    with pytest.raises(RuleError, match=r"is not known, and operand 1 \(f64\[\]\)"):
        fg.grad(lambda x: fg.pure_callback(lambda a, b: b, SCALAR, 1.0, x))(1.0)

    def in_a_loop(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, c: f(c), x)  # the line of f is named

    for g in (fg.grad(in_a_loop), fg.jit(fg.grad(in_a_loop)), fg.grad(fg.jit(in_a_loop))):
        with pytest.raises(RuleError, match=r"f = lambda x: fg.pure_callback\(host, SCALAR, x\) \+ x"):
            g(1.0)
    stopped = lambda x: fg.pure_callback(host, SCALAR, fg.stop_gradient(x)) * x
    assert fg.grad(stopped)(3.0) == 3.0 and fg.jit(fg.grad(stopped))(3.0) == 3.0
    number = lambda x: fg.pure_callback(lambda v: int(v), fg.ShapeDtypeStruct((), int), x) * x
    assert fg.grad(number)(3.5) == 3.0 and fg.jit(fg.grad(number))(3.5) == 3.0


# -- errors, threads, re-entrancy


class Boom(Exception):
    pass


@pytest.mark.parametrize("transform", [lambda f: f, fg.jit, fg.grad, lambda f: fg.jit(fg.grad(f)), fg.vmap])
@pytest.mark.parametrize("inside", [False, True])
def test_an_exception_reaches_the_caller_as_it_is(transform: Any, inside: bool) -> None:
    for error in (Boom("a"), ShapeError("b", hint="c"), KeyboardInterrupt(), StopIteration(3)):
        text = str(error)

        def fail(v: Any, error: Any = error) -> Any:
            raise error

        def f(x: Any) -> Any:
            call = lambda: fg.io_callback(fail, None, x)
            if inside:
                lax.fori_loop(0, 2, lambda i, c: call() or c, 0)
            else:
                call()
            return x * 1.0

        x = X if transform is fg.vmap else 1.0
        with pytest.raises(type(error)) as found:
            transform(f)(x)
        assert found.value is error and str(error) == text


def test_a_callback_calls_its_caller() -> None:
    @fg.jit
    def factorial(n: Any) -> Any:
        smaller = lambda n: factorial(n - 1.0) if n > 0 else np.float64(1.0)
        return lax.cond(n > 0, lambda n: n * fg.pure_callback(smaller, SCALAR, n), lambda n: 1.0 + 0 * n, n)

    assert factorial(5.0) == 120.0


def test_transforms_in_a_callback() -> None:
    def host(v: Any) -> Any:
        return fg.jit(fg.grad(lambda x: x**3))(v) + fg.vmap(np.sin)(np.zeros(2)).sum()

    f = lambda x: fg.pure_callback(host, SCALAR, fg.stop_gradient(x)) * x
    assert f(2.0) == 24.0 and fg.jit(f)(2.0) == 24.0 and fg.grad(f)(2.0) == 12.0 and fg.jit(fg.grad(f))(2.0) == 12.0


def test_ctrl_c_in_a_callback() -> None:
    f = fg.jit(lambda x: lax.fori_loop(0, 1000, lambda i, c: fg.io_callback(press, SCALAR, c), x))
    calls = []

    def press(v: Any) -> Any:
        calls.append(v)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return v + 1.0

    with pytest.raises(KeyboardInterrupt):
        f(0.0)
    assert len(calls) == 3


def test_threads_have_their_own_order() -> None:
    seen: dict[int, list[Any]] = {}
    f = fg.jit(lambda k, x: lax.fori_loop(0, 20, lambda i, c: fg.debug.callback(note, k, i) or c * 1.0, x))

    def note(k: Any, i: Any) -> None:
        seen.setdefault(int(k), []).append(int(i))

    threads = [threading.Thread(target=f, args=(k, 1.0)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert seen == {k: list(range(20)) for k in range(4)}


# -- Programs


def test_programs_with_callbacks_are_well_formed_and_remembered() -> None:
    def f(x: Any) -> Any:
        fg.debug.print("x = {}", x)
        return lax.fori_loop(0, 3, lambda i, c: fg.debug.print("c = {}", c) or c * x, x)

    program = fg.make_program(fg.vmap(fg.grad(f)))(X)
    check(program)
    assert program.effects == {"ordered"}
    text = str(fg.make_program(lambda x: fg.debug.print("{}", x) or x)(X))
    assert text.splitlines()[1].split("#")[0].strip() == "callback[callee=print effect=ordered] x"
    a, b = fg.make_program(f)(1.0), fg.make_program(f)(1.0)
    assert a.fingerprint == b.fingerprint  # equal formats are equal


def test_the_rest_of_a_program_with_callbacks_is_compiled() -> None:
    f = fg.jit(lambda x: np.sin(x) + fg.pure_callback(np.cos, X, x * 2))
    np.testing.assert_allclose(f(X), np.sin(X) + np.cos(2 * X), rtol=1e-15)
    assert f.cache_info().misses == 1 and f(X) is not None and f.cache_info().misses == 1


# -- debug.print


def test_print(capsys: Any) -> None:
    def f(x: Any) -> Any:
        fg.debug.print("{} {y:.2f} {{}} {name} {0:>5}", x, y=x / 3, name="text") if False else None
        fg.debug.print("{} {y:.2f} {{}} {name}", x, y=x / 3, name="text")
        fg.debug.print("shape {0.shape} first {0[0]:.1f} {1:{width}}", X * x, x, width=6)
        return x

    for g in (f, fg.jit(f), fg.grad(f)):
        g(1.0)
        assert capsys.readouterr().out == "1.0 0.33 {} text\nshape (3,) first 1.0    1.0\n"
    fg.jit(lambda x: fg.debug.print("{:.2f} {}", x, x))(X)
    assert capsys.readouterr().out == "[1.00 2.00 3.00] [1. 2. 3.]\n"


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (("{} {}", 1.0), {}, "no argument for field 1"),
        (("{x}", 1.0), {}, "no argument for field x"),
        (("{}", 1.0, 2.0), {}, "no field for argument 1"),
        (("text",), {"x": 1.0}, "no field for argument x"),
        (("{",), {}, "no format string"),
        ((1.0,), {}, "format string"),
    ],
)
def test_formats_are_checked_where_they_stand(args: Any, kwargs: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        fg.make_program(lambda x: fg.debug.print(*args, **kwargs))(1.0)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit, fg.grad])
def test_a_format_that_does_not_fit_the_value_names_the_line(wrap: Any) -> None:
    def f(x: Any) -> Any:
        fg.debug.print("value {:d}", x)
        return x * x

    with pytest.raises(ArgumentError, match=r"debug\.print: 'value \{:d\}': Unknown format code") as caught:
        wrap(f)(1.5)
    assert caught.value.source is not None
    assert 'fg.debug.print("value {:d}", x)' in caught.value.source.text


def test_a_nan_of_a_callback_names_its_function() -> None:
    def broken(x: Any) -> Any:
        return x * np.nan

    f = fg.jit(lambda x: fg.pure_callback(broken, fg.ShapeDtypeStruct((), float), x))
    with fg.debug_nans(), pytest.raises(NanError, match=r"callback broken: the result is NaN for 1\.0"):
        f(1.0)


def test_an_integer_result_has_no_tangent() -> None:
    whole = lambda x: fg.pure_callback(lambda x: np.int64(np.floor(x)), fg.ShapeDtypeStruct((), int), x)
    f = lambda x: whole(x).astype(float) * x
    assert fg.jvp(f, (2.5,), (3.0,))[1] == 6.0 and fg.grad(f)(2.5) == 2.0
