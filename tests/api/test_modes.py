"""disable_jit and debug_nans."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.errors import CarryTypeError, FuncgradError, NanError, ParameterError, TreeError

X = np.array([1.0, 2.0, 3.0])


def raised(f: Any, *args: Any) -> str:
    """The message of the `NanError`, with the user's line."""
    with fg.debug_nans(), pytest.raises(NanError) as found:
        f(*args)
    assert isinstance(found.value, FloatingPointError) and isinstance(found.value, FuncgradError)
    assert found.value.source is not None
    return f"{found.value.message} | {found.value.source.text}"


# -- disable_jit


def test_jit_runs_the_function_on_values() -> None:
    seen: list[Any] = []

    @fg.jit
    def f(x: Any, k: Any, *, scale: Any = 1.0) -> Any:
        seen.append((float(x[0]), k, scale))
        if x.sum() > 5:
            x = x.at[0].set(10.0)
        return {"x": x * scale, "k": k}

    with fg.disable_jit():
        for _ in range(2):
            out = f(X, 2, scale=3.0)
            assert out["x"].tolist() == [30.0, 6.0, 9.0] and out["k"] == 2
            assert type(out["x"]) is fg.Array and type(out["k"]) is fg.Array
        assert len(seen) == 2
        with fg.disable_jit(False), pytest.raises(FuncgradError):
            f(X, 2)
    with pytest.raises(FuncgradError):
        f(X, 2)


def test_compiled_functions_leave_native_code_while_jit_is_disabled() -> None:
    seen: list[Any] = []

    @fg.jit
    def f(x: Any) -> Any:
        seen.append(type(x).__name__)
        return x + 1.0

    for _ in range(3):
        f(X)
    assert seen == ["Tracer"]
    with fg.disable_jit():
        f(X)
    assert seen == ["Tracer", "Array"]
    f(X)
    assert len(seen) == 2
    other = threading.Thread(target=f, args=(X,))
    with fg.disable_jit():  # of this thread
        other.start()
        other.join()
    assert len(seen) == 2


def test_arguments_are_not_changed_and_results_are_fresh() -> None:
    x = X.copy()
    with fg.disable_jit():
        with pytest.raises(ValueError, match="read-only"):
            fg.jit(lambda x: x.__setitem__(0, 5.0))(x)
        y = fg.jit(lambda x: x)(x)
        y[0] = 7.0
    assert x.tolist() == X.tolist()


def test_static_arguments_and_derivatives() -> None:
    f = fg.jit(lambda n, x: sum([x**k for k in range(n)]), static_argnums=0)
    with fg.disable_jit():
        assert f(3, 2.0) == 7.0
        assert fg.grad(f, argnums=1)(3, 2.0) == 5.0
        assert fg.vmap(fg.jit(lambda x: x * 2))(X).tolist() == [2.0, 4.0, 6.0]
        assert fg.jit(fg.grad(fg.jit(lambda x: x**3 if x > 0 else x)))(2.0) == 12.0


def test_loops_run_as_python() -> None:
    seen: list[Any] = []

    def step(c: Any, x: Any) -> Any:
        seen.append((float(c), x.tolist()))
        return c + x["a"] if isinstance(x, dict) else c + x, c * 2

    with fg.disable_jit():
        total, ys = lax.scan(step, 0.0, X)
        assert total == 6.0 and ys.tolist() == [0.0, 2.0, 6.0] and type(ys) is fg.Array
        assert seen == [(0.0, 1.0), (1.0, 2.0), (3.0, 3.0)]
        total, ys = lax.scan(step, 0.0, X, reverse=True)
        assert total == 6.0 and ys.tolist() == [10.0, 6.0, 0.0]
        assert lax.scan(lambda c, x: (c, None), 1.0, length=2)[1] is None
        assert lax.scan(lambda c, x: (c, x), 1.0, np.zeros((0, 2)))[1].shape == (0, 2)
        indices: list[Any] = []
        assert lax.fori_loop(1, 4, lambda i, v: indices.append(int(i)) or v * i, 1) == 6 and indices == [1, 2, 3]
        assert lax.while_loop(lambda v: v < 50, lambda v: v * 3 if v > 1 else v + 1, 1.0) == 54.0
        assert lax.cond(X[0] > 0, lambda x: float(x[0]), lambda x: 1 / 0, X) == 1.0
        assert lax.switch(7, [lambda: 1, lambda: 2]) == 2
        assert lax.map(lambda x: float(x) ** 2, X).tolist() == [1.0, 4.0, 9.0]


def test_loops_are_differentiated_and_batched_while_jit_is_disabled() -> None:
    def f(x: Any) -> Any:
        y, ys = lax.scan(lambda c, k: (c * x, c * k), 1.0, X)
        z = lax.while_loop(lambda v: v < 10.0, lambda v: v * x, x)
        return lax.cond(x > 0, lambda: y + ys.sum() + z, lambda: 0.0 * x)

    expected = [g(2.0) for g in (f, fg.grad(f), fg.grad(fg.grad(f)), fg.jit(f))]
    rows = fg.vmap(f)(np.array([2.0, 3.0]))
    with fg.disable_jit():
        assert [g(2.0) for g in (f, fg.grad(f), fg.grad(fg.grad(f)), fg.jit(f))] == expected
        assert fg.vmap(f)(np.array([2.0, 3.0])).tolist() == rows.tolist()  # no row has a value: traced
        assert fg.make_program(f)(2.0).equations  # likewise


