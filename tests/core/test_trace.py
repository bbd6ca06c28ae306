"""Tracing: what is recorded, values on demand, escaped tracers, threads, captured arrays."""

from __future__ import annotations

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors

# -- values


def test_python_control_flow_under_eager_transforms() -> None:
    def f(x: Any) -> Any:
        steps = 0
        while x * x > 2:
            x = x - 0.5 * (x * x - 2) / x
            steps += 1
            if steps > 20:
                break
        return x if x > 0 else -x

    assert np.isclose(float(fg.grad(lambda a: f(a) * a)(1.0)), 2.0)
    y, dot = fg.jvp(f, (3.0,), (1.0,))
    h = 1e-6
    exact = f(3.0)
    assert np.isclose(float(y), exact)
    assert abs(float(dot) - (f(3.0 + h) - f(3.0 - h)) / (2 * h)) < 1e-6


def test_bool_int_and_index_read_the_value() -> None:
    def f(x: Any, n: Any) -> Any:
        assert bool(x[0] > 0) is True
        assert int(n) == 2 and [10, 20, 30][n] == 30
        assert list(range(n)) == [0, 1]
        return x[0] * 2.0

    _, dot = fg.jvp(lambda x, n: f(x, n), (np.ones(2), 2), (np.ones(2), np.zeros((), fg.float0)))
    assert float(dot) == 2.0


def test_values_are_printed_without_losing_the_derivative() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.extend([repr(x), f"{x * 2:.1f}", str(x)])
        return x * x

    assert float(fg.grad(f)(1.5)) == 3.0
    assert seen[0] == "Tracer(x: f64[]~, value=1.5)" and seen[1] == "3.0"


@pytest.mark.parametrize(
    "convert",
    [float, complex, lambda x: x.item(), np.asarray, np.array, lambda x: x.tolist(), lambda x: x.value, int,
     lambda x: x.__dlpack__(), lambda x: np.from_dlpack(x)],
)  # fmt: skip
def test_what_would_drop_the_derivative_raises(convert: Any) -> None:
    with (
        pytest.raises(errors.TracerArrayConversionError, match="drop its derivative")
        if convert is not int
        else (pytest.raises(errors.TracerIntegerConversionError, match="drop its derivative")) as found
    ):
        fg.grad(lambda x: x * convert(x))(2.0)
    assert "stop_gradient(x)" in str(found.value)


def test_stop_gradient_gives_the_value_away() -> None:
    def f(x: Any) -> Any:
        s = fg.stop_gradient(x * 2)
        assert type(s.value) is np.ndarray and s.value == 6.0
        assert float(s) == 6.0 and s.item() == 6.0 and np.asarray(s) == 6.0
        return x * s

    assert float(fg.grad(f)(3.0)) == 6.0
    assert float(fg.grad(fg.grad(f))(3.0)) == 0.0


def test_a_value_is_computed_once() -> None:
    calls = []
    original = fg.numpy.sin  # counted through the primitive
    from funcgrad.core.primitive import registry

    sin = registry["sin"]
    evaluate = sin.evaluate
    sin.evaluate = lambda x: (calls.append(1), evaluate(x))[1]
    try:

        def f(x: Any) -> Any:
            y = original(x)
            if y > 0:  # forces the value
                return y * x
            return y

        fg.grad(f)(1.0)
        assert len(calls) == 1
        calls.clear()
        fg.grad(fg.grad(f))(1.0)
        assert len(calls) <= 2  # sin once as a value, once as the derivative of cos
        calls.clear()
        fg.jvp(f, (1.0,), (1.0,))
        assert len(calls) == 1
    finally:
        sin.evaluate = evaluate


def test_no_value_inside_a_body() -> None:
    def inside_jit(x: Any) -> Any:
        return fg.jit(lambda y: y if x > 0 else -y)(x)  # x belongs to the eager trace outside

    with pytest.raises(errors.TracerBoolConversionError):
        fg.grad(inside_jit)(1.0)
    with pytest.raises(errors.TracerBoolConversionError, match="rows of vmap"):
        fg.vmap(lambda r: r if r > 0 else -r)(np.ones(3))
    # but what does not depend on the rows has a value
    assert fg.vmap(lambda r: r * (2.0 if fnp.sum(np.ones(2)) > 1 else 1.0))(np.ones(3)).tolist() == [2, 2, 2]
    assert float(fg.grad(lambda s: fg.vmap(lambda r: r * s if s > 0 else r)(np.ones(3)).sum())(2.0)) == 3.0


# -- escaped tracers


def test_an_escaped_tracer_names_where_it_was_made() -> None:
    leaked = []

    def f(x: Any) -> Any:
        leaked.append(x * 3.0)  # the line that is named
        return x * x

    for transform in (fg.grad, fg.jit, lambda f: fg.vmap(f)):
        leaked.clear()
        transform(f)(np.float64(2.0) if transform is not fg.vmap else np.ones(2)) if transform in (
            fg.grad, fg.jit) else transform(f)(np.ones(2))  # fmt: skip
        for use in (lambda t: t + 1.0, lambda t: np.sin(t), lambda t: bool(t > 0), fg.grad(lambda y: y * leaked[0])):
            with pytest.raises(errors.UnexpectedTracerError) as found:
                use(leaked[0]) if use.__name__ != "grad(f)" else use(1.0)
            assert "leaked.append(x * 3.0)" in str(found.value)


