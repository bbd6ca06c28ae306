"""The general dot product: einsum is the oracle of values, its bilinearity that of derivatives."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.ops.dot import dot

RNG = np.random.default_rng(0)
NONE = ((), ())
MATRIX = ((1,), (0,))

# shapes of x and y, contract, batch
CASES = [
    ((3, 4), (4, 5), ((1,), (0,)), NONE),
    ((4, 3), (4, 5), ((0,), (0,)), NONE),
    ((3, 4), (5, 4), ((1,), (1,)), NONE),
    ((4, 3), (5, 4), ((0,), (1,)), NONE),
    ((4,), (4,), ((0,), (0,)), NONE),
    ((3,), (4, 2), NONE, NONE),
    ((), (3,), NONE, NONE),
    ((3, 4), (4,), ((1,), (0,)), NONE),
    ((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
    ((3, 2, 4), (4, 5, 2), ((2,), (0,)), ((1,), (2,))),
    ((2, 3, 4), (4, 3, 5), ((1, 2), (1, 0)), NONE),
    ((3, 4, 2), (2, 3, 6), ((2, 0), (0, 1)), NONE),
    ((2, 3, 4, 5), (5, 2, 4, 3), ((3,), (0,)), ((0, 2), (1, 2))),
    ((2, 3), (3, 2), NONE, ((0, 1), (1, 0))),
    ((3, 0), (0, 2), ((1,), (0,)), NONE),
    ((0, 3), (3, 2), ((1,), (0,)), NONE),
    ((1, 1), (1, 1), ((1,), (0,)), NONE),
]
all_cases = pytest.mark.parametrize(("x_shape", "y_shape", "contract", "batch"), CASES)


def reference(x: Any, y: Any, contract: Any, batch: Any) -> Any:
    letters = itertools.count()
    in_x: list[Any] = [None] * np.ndim(x)
    in_y: list[Any] = [None] * np.ndim(y)
    out = []
    for pairs, kept in ((batch, True), (contract, False)):
        for i, j in zip(*pairs, strict=True):
            in_x[i] = in_y[j] = next(letters)
            out += [in_x[i]] if kept else []
    for axes in (in_x, in_y):
        for i, letter in enumerate(axes):
            if letter is None:
                axes[i] = next(letters)
                out.append(axes[i])
    return np.einsum(x, in_x, y, in_y, out)


@all_cases
def test_values(x_shape: Any, y_shape: Any, contract: Any, batch: Any) -> None:
    x, y = np.array(RNG.normal(size=x_shape)), np.array(RNG.normal(size=y_shape))
    np.testing.assert_allclose(dot(x, y, contract, batch), reference(x, y, contract, batch), rtol=1e-13, atol=1e-13)
    for dtype in ("int8", "uint16", "int64", "complex128"):
        a, b = (3 * x).astype(dtype), (3 * y).astype(dtype)
        out = dot(a, b, contract, batch)
        assert out.dtype == dtype
        np.testing.assert_allclose(out, reference(a, b, contract, batch), rtol=1e-13)
    some = dot(x > 0, y > 0, contract, batch)
    assert some.dtype == bool
    np.testing.assert_array_equal(some, reference((x > 0) + 0, (y > 0) + 0, contract, batch) > 0)


@pytest.mark.parametrize("make", [lambda x: x[::-1], lambda x: x.T.copy().T, lambda x: x[:, ::2], lambda x: x * 0 + 1])
def test_layouts(make: Any) -> None:
    x = make(RNG.normal(size=(6, 6)))
    y = np.broadcast_to(RNG.normal(size=4), (x.shape[1], 4))
    np.testing.assert_allclose(dot(x, y, MATRIX), x @ y.copy(), rtol=1e-13)
    np.testing.assert_allclose(dot(y, x, ((0,), (1,))), y.T.copy() @ x.T, rtol=1e-13)


@all_cases
def test_derivatives(x_shape: Any, y_shape: Any, contract: Any, batch: Any) -> None:
    x, x_dot, x_more = (np.array(RNG.normal(size=x_shape)) for _ in range(3))
    y, y_dot, y_more = (np.array(RNG.normal(size=y_shape)) for _ in range(3))
    f = lambda x, y: dot(x, y, contract, batch)
    exact = lambda x, y: reference(x, y, contract, batch)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)

    out, out_dot = fg.jvp(f, (x, y), (x_dot, y_dot))
    close(out_dot, exact(x_dot, y) + exact(x, y_dot))
    w = RNG.normal(size=out.shape)
    x_bar, y_bar = fg.vjp(f, x, y)[1](w)
    close(np.vdot(x_bar, x_dot), np.vdot(w, exact(x_dot, y)))
    close(np.vdot(y_bar, y_dot), np.vdot(w, exact(x, y_dot)))

    mixed = exact(x_dot, y_more) + exact(x_more, y_dot)
    forward = lambda x, y: fg.jvp(f, (x, y), (x_dot, y_dot))[1]
    close(fg.jvp(forward, (x, y), (x_more, y_more))[1], mixed)
    backward = lambda x, y: fg.vjp(f, x, y)[1](w)
    along = fg.jvp(backward, (x, y), (x_more, y_more))[1]
    close(np.vdot(along[0], x_dot) + np.vdot(along[1], y_dot), np.vdot(w, mixed))
    twice = fg.vjp(backward, x, y)[1]((x_dot, y_dot))
    close(np.vdot(twice[0], x_more) + np.vdot(twice[1], y_more), np.vdot(w, mixed))


@all_cases
def test_rows(x_shape: Any, y_shape: Any, contract: Any, batch: Any) -> None:
    xs, ys = RNG.normal(size=(3, *x_shape)), RNG.normal(size=(3, *y_shape))
    w = RNG.normal(size=reference(xs[0], ys[0], contract, batch).shape)
    f = lambda x, y: dot(x, y, contract, batch)
    cotangents = lambda x, y: fg.vjp(f, x, y)[1](w)
    for rows in ((True, True), (True, False), (False, True)):
        for place in (0, -1, 1):
            dims = [min(place, len(s)) if r else None for r, s in zip(rows, (x_shape, y_shape), strict=True)]
            args = [v[0] if d is None else np.moveaxis(v, 0, d) for v, d in zip((xs, ys), dims, strict=True)]
            each = [[v[i if r else 0] for v, r in zip((xs, ys), rows, strict=True)] for i in range(3)]
            found = fg.vmap(f, in_axes=tuple(dims))(*args)
            np.testing.assert_allclose(found, [f(*a) for a in each], rtol=1e-12, atol=1e-12)
            for j, bar in enumerate(fg.vmap(cotangents, in_axes=tuple(dims))(*args)):
                np.testing.assert_allclose(bar, [cotangents(*a)[j] for a in each], rtol=1e-12, atol=1e-12)


def test_rows_of_one_operand_become_a_free_axis() -> None:
    f = lambda x, y: dot(x, y, MATRIX)
    program = fg.make_program(fg.vmap(f, in_axes=(0, None)))(np.ones((5, 2, 3)), np.ones((3, 4)))
    assert "f64[5,2,4] = dot[contract=((2,),(0,))] x y" in str(program)


def test_a_derivative_is_one_product_without_transpositions() -> None:
    f = lambda x, y: dot(x, y, MATRIX)
    program = fg.make_program(lambda x, y, w: fg.vjp(f, x, y)[1](w))(np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4)))
    names = [e.primitive.name for e in program.equations]
    assert names.count("dot") in (2, 3)
    assert "transpose" not in names


def test_operands_that_do_not_fit() -> None:
    x = np.ones((3, 4))
    with pytest.raises(ShapeError, match=r"contracted axes differ: 4 \(axis 1 of f64\[3,4\]\) and 3 \(axis 0 of"):
        dot(x, x, MATRIX)
    with pytest.raises(ShapeError, match=r"batch axes differ: 3 \(axis 0 of w: f64\[3,4\]\)"):
        fg.jit(lambda w, v: dot(w, v, NONE, ((0,), (1,))))(x, x)
    with pytest.raises(DtypeError, match=r"different dtypes: f64\[3,4\] and f32\[4,3\]"):
        dot(x, np.ones((4, 3), np.float32), MATRIX)