def test_carries_are_checked_while_jit_is_disabled() -> None:
    with fg.disable_jit():
        with pytest.raises(CarryTypeError, match=r"goes in as f64\[3\] and comes back as f64\[2\]"):
            lax.scan(lambda c, x: (c[:2], None), X, length=2)
        with pytest.raises(TreeError):
            lax.fori_loop(0, 2, lambda i, v: (v, v), 1.0)
        with pytest.raises(CarryTypeError, match="not bool"):
            lax.while_loop(lambda v: v, lambda v: v, 1.0)


# -- debug_nans


def half(x: Any) -> Any:
    y = np.log(x)
    z = np.where(x > 0, y, 0.0)  # its NaN is not taken
    w = np.sqrt(x)
    return np.sum(z + w)


@pytest.mark.parametrize(
    "f", [fg.jit(half), fg.jit(lambda x: 2 * fg.jit(half)(x)), fg.value_and_grad(half), fg.jit(fg.value_and_grad(half))]
)
def test_the_operation_is_named(f: Any) -> None:
    assert raised(f, np.array([4.0, -9.0])) == "sqrt: element 1 of the result [2] is NaN for -9.0 | w = np.sqrt(x)"
    with fg.debug_nans():
        f(X)


def test_rows_and_higher_derivatives() -> None:
    rows = np.array([[4.0, 1.0], [1.0, -9.0]])
    text = "sqrt: element (1, 1) of the result [2, 2] is NaN for -9.0 | w = np.sqrt(x)"
    assert raised(fg.vmap(half), rows) == text
    assert raised(fg.jit(fg.vmap(half)), rows) == text
    g = lambda x: x * np.sqrt(x) / x
    assert raised(fg.grad(g), 0.0).startswith("div: the result is NaN for 0.0, 0.0 |")
    assert raised(fg.hessian(g), 0.0).startswith("div: the result is NaN for 0.0, 0.0 |")


def test_a_nan_in_the_reverse_mode_is_traced_to_its_line() -> None:
    def f(x: Any) -> Any:
        r = np.sqrt(np.sum(x * x))
        return r * r

    for g in (fg.grad(f), fg.jit(fg.grad(f))):
        assert raised(g, np.zeros(2)) == "div: the result is NaN for 0.0, 0.0 | r = np.sqrt(np.sum(x * x))"


def test_a_pullback_called_later() -> None:
    with fg.debug_nans():
        _, back = fg.vjp(lambda x: np.sqrt(x) * 2.0, 0.0)
        with pytest.raises(NanError):
            back(np.inf * 0.0)


@pytest.mark.parametrize(
    "transform", [lambda f: f, fg.jit, fg.grad, lambda f: fg.jit(fg.grad(f)), lambda f: fg.vmap(f)]
)
def test_inside_loops_and_branches(transform: Any) -> None:
    def f(x: Any) -> Any:
        def trip(i: Any, c: Any) -> Any:
            c = lax.cond(c > 0, lambda c: c - 1.0, lambda c: c, c)
            return np.sqrt(c)

        return lax.fori_loop(0, 3, trip, x)

    x = np.array([1.5, 4.0]) if transform(lambda x: x).__name__.startswith("vmap") else 1.5
    text = raised(transform(f), x)
    assert text.startswith("sqrt: ") and text.endswith(f"is NaN for {np.sqrt(0.5) - 1.0} | return np.sqrt(c)")


def test_effects_are_not_repeated() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        def trip(i: Any, c: Any) -> Any:
            fg.debug.callback(lambda v: seen.append(float(v)), c)
            w = fg.io_callback(lambda: seen.append("draw") or 1.0, fg.ShapeDtypeStruct((), float))
            return np.log(c) * w

        return lax.fori_loop(0, 3, trip, x)

    for g in (f, fg.jit(f)):
        assert raised(g, 0.5).startswith("log: the result is NaN for -0.69314718")
        assert [v for v in seen if v != "draw"][:2] == [0.5, np.log(0.5)] and len(seen) == 6
        seen.clear()
    raised(fg.grad(f), 0.5)
    assert len(seen) == 6


def test_an_argument_that_is_nan() -> None:
    assert raised(fg.jit(lambda x: x * 2.0), np.nan).startswith("f: x is NaN already")


def test_results_that_are_no_floats_and_infinities_pass() -> None:
    with fg.debug_nans():
        assert fg.jit(lambda x: (x > 0, np.exp(x)))(1e5) == (True, np.inf)
        assert np.isnan(fg.jit(lambda x: fg.pure_callback(callback, x, x))(2.0)) == 0


def callback(x: Any) -> Any:
    assert np.isnan(np.sqrt(np.float64(np.nan)))
    return x


def test_the_setting_of_the_process() -> None:
    f = fg.jit(lambda x: np.sqrt(x))
    assert np.isnan(f(-1.0)) and np.isnan(f(-1.0))
    fg.config.debug_nans = True
    try:
        with pytest.raises(NanError):
            f(-1.0)
        with fg.debug_nans(False):
            assert np.isnan(f(-1.0))
    finally:
        fg.config.debug_nans = False
    assert np.isnan(f(-1.0))
    with pytest.raises(ParameterError, match="debug_nans is False or True"):
        fg.config.debug_nans = "yes"
    with pytest.raises(ParameterError, match="settings are results, debug_nans"):
        fg.config.other = 1
