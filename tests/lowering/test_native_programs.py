"""Whole programs as machine code: sums, products, layouts, stages, threads. Random ones: test_random_programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.emit import native_form
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.simplify import simplify
from tests.lowering.test_native_ops import same_bits


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float32", "float64"])
@pytest.mark.parametrize("length", [127, 128, 129, 511, 514, 4097])
def test_long_reductions(length: int, dtype: str) -> None:
    rng = np.random.default_rng(length)
    x = rng.integers(0, 2 if dtype == "bool" else 50, (2, length)).astype(dtype)
    f = lambda x: (np.max(x, axis=1), np.min(x, axis=1), np.argmax(x, axis=1), np.sum(x, axis=1), np.prod(x != 0))
    for found, expected in zip(fg.jit(f)(x), f(x), strict=True):
        assert np.array_equal(found, expected)


def test_sums_beyond_the_finite() -> None:
    f = fg.jit(np.sum)
    assert f(np.array([np.inf, 1.0, 2.0])) == np.inf
    assert f(np.array([-np.inf] * 20)) == -np.inf
    assert np.isnan(f(np.array([np.inf, -np.inf])))
    assert np.isnan(f(np.array([1.0, np.nan, 2.0])))
    assert f(np.full(40, 1e308)) == np.inf


@pytest.mark.parametrize("contract", [((0,), (0,)), ((1,), (0,)), ((0,), (1,)), ((1,), (1,)), ((), ())])
@pytest.mark.parametrize("sizes", [(4, 4), (1, 1), (1, 7), (7, 1), (13, 9), (0, 3), (64, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_with_transposes_folded_in(contract: Any, sizes: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(1)
    n, m = sizes
    shapes = {
        ((0,), (0,)): ((n, m), (n, 5)), ((1,), (0,)): ((m, n), (n, 5)), ((0,), (1,)): ((n, m), (5, n)),
        ((1,), (1,)): ((m, n), (5, n)), ((), ()): ((n,), (m,)),
    }  # fmt: skip
    a, b = (rng.standard_normal(s).astype(dtype) for s in shapes[contract])
    expected = np.tensordot(a.astype(float), b.astype(float), contract)
    eps = np.finfo(dtype).eps * max(n, 1) * 4
    for view in (lambda x: x, lambda x: x[::-1][::-1], lambda x: np.flip(x, 0)):
        f = fg.jit(lambda a, b, v=view: np.tensordot(v(a), v(b), contract))
        reference = np.tensordot(view(a).astype(float), view(b).astype(float), contract)
        np.testing.assert_allclose(f(a, b), reference, rtol=eps, atol=eps * 10)
        assert f(a, b).shape == expected.shape
    if n and m:
        batched = fg.jit(fg.vmap(lambda a, b: np.tensordot(a, b, contract)))
        found = batched(np.stack([a, 2 * a]), np.stack([b, b]))
        np.testing.assert_allclose(found, np.stack([expected, 2 * expected]), rtol=eps, atol=eps * 20)


@pytest.mark.parametrize("shapes", [
    ((3, 0), (0, 4)), ((0,), (0, 4)), ((0,), (0,)), ((3, 0), (0,)), ((2, 3, 0), (2, 0, 4)),
    ((0, 30, 40), (0, 40, 50)), ((0, 3), (3, 4)), ((3, 4), (4, 0)), ((0, 3), (3,)), ((3,), (3, 0)), ((0, 3, 4), (4,)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_without_elements(shapes: Any, dtype: str) -> None:
    a, b = (np.ones(s, dtype) for s in shapes)
    f = fg.jit(lambda a, b: (a @ b, np.sqrt(a @ b) + 1))
    expected = np.zeros((a @ b).shape, dtype)
    for _ in range(3):
        rubbish = [np.full(expected.shape, np.nan, dtype) for _ in range(8)]
        del rubbish  # its memory is what the next results are made of
        product, after = f(a, b)
        assert np.array_equal(product, expected) and np.array_equal(after, expected + 1)


EMPTY = [((3, 0), (0, 4)), ((0,), (0, 4)), ((3, 0), (0,)), ((0,), (0,)), ((2, 3, 0), (2, 0, 4)), ((0, 2, 2), (0, 2, 2)),
         ((3, 4), (4, 0)), ((0, 3), (3,)), ((0, 0), (0, 0)), ((0, 2, 3), (3,)), ((3, 0, 2), (3, 2, 1))]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), EMPTY, ids=str)
def test_empty_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Nothing is written for an empty stack, and an empty sum is zero."""
    f = fg.jit(lambda x, y: np.matmul(x, y))
    for _ in range(20):
        np.full(64, 7.0)  # what is not written has had other values
        np.testing.assert_array_equal(f(np.ones(left), np.ones(right)), np.matmul(np.ones(left), np.ones(right)))
    g = fg.jit(fg.grad(lambda x, y: np.matmul(x, y).sum(), (0, 1)))
    for bar, shape in zip(g(np.ones(left), np.ones(right)), (left, right), strict=True):
        assert bar.shape == shape and np.isfinite(bar).all()