def test_a_tracer_in_another_thread() -> None:
    def f(x: Any) -> Any:
        failures = []

        def work() -> None:
            try:
                x + 1.0
            except errors.UnexpectedTracerError as error:
                failures.append(error)

        context = copy_context()
        for target in (work, lambda: context.run(work)):
            t = threading.Thread(target=target)
            t.start()
            t.join()
        assert len(failures) == 2 and "another thread" in str(failures[1])
        return x * x

    assert float(fg.grad(f)(3.0)) == 6.0


def test_threads_and_tasks_do_not_see_each_others_traces() -> None:
    def work(i: int) -> float:
        f = fg.jit(lambda x: np.sum(np.sin(x * i) ** 2))
        return float(fg.grad(lambda s: fg.grad(lambda t: f(np.ones(3) * t * s))(1.0))(0.5))

    expected = [work(i) for i in range(12)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(12))) == expected

    async def task(i: int) -> float:
        await asyncio.sleep(0)
        return work(i)

    async def gather() -> list[float]:
        return await asyncio.gather(*[task(i) for i in range(12)])

    assert asyncio.run(gather()) == expected


def test_state_is_restored_after_an_error() -> None:
    def f(x: Any) -> Any:
        raise KeyError("mine")

    for transform in (fg.grad, fg.jit, fg.vmap, fg.jacfwd):
        with pytest.raises(KeyError, match="mine"):
            transform(f)(np.ones(2))
    assert float(fnp.sin(0.0)) == 0.0  # not recorded anywhere


# -- captured arrays


def test_a_buffer_reused_in_place_is_read_when_it_is_used() -> None:
    data = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    def loss(w: Any) -> Any:
        total, buffer = 0.0, np.empty(2)
        for row in data:
            buffer[:] = row
            total = total + np.sum(w * w * buffer)
        return total

    w = np.array([1.0, 10.0])
    assert fg.grad(loss)(w).tolist() == (2 * w * data.sum(0)).tolist()
    assert float(fg.value_and_grad(loss)(w)[0]) == float((w * w * data.sum(0)).sum())


def test_jit_freezes_what_it_captures() -> None:
    c = np.ones(3)
    f = fg.jit(lambda x: x * c)
    assert f(np.ones(3)).tolist() == [1, 1, 1]
    c[:] = 7
    assert f(np.ones(3)).tolist() == [1, 1, 1]


def test_a_captured_tracer_is_not_kept_in_a_jit_cache() -> None:
    def f(x: Any) -> Any:
        inner = fg.jit(lambda y: y * x)
        return inner(2.0) + inner(3.0)

    assert float(fg.grad(f)(1.0)) == 5.0
    scale = None
    shared = fg.jit(lambda y: y * scale)

    def g(x: Any) -> Any:
        nonlocal scale
        scale = x
        return shared(2.0)

    assert float(fg.grad(g)(1.0)) == 2.0
    assert float(fg.grad(g)(5.0)) == 2.0
    assert shared.cache_info().size == 0


def test_tracers_copy_to_themselves_and_do_not_hash() -> None:
    def f(x: Any) -> Any:
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)
        return copy.copy(x) * copy.deepcopy(x)

    assert float(fg.grad(f)(3.0)) == 6.0


# -- contexts that outlive a trace


def test_a_context_copied_while_tracing_does_not_record() -> None:
    contexts: list[Any] = []

    def f(x: Any) -> Any:
        contexts.append(copy_context())
        return x * x

    for transform in (fg.grad, fg.jit, fg.jacfwd):
        contexts.clear()
        transform(f)(3.0)
        found = contexts[0].run(lambda: fg.grad(lambda y: y * y)(2.0))
        assert type(found) is fg.Array and float(found) == 4.0
        assert type(contexts[0].run(lambda: fnp.sin(np.ones(2)))) is fg.Array


def test_other_work_in_a_thread_started_while_tracing() -> None:
    def f(x: Any) -> Any:
        context, out = copy_context(), []
        t = threading.Thread(target=lambda: context.run(lambda: out.append(fg.jit(lambda y: y * 2)(np.ones(2)))))
        t.start()
        t.join()
        assert type(out[0]) is fg.Array and out[0].tolist() == [2.0, 2.0]
        return x * x

    for transform in (fg.grad, fg.jit):
        assert float(transform(f)(3.0)) in (6.0, 9.0)


def test_an_escaped_tracer_does_not_pass_through_an_identity() -> None:
    leaked: list[Any] = []

    def f(x: Any) -> Any:
        leaked.append(x * 1.5)
        return x

    fg.jit(f)(np.ones(2))
    one = np.ones(2)
    for use in (
        lambda t: fg.vjp(lambda x: x, one)[1](t),
        lambda t: fg.jvp(lambda x: x, (one,), (t,)),
        lambda t: fg.linearize(lambda x: x, one)[1](t),
        lambda t: fg.vmap(lambda x: x)(t),
        lambda t: fg.grad(lambda x: x.sum())(t),
    ):
        with pytest.raises(errors.UnexpectedTracerError):
            use(leaked[0])


def test_an_index_error_that_the_user_caught_stays_caught() -> None:
    def f(x: Any, i: Any) -> Any:
        try:
            return x[i]
        except IndexError:
            return x.sum()

    assert fg.vmap(f, (0, None))(np.ones((2, 3)), np.array(5)).tolist() == [3.0, 3.0]
    assert fg.grad(f)(np.ones(3), np.array(5)).tolist() == [1.0] * 3
