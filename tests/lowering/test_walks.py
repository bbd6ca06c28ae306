"""Cumulative operations, scatters, windows, positions of extremes, gathers and products of integers as machine code.

Each on every dtype with edge values, on axes of length 0, 1 and beyond a vector, on operands of any layout; the bits
are those of evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.executable import Executable
from tests.lowering.test_native_ops import DTYPES, edges, same_bits

SHAPES = [(1,), (7,), (8,), (19,), (0,), (3, 5), (5, 17), (17, 5), (1, 9), (9, 1), (4, 0), (2, 3, 4), (3, 1, 18)]
FLOATS = ["float32", "float64"]
TYPES = [(s, d) for d in DTYPES for s in (SHAPES if d in ("float64", "uint8") else [(19,), (17, 5), (3, 1, 18)])]


def drawn(rng: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small numbers, among them edge values."""
    x = np.asarray(rng.integers(-4 if np.dtype(dtype).kind in "if" else 0, 5, shape)).astype(dtype)
    some = np.array([v for v in edges(dtype) if v == v]) if rng.random() < 0.7 else edges(dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(some, shape), x).astype(dtype)


def agree(f: Callable[..., Any], *args: Any, also: Sequence[Sequence[Any]] = ()) -> None:
    """`f` is one native call, which gives the bits of evaluation and leaves its arguments alone.

    So for `args`, and for the other arguments of the same types in `also`.
    """
    program = fg.make_program(f)(*args)
    executable = Executable(program)
    for values in (args, *also):
        before = [np.array(a) for a in values]
        with eagerly(), np.errstate(all="ignore"):
            found, expected = executable(values), run(program, values)
        assert executable.whole is not None
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert same_bits(a, b), f"result {i}: {a} is not {b}\n{program}"
        assert all(same_bits(a, b) for a, b in zip(values, before, strict=True))


def layouts(x: Any) -> list[Any]:
    """Values that lie in memory in several ways."""
    n = x.ndim
    turned = bind1(registry["transpose"], x, axes=tuple(reversed(range(n)))) if n > 1 else x
    flipped = bind1(registry["reverse"], x, axes=(n - 1,))
    repeated = bind1(registry["broadcast"], x, shape=(*x.shape, 3), axes=tuple(range(n)))
    return [x, turned, flipped, repeated]


# -- cumulative