def test_inputs_of_any_layout() -> None:
    x = np.arange(24.0).reshape(4, 6)
    f = fg.jit(lambda x: x * 2 + 1)
    readonly = x.copy()
    readonly.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(float).reshape(4, 6)
    for y in (x.T, x[::2], x[:, ::-1], np.asfortranarray(x), np.broadcast_to(x[0], (3, 6)), readonly, unaligned):
        assert np.array_equal(f(y), y * 2 + 1)
    big = np.zeros(10)
    g = fg.jit(lambda a, b: a + b)
    assert np.array_equal(g(big[:8], big[2:]), np.zeros(8))


def test_a_mixture_of_native_and_evaluated_stages() -> None:
    def f(x: Any) -> Any:
        y = np.sqrt(x) + 1
        z = np.cumsum(y) * 2
        return z - y, np.take(z, np.array([2, 0])), np.gcd(x.astype(int), 6)

    x = np.array([4.0, 9.0, 16.0])
    found = fg.jit(f)(x)
    y = np.sqrt(x) + 1
    z = np.cumsum(y) * 2
    for a, b in zip(found, (z - y, z[[2, 0]], np.gcd(x.astype(int), 6)), strict=True):
        assert np.array_equal(a, b)
    with pytest.raises(errors.OutOfBoundsError, match="index 7"):
        fg.jit(lambda x, i: np.sqrt(x)[i] + 1)(x, np.array([7]))


def test_equal_kernels_are_one_function() -> None:
    from funcgrad.lowering.emit import emit
    from funcgrad.lowering.simplify import simplify
    from funcgrad.lowering.values import Target

    def adam(ps: Any) -> Any:
        return [np.sqrt(p) * 0.5 - p.sum() for p in ps]

    program = simplify(fg.make_program(adam)([np.ones(100)] * 6))
    text = emit(program, Target(32, True, True)).text
    assert text.count("define internal void") <= 3


