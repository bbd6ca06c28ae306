"""Compiled reductions at every length around the borders of vectors and blocks, and the errors of sums of floats:
against math.fsum, and never worse than NumPy's pairwise summation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.ops.reductions import block, few

Array = Any
SHAPES = [(1,), (7,), (8,), (1000,), (12345,), (37, 53), (3, 1000), (1000, 3), (5, 6, 7), (9, 70, 4)]
LENGTHS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 144, 255, 256, 257, 272, 300]


def drawn(kind: str, shape: tuple[int, ...], dtype: str, rng: Any) -> Array:
    x = rng.standard_normal(shape)
    if kind == "positive":
        x = abs(x)
    elif kind == "of all sizes":
        x *= 10.0 ** rng.integers(-6, 6, shape)
    elif kind == "cancelling":
        flat = x.ravel()
        flat[len(flat) // 2 :] = -flat[: len(flat) - len(flat) // 2] * (1 + 1e-6)
        x = rng.permutation(flat).reshape(shape)
    return x.astype(dtype)


KINDS = ["normal", "positive", "of all sizes", "cancelling"]


def rows(x: Array, axes: Sequence[int]) -> Array:
    """The numbers of each sum, contiguous."""
    rest = [i for i in range(x.ndim) if i not in axes]
    return np.ascontiguousarray(np.transpose(x, (*rest, *axes))).reshape(-1, math.prod([x.shape[i] for i in axes]))


def exact(x: Array) -> tuple[Array, Array]:
    """The sum of each row, and of the absolute values."""
    wide = x.astype(float)
    return np.array([math.fsum(r) for r in wide]), np.array([math.fsum(abs(r)) for r in wide])


def all_axes(ndim: int) -> list[tuple[int, ...]]:
    return [tuple(i for i in range(ndim) if bits >> i & 1) for bits in range(1, 1 << ndim)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_meets_no_more_roundings_than_a_pairwise_one(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    unit = float(np.finfo(dtype).eps) / 2
    for axes in all_axes(len(shape)):
        total, mean = (fg.jit(lambda x, f=f, a=axes: f(x, axis=a)) for f in (np.sum, np.mean))
        for kind in KINDS:
            x = drawn(kind, shape, dtype, rng)
            numbers = rows(x, axes)
            n = numbers.shape[1]
            true, size = exact(numbers)
            roundings = n - 1 if n < 8 else min(n // 8 + 2, 16)
            bound = unit * (roundings * size + abs(true)) + unit**2 * n * size
            found = np.asarray(total(x), float).ravel()
            assert np.all(abs(found - true) <= bound), (axes, kind)
            found = np.asarray(mean(x), float).ravel()
            assert np.all(abs(found - true / n) <= (bound + unit * abs(true)) / n), (axes, kind)


def check_sums(kind: str, dtype: str, **where: str) -> None:
    """The mean square error over many sums of each shape, relative to the sum of the absolute values."""
    rng = np.random.default_rng(1)
    for shape, axis in [((8, 64), 0), ((9, 64), 0), ((30, 64), 0), ((64, 20), 1), ((64, 100), 1), ((64, 1000), 1),
                        ((100, 64), 0), ((700, 64), 0), ((64, 4, 33), 2), ((64, 4, 33), 1)]:  # fmt: skip
        f = fg.jit(lambda x, a=axis: np.sum(x, axis=a), **where)
        ours = pairwise = 0.0
        for _ in range(6):
            x = drawn(kind, shape, dtype, rng)
            numbers = rows(x, [axis])
            true, size = exact(numbers)
            ours += float(np.sum(((np.asarray(f(x), float).ravel() - true) / size) ** 2))
            pairwise += float(np.sum(((np.array([r.sum() for r in numbers], float) - true) / size) ** 2))
        assert ours <= pairwise, (shape, axis, (ours / pairwise) ** 0.5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_never_worse_than_pairwise_ones(kind: str, dtype: str) -> None:
    check_sums(kind, dtype)


def test_the_length_of_a_block() -> None:
    for lanes in (1, 2, 4, 8, 16):
        for count in range(1, 400):
            n, size = count * lanes, block(count, lanes)
            roundings = count - 1 if count <= size else size
            # NumPy: r[0..7] add n // 8 numbers each, are joined by 3 additions, and the rest of n is added one by one
            pairwise = n - 1 if n < 8 else n // 8 + 2 if n <= 128 else 18
            assert roundings <= pairwise, (lanes, count)


REDUCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "sum": (np.sum, ["float64", "float32", "int32", "uint8"]),
    "prod": (np.prod, ["float64", "int64"]),
    "max": (np.max, ["float64", "float32", "int16"]),
    "min": (np.min, ["float64", "float32", "uint32"]),
    "any": (np.any, ["bool"]),
    "all": (np.all, ["bool"]),
}


def check_length(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    reduce, dtypes = REDUCTIONS[name]
    if n == 0 and name in ("max", "min"):
        return
    for dtype in dtypes:
        for shape, axis in (((n,), 0), ((n, 3), 0), ((3, n), 1), ((n, 2, 9), 0), ((2, n, 9), (0, 1))):
            if dtype == "bool":
                x = rng.random(shape) < (0.01 if name == "any" else 0.99)
            elif dtype.startswith("float"):
                x = (rng.standard_normal(shape) if name != "prod" else 1 + rng.normal(0, 0.01, shape)).astype(dtype)
            else:
                x = rng.integers(0, 100, shape).astype(dtype)
            found = fg.jit(lambda x, a=axis: reduce(x, axis=a))(x)
            expected = reduce(x.astype(float) if name == "sum" and dtype == "float32" else x, axis=axis)
            if name in ("sum", "prod") and dtype.startswith("float"):
                scale = 1.0 if name == "prod" else np.sum(abs(x), axis=axis, dtype=float)
                assert np.all(abs(found - expected) <= np.finfo(dtype).eps * (8 if name == "sum" else n) * scale)
            else:
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_around_the_borders_of_blocks(name: str) -> None:
    for n in LENGTHS[::2] if name != "sum" else LENGTHS:
        check_length(name, n)


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_every_length(name: str) -> None:
    for n in range(301):
        check_length(name, n)


def test_sums_beyond_the_finite() -> None:
    f = fg.jit(np.sum)
    for n in (3, 40, 1000):
        for at in (0, 1, n // 2, n - 1):
            x = np.ones(n)
            x[at] = np.inf
            assert f(x) == np.inf
            assert f(-x) == -np.inf
            x[(at + 1) % n] = -np.inf
            assert np.isnan(f(x))
            x[(at + 1) % n] = np.nan
            assert np.isnan(f(x))
    assert f(np.full(40, 1e308)) == np.inf
    assert f(np.full(400, -1e308)) == -np.inf


def test_sums_near_the_largest_number() -> None:
    for n in (16, 17, 300):
        x = np.full(n, 1.7e308 / n)
        assert abs(fg.jit(np.sum)(x) - 1.7e308) <= 1.7e308 * 20 * 2.0**-53


def test_few_values_are_folded_plainly_only_within_the_roundings_of_a_pairwise_sum() -> None:
    for lanes in (1, 2, 4, 8, 16):
        for count in range(1, 40):
            n = count * lanes
            allowed = n - 1 if n < 8 else min(n // 8 + 2, 16)
            assert few(count, lanes) == (count - 1 + math.ceil(math.log2(lanes)) <= allowed)