@pytest.mark.parametrize(("shape", "dtype"), TYPES)
def test_cumulative(shape: tuple[int, ...], dtype: str) -> None:
    names = ["cummax", "cummin"] + (["cumsum", "cumprod"] if dtype != "bool" else [])

    def f(x: Any) -> Any:
        return [
            bind1(registry[name], v, axis=axis, reverse=reverse)
            for v in layouts(x)
            for name in names
            for axis in range(v.ndim)
            for reverse in (False, True)
        ]

    agree(f, drawn(np.random.default_rng(0), shape, dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_linear_recurrence(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = drawn(rng, shape, "float64"), drawn(rng, shape, "float64")
    keep = rng.random(shape) < 0.7

    def f(a: Any, b: Any, keep: Any) -> Any:
        op = registry["linear_recurrence"]
        operands = [*zip(*map(layouts, (a, b, keep)), strict=True), (a, fg.numpy.zeros_like(b), keep)]
        always = fg.numpy.ones_like(keep)
        return [
            bind1(op, *xs, axis=axis, reverse=reverse)
            for xs in [*operands, (a, b, always)]
            for axis in range(xs[0].ndim)
            for reverse in (False, True)
        ]

    agree(f, a, b, keep)


@pytest.mark.parametrize("shape", [(300,), (40, 3), (40, 33)])
def test_a_recurrence_of_singles_is_within_half_an_ulp(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, *shape)).astype("float32")
    keep = np.ones(shape, bool)
    f = fg.jit(lambda *v: bind1(registry["linear_recurrence"], *v, axis=0, reverse=False))
    exact = registry["linear_recurrence"].evaluate(a.astype(float), b.astype(float), keep, axis=0, reverse=False)[0]
    assert np.array_equal(f(a, b, keep), exact.astype("float32"))


# -- scatters

SCATTERS = ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"]
PLACES: list[tuple[tuple[int, ...], Any]] = [
    ((5,), [[0, 3, 1]]),
    ((5,), [[4, 4, 4, 0, 4, 0, 4, 0, 0, 4, 4]]),
    ((5,), [[9, -1, 5, -6, 2**62, -(2**63), 2]]),
    ((4, 3), [[1, 3, 1]]),
    ((4, 3), [[7, -1, 0, 0]]),
    ((4, 19), [[1, 3, 1, 8, 1]]),
    ((4, 8), [[2, 2]]),
    ((4,), [2]),
    ((4,), [9]),
    ((4, 17), [3]),
    ((3, 4), [[0, 2, 0, 3], [1, 3, 1, 0]]),
    ((3, 4), [2, -3]),
    ((3, 2, 9), [[[0, 2], [1, 2]], [[1, 0], [1, 5]]]),
    ((3, 2, 3, 5), [[2, 2, -1]]),
    ((3, 2), [[]]),
    ((3, 0), [[1]]),
    ((0, 2), [[]]),
    ((1,), [[[0, 0], [0, 0]]]),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatters(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape, places in PLACES:
        indices = [np.asarray(p, np.int64) for p in places]
        window = (*indices[0].shape, *shape[len(indices) :])

        def f(x: Any, u: Any, *indices: Any) -> Any:
            ops = [(registry[name], mode) for name in SCATTERS for mode in ("clip", "drop")]
            return [bind1(op, x, u, *indices, mode=mode) for op, mode in ops]

        agree(f, drawn(rng, shape, dtype), drawn(rng, window, dtype), *indices)


def test_scatters_of_operands_of_any_layout() -> None:
    rng = np.random.default_rng(0)
    for name in SCATTERS:
        op = registry[name]

        def f(x: Any, u: Any, i: Any, op: Any = op) -> Any:
            turned = bind1(registry["transpose"], x, axes=(1, 0))
            back = bind1(registry["transpose"], u, axes=(1, 0))
            out = [bind1(op, turned, back, i, mode="clip"), bind1(op, turned, turned[i], i[::-1], mode="drop")]
            out.append(bind1(op, turned * 2.0, back + 1.0, i, mode="clip"))
            out.append(bind1(op, fg.numpy.zeros_like(turned), back, i, mode="clip"))
            out.append(bind1(op, turned, fg.numpy.full_like(back, 3.0), i, mode="clip"))
            return [*out, bind1(op, turned, back, fg.numpy.full_like(i, 2), mode="drop"), turned]

        agree(f, drawn(rng, (18, 7), "float64"), drawn(rng, (18, 5), "float64"), np.array([3, 6, 3, -2, 0]))


def test_sums_have_the_order_of_the_updates() -> None:
    values = np.array([1e16, 1.0, -1e16, 1.0, 1.0])
    f = fg.jit(lambda x, u, i: x.at[i].add(u))
    assert f(np.zeros(2), values, np.zeros(5, int)).tolist() == [((((1e16 + 1.0) - 1e16) + 1.0) + 1.0), 0.0]


# -- windows

WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((5,), (2,), (2,)),
    ((30,), (3,), (19,)),
    ((3, 4), (1, 0), (2, 3)),
    ((3, 40), (0, 2), (3, 33)),
    ((3, 4), (0, 0), (3, 4)),
    ((3,), (9,), (2,)),
    ((3,), (2**63 - 1,), (1,)),
    ((3,), (-(2**63),), (1,)),
    ((3, 5, 7), (-4, 2, 6), (1, 2, 7)),
    ((3,), (1,), (0,)),
    ((0, 3), (0, 1), (0, 2)),
    ((), (), ()),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape, starts, sizes in WINDOWS:

        def f(x: Any, u: Any, *starts: Any, sizes: Any = sizes) -> Any:
            read, write = registry["dynamic_slice"], registry["dynamic_update_slice"]
            zeros = [fg.numpy.zeros_like(s) for s in starts]
            window = bind1(read, x, *starts, sizes=sizes)
            axes = tuple(reversed(range(x.ndim)))
            turned = bind1(registry["transpose"], x, axes=axes)
            return (
                window,
                bind1(write, x, u, *starts),
                bind1(write, x, window, *zeros),
                bind1(read, bind1(write, x, u, *starts), *starts, sizes=sizes),
                bind1(read, turned, *starts[::-1], sizes=sizes[::-1]),
                bind1(write, turned, bind1(registry["transpose"], u, axes=axes), *starts[::-1]),
                bind1(write, fg.numpy.zeros_like(x), u, *starts),
            )

        agree(f, drawn(rng, shape, dtype), drawn(rng, sizes, dtype), *[np.asarray(s, np.int64) for s in starts])


# -- positions of extremes


@pytest.mark.parametrize(
    ("shape", "dtype"), [*[t for t in TYPES if t[0] != (0,)], ((3, 301), "float64"), ((523,), "int8")]
)
def test_positions_of_extremes(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)

    def f(x: Any) -> Any:
        names = ("argmax", "argmin")
        return [
            bind1(registry[n], v, axis=a) for v in layouts(x) for n in names for a in range(v.ndim) if v.shape[a] > 0
        ]

    values = [drawn(rng, shape, dtype), *[np.full(shape, x) for x in edges(dtype)]]
    if np.dtype(dtype).kind == "f":
        for x in (np.nan, np.inf, -np.inf, -0.0):
            values.append(np.where(rng.random(shape) < 0.2, np.nan, rng.choice([x, 0.0], shape)).astype(dtype))
    agree(f, drawn(rng, shape, dtype), also=[[v] for v in values])


def test_a_position_and_its_value_share_a_loop() -> None:
    text = fg.show(lambda x: (np.argmax(x, axis=1), np.max(x, axis=1)), np.ones((3, 4)), stage="kernels")
    assert text.count("kernel") == 1


# -- gather


@pytest.mark.parametrize("dtype", DTYPES)
def test_gathers(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape, places in PLACES:
        indices = [np.asarray(p, np.int64) for p in places]

        def f(x: Any, *indices: Any, n: int = len(indices)) -> Any:
            op = registry["gather"]
            axes = (*reversed(range(n)), *range(n, x.ndim))
            turned = bind1(registry["transpose"], x, axes=axes)
            flipped = bind1(registry["reverse"], x, axes=(x.ndim - 1,))
            ones = [fg.numpy.full_like(i, min(1, m - 1)) for i, m in zip(indices, x.shape, strict=False)]
            return [
                bind1(op, x, *indices),
                bind1(op, turned, *indices[::-1]),
                bind1(op, flipped, *indices),
                bind1(op, x, *ones),
                bind1(op, fg.numpy.ones_like(x), *indices),
            ]

        agree(f, drawn(rng, shape, dtype), *indices)


# -- products of integers, and products without sums


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in FLOATS])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 1, 1), (3, 17, 2), (2, 3, 18), (2, 0, 3), (0, 2, 2)])
def test_products_of_integers(sizes: tuple[int, int, int], dtype: str) -> None:
    rng = np.random.default_rng(0)
    m, k, n = sizes

    def f(x: Any, y: Any, bx: Any, by: Any) -> Any:
        op, none = registry["dot"], ((), ())
        turned = [bind1(registry["transpose"], v, axes=(1, 0)) for v in (x, y)]
        return [
            bind1(op, x, y, contract=((1,), (0,)), batch=none),
            bind1(op, turned[0], y, contract=((0,), (0,)), batch=none),
            bind1(op, y, x, contract=((0,), (1,)), batch=none),
            bind1(op, bx, by, contract=((2,), (1,)), batch=((0,), (0,))),
            bind1(op, bx, by, contract=((2, 0), (1, 0)), batch=none),
            bind1(op, x, x, contract=((0, 1), (0, 1)), batch=none),
            bind1(op, x, x, contract=none, batch=((0,), (0,))),
            bind1(op, turned[0], bx, contract=((0,), (2,)), batch=none),
        ]

    agree(f, *[drawn(rng, s, dtype) for s in ((m, k), (k, n), (2, m, k), (2, k, n))])


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_floats_without_sums(dtype: str) -> None:
    rng = np.random.default_rng(0)
    f = lambda x, y: bind1(registry["dot"], x, y, contract=((), ()), batch=((1,), (0,)))
    agree(f, drawn(rng, (3, 5), dtype), drawn(rng, (5, 9), dtype))


# -- constants


def test_reductions_and_checks_of_constants() -> None:
    def f(x: Any, i: Any) -> Any:
        ones, index = fg.numpy.ones_like(x), fg.numpy.full_like(i, 1)
        found = [np.sum(ones), np.sum(ones, axis=0), np.max(ones * 0.0, axis=1), np.argmax(ones, axis=1)]
        return *found, x[index], ones[i], x[1]

    agree(f, np.arange(35.0).reshape(5, 7), np.array([1, 0]))
    g = lambda x: bind1(registry["check_index"], fg.numpy.full((3,), 5), axis=0, length=4, window=1, of="") + x
    with pytest.raises(fg.errors.OutOfBoundsError, match="index 5 is out of bounds"):
        fg.jit(g)(np.arange(3))