def test_threads_share_an_executable() -> None:
    from concurrent.futures import ThreadPoolExecutor

    f = fg.jit(lambda x: (np.sqrt(x) @ np.ones((50, 50))).sum(axis=0) * x[0])
    xs = [np.random.default_rng(i).random((30, 50)) for i in range(64)]
    expected = [f(x).copy() for x in xs]
    with ThreadPoolExecutor(16) as pool:
        for a, b in zip(pool.map(f, xs), expected, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.usefixtures("unrolled")
def test_an_unrolled_loop_is_cut_into_parts() -> None:
    from funcgrad.lowering.emit import PART, emit
    from funcgrad.lowering.simplify import simplify
    from funcgrad.lowering.values import Target

    def f(x: Any, a: Any) -> Any:
        for _ in range(100):
            x = np.sqrt(np.abs(a @ x)) + x.sum()
        return x

    x, a = np.arange(3.0), np.linspace(0.1, 0.9, 9).reshape(3, 3)
    program = simplify(fg.make_program(f)(x, a))
    text = emit(program, Target(32, True, True)).text
    calls = text.count("call void @k")
    assert calls >= 200 and text.count("define internal i64 @part") == -(-calls // PART)
    assert text.count("define internal void @k") <= 10  # equal steps are one function
    np.testing.assert_allclose(fg.jit(f)(x, a), f(fnp.asarray(x), fnp.asarray(a)), rtol=1e-12)


def test_complex_programs_run_with_numpy() -> None:
    f = lambda x: np.real(np.exp(1j * x)) * 2.0
    assert np.isclose(float(fg.jit(f)(1.0)), 2 * np.cos(1.0))
    assert np.isclose(float(fg.jit(fg.grad(f))(1.0)), -2 * np.sin(1.0))


def test_parts_of_a_result_are_written_once_and_together() -> None:
    from funcgrad.lowering.kernels import Loop
    from funcgrad.lowering.schedule import schedule
    from funcgrad.lowering.simplify import simplify

    def written(f: Any, x: Any) -> tuple[int, int]:
        """How many elements the loops store, and how many loops there are."""
        kernels = schedule(simplify(fg.make_program(f)(x))).kernels
        loops = [k for k in kernels if isinstance(k, Loop)]
        return sum([math.prod(k.shape) * len(k.writes) for k in loops]), len(loops)

    x = np.arange(24.0).reshape(4, 6)
    for widths in (((1, 2), (3, 0)), ((0, 0), (0, 1)), ((2, 2), (2, 2))):
        found = fg.jit(lambda x, w=widths: np.pad(x * 2.0, w, constant_values=7.0))(x)
        assert np.array_equal(found, np.pad(x * 2.0, widths, constant_values=7.0))
        assert written(lambda x, w=widths: np.pad(x * 2.0, w), x)[0] == found.size
    for shape in ((0, 3), (2, 0), (0, 0)):
        empty = np.zeros(shape)
        found = fg.jit(lambda x: np.pad(x, ((1, 2), (0, 1)), constant_values=-0.0))(empty)
        assert same_bits(found, np.pad(empty, ((1, 2), (0, 1)), constant_values=-0.0))
    assert written(lambda x: np.concatenate([x * 2.0, x + 1.0, x * x], 1), x) == (72, 1)
    assert written(lambda x: np.concatenate([x[:1], x[1:]]), x)[0] == 24
    spread = fg.jit(lambda x: fg.grad(lambda y: np.sum(y[::2, 1:] ** 2))(x))(x)  # a pad between elements
    expected = np.zeros_like(x)
    expected[::2, 1:] = 2 * x[::2, 1:]
    assert np.array_equal(spread, expected)


def _lookback(x: Any, i: Any) -> Any:
    """A recurrence that fills an array, each element from an earlier one."""
    y = fnp.zeros_like(x)
    for k in range(1, 6):
        y = y.at[k].set(np.sin(y[i[k % 3]]) + x[k])
    return y


MIXED: dict[str, Any] = {
    "running sum": lambda x, i: np.cumsum(np.exp(x)) * x,
    "running product": lambda x, i: np.cumprod(x),
    "running maximum": lambda x, i: bind1(registry["cummax"], x, axis=0, reverse=False),
    "gathered": lambda x, i: np.sum(x[i] ** 2) * x,
    "rows": lambda x, i: np.sum((x[:, None] * x)[i] @ x) * x,
    "set": lambda x, i: x.at[i].set(np.tanh(x[:3])),
    "added and multiplied in a window": lambda x, i: x.at[i].add(x[1:4]).at[i[0]].multiply(x[i[1]]),
    "least": lambda x, i: x.at[i].min(x[2:5] * 2.0),
    "at the largest": lambda x, i: x[np.argmax(x)] * x + x.at[np.argmin(x)].set(1.0),
    "two axes": lambda x, i: (x[:, None] * x).at[i, i[::-1]].add(x[:3])[i[0]],
    "a window": lambda x, i: (x[:, None] * x).at[i[0], 1:4].set(x[i] * x[0]).sum(axis=1),
    "filled in": lambda x, i: fnp.take(x, i + 4, mode="fill", fill_value=0.0).sum() * x,
    "an array step by step": _lookback,
}


@pytest.mark.parametrize("name", MIXED)
def test_derivatives_and_batches_of_ordered_operations_are_one_native_call(name: str) -> None:
    rng = np.random.default_rng(0)
    f, i = MIXED[name], np.array([4, -5, 4])
    x, dx, w = rng.normal(size=(3, 6))
    loss = lambda x, i: fnp.sum(f(x, i) * (fnp.arange(6) - 2.5))
    functions: list[Any] = [
        lambda x, i, v: f(x, i),
        lambda x, i, v: fg.grad(loss)(x, i),
        lambda x, i, v: fg.jvp(lambda x: f(x, i), (x,), (v,))[1],
        lambda x, i, v: fg.vmap(f, in_axes=(0, None))(fnp.stack([x, v]), i),
        lambda x, i, v: fg.vmap(f, in_axes=(None, 0))(x, fnp.stack([i, i + 1, i * 0])),
        lambda x, i, v: fg.vmap(fg.grad(loss))(fnp.stack([x, v]), fnp.stack([i, i + 1])),
        lambda x, i, v: fg.hvp(lambda x: loss(x, i), (x,), (v,)),
    ]
    for g in functions:
        program = fg.make_program(g)(x, i, dx)
        assert not [e.primitive.name for e in simplify(program).equations if not native_form(e)]
        with eagerly():
            (found,), (expected,) = Executable(program)([x, i, w]), run(program, [x, i, w])
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
