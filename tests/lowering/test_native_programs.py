"""Random Programs of exact operations on every dtype: machine code gives the bits that evaluation gives, for every
intermediate; and reductions of floats keep their error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors
from funcgrad.core.evaluate import run
from funcgrad.core.trace import eagerly
from funcgrad.lowering.executable import Executable
from tests.lowering.test_native_ops import DTYPES, same_bits

SHAPES = [(), (1,), (3,), (5,), (8,), (17,), (2, 3), (3, 1), (4, 9), (0, 2), (2, 3, 4), (1, 5), (33, 2)]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-310, 0.5, 3.0, -2.5]
BINARY = [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "less", "less_equal", "greater",
    "greater_equal", "equal", "not_equal", "floor_divide", "remainder", "fmod", "bitwise_xor", "bitwise_and",
    "bitwise_or", "left_shift", "right_shift", "logical_and", "logical_or", "logical_xor", "copysign", "heaviside",
]  # fmt: skip
UNARY = [
    "negative", "absolute", "sign", "floor", "ceil", "trunc", "rint", "square", "sqrt", "isnan", "isinf", "isfinite",
    "logical_not", "invert", "signbit", "bitwise_count",
]  # fmt: skip


def draw_array(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        x = rng.normal(size=shape) * rng.choice([1, 10, 1e-3])
        with np.errstate(all="ignore"):
            return np.where(rng.random(shape) < 0.25, rng.choice(SPECIAL, shape), x).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    return rng.integers(-5 if dtype.kind == "i" else 0, 9, shape).astype(dtype)


def numbers(x: Any) -> Any:
    """`x` without NaN, whose sign is open."""
    return fnp.where(fnp.isnan(x), fnp.ones_like(x), x) if x.dtype.kind == "f" else x


def step(r: Any, pool: list[Any]) -> Any:
    """One random operation on values of the pool, or None."""
    x, y = pool[r.integers(len(pool))], pool[r.integers(len(pool))]
    kind = r.integers(20)
    if kind < 7:
        name = r.choice(BINARY)
        return getattr(fnp, name)(x, numbers(y) if name == "copysign" else y)
    if kind < 11:
        name = r.choice(UNARY)
        return getattr(fnp, name)(numbers(x) if name == "signbit" else x)
    if kind == 11:
        return fnp.where(pool[r.integers(len(pool))] != 0, x, y)
    if kind == 12:
        return x.astype(r.choice(DTYPES))
    if kind == 13:
        return fnp.reshape(x, (-1,)) if r.random() < 0.5 else fnp.expand_dims(x, 0)
    if not x.ndim:
        return None
    axis = int(r.integers(x.ndim))
    if kind == 14:
        return fnp.transpose(x, tuple(r.permutation(x.ndim).tolist()))
    if kind == 15:
        return fnp.flip(x, axis)
    if kind == 16:
        index: list[Any] = [slice(None)] * x.ndim
        index[axis] = slice(int(r.integers(0, 2)), None, int(r.integers(1, 3)))
        return x[tuple(index)]
    if kind == 17:
        widths = [(int(r.integers(3)), int(r.integers(3)))] * x.ndim
        return fnp.pad(x, widths) if r.random() < 0.5 else fnp.concatenate([x, x], axis)
    if kind == 18 and x.size:
        found = getattr(fnp, r.choice(["max", "min", "any", "all"]))(x, axis=axis if r.random() < 0.8 else None)
        return found + 0.0 if found.dtype.kind == "f" else found  # the sign of a zero is open
    if kind == 19 and np.dtype(x.dtype).kind in "iub":
        return fnp.sum(x, axis=axis)
    return fnp.arange(x.shape[-1]) + x


def random_program(seed: int, count: int) -> Any:
    def f(*xs: Any) -> Any:
        r, pool = np.random.default_rng(seed), list(xs)
        while len(pool) < len(xs) + count:
            try:
                z = step(r, pool)
            except (errors.DtypeError, errors.ShapeError):
                continue
            if z is not None and z.size <= 4000 and z.dtype.name in DTYPES and z.ndim < 6:
                pool.append(z)
        return tuple(pool[len(xs) :])

    return f


@settings(max_examples=60)
@given(st.integers(0, 2**31))
def test_random_programs_bit_for_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = SHAPES[rng.integers(len(SHAPES))]
    xs = [draw_array(rng, shape if rng.random() < 0.8 else (), DTYPES[rng.integers(len(DTYPES))]) for _ in range(3)]
    before = [x.copy() if x.ndim else x for x in xs]
    program = fg.make_program(random_program(seed, int(rng.integers(8, 40))))(*xs)
    with eagerly():
        found, expected = Executable(program)(xs), run(program, xs)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(a, b), f"result {i}"
    assert all(same_bits(a, b) for a, b in zip(xs, before, strict=True))


@pytest.mark.slow
def test_many_random_programs() -> None:
    for seed in range(5000):
        test_random_programs_bit_for_bit.hypothesis.inner_test(seed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (1000,), (12345,), (37, 53), (3, 1000), (1000, 3), (5, 6, 7)])
def test_sums_are_within_an_ulp_of_the_exact_result(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(dtype)
    axes: list[Any] = [None, *range(len(shape))]
    for axis in axes:
        found = np.asarray(fg.jit(lambda x, a=axis: np.sum(x, axis=a))(x), np.float64)
        moved = np.moveaxis(x, axis, -1) if axis is not None else x.reshape(1, -1)
        rows = moved.reshape(-1, moved.shape[-1]).astype(float)
        exact = np.array([math.fsum(r) for r in rows]).reshape(found.shape)
        magnitude = np.array([math.fsum(abs(r)) for r in rows]).reshape(found.shape)
        eps = np.finfo(dtype).eps
        assert np.all(abs(found - exact) <= eps * abs(exact) + eps**2 * x.size * magnitude)


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
    from funcgrad.lowering.builder import Target
    from funcgrad.lowering.emit import emit
    from funcgrad.lowering.simplify import simplify

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


def test_an_unrolled_loop_is_cut_into_parts() -> None:
    from funcgrad.lowering.builder import Target
    from funcgrad.lowering.emit import PART, emit
    from funcgrad.lowering.simplify import simplify

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
