"""Indexing by arrays and traced positions: NumPy's indexing and ``ufunc.at`` are the oracles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.base.errors import DtypeError, OutOfBoundsError, ParameterError, ShapeError
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.broadcasting import reduce_sum
from funcgrad.ops.indexing import (
    gather,
    scatter,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
)
from funcgrad.ops.op import aval_of
from funcgrad.ops.powers import sqrt
from funcgrad.ops.windows import dynamic_slice, dynamic_update_slice

RNG = np.random.default_rng(0)
NAN = np.nan

# shape of x, shape S of the indices, number of indexed axes
SHAPES = [
    ((5,), (), 1),
    ((5,), (7,), 1),
    ((4, 3), (2, 3), 2),
    ((4, 3, 2), (5,), 1),
    ((4, 3, 2), (6,), 2),
    ((1, 2), (3,), 1),
    ((3, 2), (0,), 1),
    ((3, 0), (2,), 1),
    ((2, 2), (), 2),
]
SCATTERS = [scatter, scatter_add, scatter_mul, scatter_min, scatter_max]
UFUNCS = {scatter_add: np.add, scatter_mul: np.multiply, scatter_min: np.minimum, scatter_max: np.maximum}


def positions(shape: Sequence[int], S: tuple[int, ...], k: int) -> list[Any]:
    """Random positions, some counted from the end."""
    return [np.asarray(RNG.integers(-n, n, size=S)) for n in shape[:k]]


def scattered(function: Any, x: Any, updates: Any, *indices: Any) -> Any:
    out = x.copy()
    if function is scatter:
        for s in np.ndindex(indices[0].shape):
            out[tuple(i[s] for i in indices)] = updates[s]
    else:
        UFUNCS[function].at(out, indices, updates)
    return out


def total(x: Any) -> Any:
    return reduce_sum(x, tuple(range(aval_of(x).ndim)))


def check_derivatives(f: Callable[..., Any], *args: Any) -> None:
    """First and second derivatives in both modes, along random directions, against central differences."""
    dots = [RNG.normal(size=a.shape) for a in args]
    more = [RNG.normal(size=a.shape) for a in args]

    def numeric(g: Callable[..., Any], along: Sequence[Any]) -> Any:
        h = 1e-6
        ahead = g(*[a + h * d for a, d in zip(args, along, strict=True)])
        return (ahead - g(*[a - h * d for a, d in zip(args, along, strict=True)])) / (2 * h)

    out, out_dot = fg.jvp(f, args, tuple(dots))
    np.testing.assert_allclose(out_dot, numeric(f, dots), rtol=1e-6, atol=1e-6)
    w = RNG.normal(size=out.shape)
    back = fg.vjp(f, *args)[1](w)
    pairing = sum(np.vdot(b, d) for b, d in zip(back, dots, strict=True))
    assert pairing == pytest.approx(np.vdot(w, out_dot), rel=1e-9, abs=1e-9)
    for i, (a, d) in enumerate(zip(args, dots, strict=True)):  # the others without tangents
        one = lambda v, i=i: f(*args[:i], v, *args[i + 1 :])
        one_dot = fg.jvp(one, (a,), (d,))[1]
        assert np.vdot(fg.vjp(one, a)[1](w)[0], d) == pytest.approx(np.vdot(w, one_dot), rel=1e-9, abs=1e-9)

    gradients = lambda *v: fg.vjp(f, *v)[1](w)
    forward = lambda *v: fg.jvp(f, v, tuple(dots))[1]
    second = np.vdot(w, numeric(forward, more))
    along = lambda given: sum(np.vdot(g, d) for g, d in zip(given, dots, strict=True))
    assert np.vdot(w, fg.jvp(forward, args, tuple(more))[1]) == pytest.approx(second, rel=1e-5, abs=1e-5)
    assert along(fg.jvp(gradients, args, tuple(more))[1]) == pytest.approx(second, rel=1e-5, abs=1e-5)
    twice = fg.vjp(gradients, *args)[1](tuple(dots))
    pairing = sum(np.vdot(t, m) for t, m in zip(twice, more, strict=True))
    assert pairing == pytest.approx(second, rel=1e-5, abs=1e-5)


def check_rows(f: Callable[..., Any], make: Callable[[], list[Any]], size: int = 3) -> None:
    """vmap against a loop, for every choice of batched operands, rows first and last; also of a gradient."""
    rows = [make() for _ in range(size)]
    n = len(rows[0])
    floats = tuple(i for i, a in enumerate(rows[0]) if a.dtype.kind == "f")
    gradient = fg.grad(lambda *v: total(mul(f(*v), f(*v))), floats)
    for chosen, dim in itertools.product(itertools.product([True, False], repeat=n), (0, -1)):
        if not any(chosen):
            continue
        dims = tuple(dim if c else None for c in chosen)
        args = [np.stack([r[i] for r in rows], dim) if c else rows[0][i] for i, c in enumerate(chosen)]
        each = [[r[i] if c else rows[0][i] for i, c in enumerate(chosen)] for r in rows]
        np.testing.assert_array_equal(fg.vmap(f, in_axes=dims)(*args), np.stack([f(*a) for a in each]))
        if dim == 0:
            found = fg.vmap(gradient, in_axes=dims)(*args)
            for j, g in enumerate(found):
                expected = np.stack([gradient(*a)[j] for a in each])
                np.testing.assert_allclose(g, expected, rtol=1e-12, atol=1e-12)


# -- gather


@pytest.mark.parametrize(("shape", "S", "k"), SHAPES)
def test_gather(shape: tuple[int, ...], S: tuple[int, ...], k: int) -> None:
    x, indices = RNG.normal(size=shape), positions(shape, S, k)
    np.testing.assert_array_equal(gather(x, *indices), x[tuple(indices)])
    moved = RNG.normal(size=shape[::-1]).T  # not contiguous
    np.testing.assert_array_equal(gather(moved, *indices), moved[tuple(indices)])
    check_derivatives(lambda v: gather(v, *indices), x)
    check_rows(gather, lambda: [RNG.normal(size=shape), *positions(shape, S, k)])


def test_modes_of_gather() -> None:
    x, i = np.array([10.0, 11.0, 12.0]), np.array([-4, -1, 0, 2, 3, 7])
    np.testing.assert_array_equal(gather(x, i, mode="clip"), np.take(x, i, mode="clip"))
    np.testing.assert_array_equal(gather(x, i, mode="wrap"), np.take(x, i, mode="wrap"))
    np.testing.assert_array_equal(gather(x, i, mode="fill"), [NAN, 12, 10, 12, NAN, NAN])
    np.testing.assert_array_equal(gather(x, i, mode="fill", fill_value=5), [5, 12, 10, 12, 5, 5])
    for mode in ("clip", "wrap", "fill"):
        f = lambda v, i, mode=mode: gather(v, i, mode=mode, fill_value=2.0)
        check_derivatives(lambda v, f=f: f(v, i), x)
        check_rows(f, lambda: [RNG.normal(size=3), RNG.integers(-6, 6, size=4)])
    with pytest.raises(ParameterError, match="mode is one of raise, clip, wrap, fill, got 'drop'"):
        gather(x, i, mode="drop")


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("int8", -128), ("uint8", 255), ("int64", -(2**63)), ("bool", False), ("float32", NAN), ("complex128", NAN)],
)
def test_default_fill(dtype: str, fill: Any) -> None:
    out = gather(np.ones(2, dtype), np.array([1, 2]), mode="fill")
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, np.array([1, fill], dtype))
    for f in (gather, fg.jit(gather, static_argnames="mode")):
        np.testing.assert_array_equal(f(np.ones((0, 2), dtype), np.array([0]), mode="fill")[0], [fill, fill])


# -- scatter


@pytest.mark.parametrize("function", SCATTERS)
@pytest.mark.parametrize(("shape", "S", "k"), SHAPES)
def test_scatters(function: Any, shape: tuple[int, ...], S: tuple[int, ...], k: int) -> None:
    make = lambda: [RNG.normal(size=shape), RNG.normal(size=(*S, *shape[k:])), *positions(shape, S, k)]
    x, updates, *indices = make()
    kept = x.copy()
    np.testing.assert_array_equal(function(x, updates, *indices), scattered(function, x, updates, *indices))
    np.testing.assert_array_equal(x, kept)
    check_derivatives(lambda x, u: function(x, u, *indices), x, updates)
    if len(shape) < 3:
        check_rows(function, make)


@pytest.mark.parametrize("function", SCATTERS)
def test_modes_of_scatters(function: Any) -> None:
    x, updates = RNG.normal(size=(3, 2)), RNG.normal(size=(6, 2))
    i = np.array([-4, -1, 0, 2, 3, 0])
    clipped = scattered(function, x, updates, np.clip(i, 0, 2))
    np.testing.assert_array_equal(function(x, updates, i, mode="clip"), clipped)
    inside = np.array([1, 2, 3, 5])
    dropped = scattered(function, x, updates[inside], i[inside])
    np.testing.assert_array_equal(function(x, updates, i, mode="drop"), dropped)
    np.testing.assert_array_equal(function(x[:0], updates, i, mode="drop"), x[:0])
    for mode in ("clip", "drop"):
        f = lambda x, u, i, mode=mode: function(x, u, i, mode=mode)
        check_derivatives(lambda x, u, f=f: f(x, u, i), x, updates)
        check_rows(f, lambda: [RNG.normal(size=3), RNG.normal(size=4), RNG.integers(-5, 5, size=4)])


@pytest.mark.parametrize("function", SCATTERS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "complex64"])
def test_dtypes_of_scatters(function: Any, dtype: str) -> None:
    x, u = (3 * RNG.normal(size=(4, 2))).astype(dtype), (3 * RNG.normal(size=(6, 2))).astype(dtype)
    i = np.array([0, 2, 2, -1, 0, 2])
    out = function(x, u, i)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, scattered(function, x, u, i))


def test_what_scatter_mul_drops_has_no_derivative_at_other_places() -> None:
    """A place outside along one of two axes: its number would be that of a place inside."""
    x, u = np.arange(1.0, 7.0).reshape(2, 3), np.array([2.0, 3.0, 5.0, 7.0])
    rows, columns = np.array([0, 0, 1, -1]), np.array([1, 4, -2, 1])
    f = lambda u: scatter_mul(x, u, rows, columns, mode="drop")
    expected = np.zeros((2, 3, 4))
    expected[0, 1, 0], expected[1, 1, 2], expected[1, 1, 3] = x[0, 1], x[1, 1] * 7, x[1, 1] * 5
    for inner in (fg.jacfwd(f), fg.jacrev(f), fg.jit(fg.jacfwd(f))):
        np.testing.assert_array_equal(inner(u), expected)


@pytest.mark.parametrize("mode", [fg.jacfwd, fg.jacrev])
def test_the_last_of_repeated_positions_wins(mode: Any) -> None:
    x, i = np.zeros(2), np.array([0, 0, 1, 0])
    np.testing.assert_array_equal(scatter(x, np.array([1.0, 2.0, 3.0, 4.0]), i), [4, 3])
    found = mode(lambda u: scatter(x, u, i))(np.ones(4))
    np.testing.assert_array_equal(found, [[0, 0, 0, 1], [0, 0, 1, 0]])
    np.testing.assert_array_equal(mode(lambda x: scatter(x, np.ones(1), np.array([1])))(x), [[1, 0], [0, 0]])


@pytest.mark.parametrize("mode", [fg.jacfwd, fg.jacrev])
def test_ties_of_scatter_max_share_the_derivative(mode: Any) -> None:
    x, u, i = np.array([1.0, 2.0, 7.0]), np.array([1.0, 1.0, 0.0, 5.0]), np.array([0, 0, 1, 1])
    third = 1 / 3
    np.testing.assert_array_equal(mode(lambda x: scatter_max(x, u, i))(x), np.diag([third, 0, 1]))
    expected = [[third, third, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(mode(lambda u: scatter_max(x, u, i))(u), expected)
    np.testing.assert_array_equal(mode(lambda u: scatter_min(-x, u, i))(-u), expected)


@pytest.mark.parametrize(
    ("x", "u"), [([0, 2], [0, 3, 0, 5]), ([2, 2], [0, 0, 3, 5]), ([0, 0], [0, 0, 0, 0]), ([2, 3], [4, 5, 6, 7])]
)
def test_derivatives_of_scatter_mul_are_exact_with_zeros(x: list[int], u: list[int]) -> None:
    i, n = np.array([0, 1, 0, 1]), len(x)
    f = lambda v: scatter_mul(gather(v, np.arange(n)), gather(v, n + np.arange(len(u))), i)
    exact = lambda v: scattered(scatter_mul, v[:n], v[n:], i)
    point, m = np.array([*x, *u], float), n + len(u)
    at = lambda *where: exact(point + sum(np.eye(m)[list(where)]))
    first = np.stack([at(p) - at() for p in range(m)], axis=1)
    second = np.zeros((n, m, m))
    for p, q in itertools.permutations(range(m), 2):
        second[:, p, q] = at(p, q) - at(p) - at(q) + at()
    for inner in (fg.jacfwd, fg.jacrev):
        np.testing.assert_array_equal(inner(f)(point), first)
        for outer in (fg.jacfwd, fg.jacrev):
            np.testing.assert_array_equal(outer(inner(f))(point), second)


@pytest.mark.parametrize("mode", [fg.jacfwd, fg.jacrev])
def test_zeros_put_by_indexing_are_strong(mode: Any) -> None:
    """What is not taken, overwritten or dropped has derivative zero, even where its own is infinite."""
    x, rest = np.array([0.0, 1.0, 4.0]), np.diag([0, 0.5, 0.25])
    check = lambda f, expected: np.testing.assert_array_equal(mode(f)(x), expected)
    check(lambda v: gather(sqrt(v), np.array([1, 2])), rest[1:])
    check(lambda v: gather(sqrt(v), np.array([1, 9]), mode="fill"), [rest[1], np.zeros(3)])
    check(lambda v: dynamic_slice(sqrt(v), np.int64(1), sizes=(2,)), rest[1:])
    check(lambda v: scatter(sqrt(v), np.ones(1), np.array([0])), rest)
    check(lambda v: dynamic_update_slice(sqrt(v), np.ones(1), np.int64(0)), rest)
    check(lambda v: scatter(np.ones(3), sqrt(v), np.array([1, 1, 2])), rest)
    for function in (scatter, scatter_add):
        check(lambda v, f=function: f(np.ones(3), sqrt(v), np.array([9, 1, 2]), mode="drop"), rest)
    check(lambda v: scatter_max(np.ones(3), sqrt(v), np.array([0, 1, 2])), np.diag([0, 0.25, 0.25]))


# -- what raises


def test_positions_outside_raise() -> None:
    x = np.ones((2, 3))
    i = np.array([0, 1])
    message = "index -4 is out of bounds for axis 5 of length 3"
    with pytest.raises(IndexError, match=message):
        gather(x, i, np.array([0, -4]), axes=(2, 5))
    bad = np.array([0, 2])
    for f in (
        lambda x, i: gather(x, i),
        lambda x, i: scatter_add(x, x, i),
        lambda x, i: dynamic_slice(x, gather(i, np.int64(1)), np.int64(0), sizes=(1, 3)),
    ):
        for g in (f, fg.jit(f), fg.jacrev(f), fg.jit(fg.jacfwd(f)), fg.vmap(f, in_axes=(None, 0))):
            indices = np.array([[0, 1], [0, 2]]) if g.__name__.startswith("vmap") else bad
            with pytest.raises(OutOfBoundsError, match="index 2 is out of bounds for axis 0 of length 2"):
                g(x, indices)


def test_windows_that_do_not_fit_raise() -> None:
    x = np.arange(5.0)
    for start in (3, -2, 9, -6):
        with pytest.raises(OutOfBoundsError, match=f"3 elements from {start} do not fit axis 0 of length 5"):
            dynamic_slice(x, np.int64(start), sizes=(3,))
        with pytest.raises(OutOfBoundsError, match="do not fit"):
            dynamic_update_slice(x, x[:3], np.int64(start))


def test_axes_without_elements() -> None:
    empty, i = np.zeros((0, 2)), np.array([0])
    for mode in ("raise", "clip", "wrap"):
        with pytest.raises(OutOfBoundsError, match=r"gather: axis 0 of f64\[0,2\] has no elements"):
            gather(empty, i, mode=mode)
    assert gather(empty, i[:0]).shape == (0, 2)


def test_types_are_checked() -> None:
    x = np.ones((2, 3))
    with pytest.raises(DtypeError, match=r"gather: an index array has type i32\[1\], not i64"):
        gather(x, np.zeros(1, np.int32))
    with pytest.raises(ShapeError, match="gather: index arrays have different shapes"):
        gather(x, np.zeros(1, np.int64), np.zeros(2, np.int64))
    with pytest.raises(ShapeError, match=r"scatter: updates are f64\[1\], not f64\[1,3\]"):
        scatter(x, np.ones(1), np.zeros(1, np.int64))
    with pytest.raises(ShapeError, match=r"a window of shape \(3, 1\) is larger than f64\[2,3\]"):
        dynamic_slice(x, np.int64(0), np.int64(0), sizes=(3, 1))


# -- dynamic slices


WINDOWS = [((5,), (3,)), ((4, 3), (2, 3)), ((4, 3, 2), (2, 2, 1)), ((3, 2), (3, 2)), ((4,), (0,)), ((), ())]


@pytest.mark.parametrize(("shape", "sizes"), WINDOWS)
def test_dynamic_slices(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    def make(beyond: int = 0) -> list[Any]:
        last = [n - s + beyond for n, s in zip(shape, sizes, strict=True)]
        starts = [np.int64(RNG.integers(-beyond, n + 1)) for n in last]
        return [np.array(RNG.normal(size=shape)), np.array(RNG.normal(size=sizes)), *starts]

    x, update, *starts = make()
    window = tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))
    expected = x.copy()
    expected[window] = update
    take = lambda x, *starts: dynamic_slice(x, *starts, sizes=sizes)
    np.testing.assert_array_equal(take(x, *starts), x[window])
    np.testing.assert_array_equal(dynamic_update_slice(x, update, *starts), expected)
    check_derivatives(lambda v: take(v, *starts), x)
    check_derivatives(lambda v, u: dynamic_update_slice(v, u, *starts), x, update)
    check_rows(take, lambda: (lambda a: [a[0], *a[2:]])(make()))
    check_rows(dynamic_update_slice, make)
    clipped = lambda x, u, *starts: dynamic_update_slice(x, u, *starts, mode="clip")
    check_rows(clipped, lambda: make(9))


def test_clipped_windows_move_until_they_fit() -> None:
    x = np.arange(5.0)
    for start, first in ((4, 3), (9, 3), (-2, 3), (-1, 3), (-5, 0), (-9, 0), (1, 1)):
        found = dynamic_slice(x, np.int64(start), sizes=(2,), mode="clip")
        np.testing.assert_array_equal(found, x[first : first + 2])


def test_a_window_that_all_rows_share_stays_a_window() -> None:
    x, u = np.ones((4, 5)), np.zeros((4, 2))
    take, put = (
        lambda x: dynamic_slice(x, np.int64(1), sizes=(2,)),
        lambda x, u: dynamic_update_slice(x, u, np.int64(1)),
    )
    for f, args, name in ((take, (x,), "dynamic_slice"), (put, (x, u), "dynamic_update_slice")):
        program = fg.make_program(fg.vmap(f))(*args)
        assert [e.primitive.name for e in program.equations if e.primitive.name not in ("transpose", "broadcast")] == [
            name
        ]


def test_positions_are_checked_once() -> None:
    f = lambda x, i: total(mul(gather(x, i), gather(x, i)))
    text = str(fg.make_program(fg.grad(lambda x, i: total(gather(x, i))))(np.ones(3), np.array([0, 2])))
    assert text.count("check_index[axis=0 length=3] i") == 1
    assert fg.grad(f)(np.array([1.0, 2.0, 3.0]), np.array([0, -1, -1])).tolist() == [2, 0, 12]
