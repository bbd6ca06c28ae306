"""vmap equals a loop and stack: axes, prefixes, keywords, nesting, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors

X = np.arange(24.0).reshape(2, 3, 4)


def test_in_axes_and_out_axes() -> None:
    f = lambda x, y: np.outer(x, y)
    x, y = np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(4, 2)
    expected = np.stack([np.outer(x[i], y[:, i]) for i in range(2)])
    assert np.array_equal(fg.vmap(f, in_axes=(0, 1))(x, y), expected)
    assert np.array_equal(fg.vmap(f, in_axes=(0, -1))(x, y), expected)
    for out in (0, 1, 2, -1, -2, -3):
        found = fg.vmap(f, in_axes=(0, 1), out_axes=out)(x, y)
        assert np.array_equal(found, np.moveaxis(expected, 0, out))
    assert np.array_equal(fg.vmap(f, in_axes=(None, 1))(x[0], y), np.stack([np.outer(x[0], y[:, i]) for i in range(2)]))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_every_axis(axis: int) -> None:
    f = lambda x: np.cumsum(np.sin(x) @ np.ones((x.shape[-1], 2)), axis=0)
    expected = np.stack([f(r) for r in np.moveaxis(X, axis, 0)])
    np.testing.assert_allclose(fg.vmap(f, in_axes=axis)(X), expected, rtol=1e-14)


def test_prefixes_and_keywords() -> None:
    p = {"w": np.ones((3, 2)), "b": np.arange(2.0)}
    f = lambda p, x, *, scale: (p["w"] @ x + p["b"][0]) * scale
    x, scale = np.arange(10.0).reshape(5, 2), np.arange(5.0)
    found = fg.vmap(f, in_axes=(None, 0))(p, x, scale=scale)
    expected = np.stack([(p["w"] @ x[i] + p["b"][0]) * scale[i] for i in range(5)])
    np.testing.assert_allclose(found, expected)
    found = fg.vmap(lambda p, x: p["w"] * x + p["b"], in_axes=({"w": 0, "b": None}, None))(
        {"w": np.arange(3.0), "b": np.ones(2)}, 2.0
    )
    assert found.tolist() == [[1, 1], [3, 3], [5, 5]]
    out = fg.vmap(lambda x: {"a": x, "b": (x, x)}, out_axes={"a": 0, "b": (0, 1)})(np.ones((2, 3)))
    assert out["a"].shape == (2, 3) and out["b"][1].shape == (3, 2)


def test_results_that_do_not_depend_on_rows() -> None:
    x = np.arange(3.0)
    assert fg.vmap(lambda r: 7.0)(x).tolist() == [7.0] * 3
    assert fg.vmap(lambda r: np.arange(2))(x).tolist() == [[0, 1]] * 3
    assert float(fg.vmap(lambda r: 7.0, out_axes=None)(x)) == 7.0
    y = np.array([1.0, 2.0])
    out = fg.vmap(lambda r: y)(x)
    assert out.shape == (3, 2) and not np.shares_memory(out, y)


def test_axis_size() -> None:
    assert fg.vmap(lambda: 1.0, axis_size=4)().tolist() == [1.0] * 4
    assert fg.vmap(lambda x: x, in_axes=None, axis_size=2)(3.0).tolist() == [3.0, 3.0]


def test_nested() -> None:
    f = lambda x, y: np.sum(x * y) + x[0]
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 3)
    expected = np.array([[f(a, b) for b in y] for a in x])
    found = fg.vmap(fg.vmap(f, in_axes=(None, 0)), in_axes=(0, None))(x, y)
    assert np.array_equal(found, expected)
    assert np.array_equal(fg.vmap(fg.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(x, y), expected.T)


def test_no_rows() -> None:
    assert fg.vmap(lambda x: np.sin(x) * 2)(np.zeros((0, 3))).shape == (0, 3)
    assert fg.vmap(lambda x: x.sum())(np.zeros((0, 3))).shape == (0,)


def test_an_effectless_function_of_captured_rows() -> None:
    table = np.arange(12.0).reshape(4, 3)
    index = np.array([3, 0, 0])
    assert np.array_equal(
        fg.vmap(lambda i: table[fnp.asarray(i)] if False else fnp.take(table, i, axis=0))(index), table[index]
    )


BAD = [
    ("no function", lambda: fg.vmap(3), errors.UsageError, "vmap takes a function"),
    ("sizes", lambda: fg.vmap(lambda x, y: x)(np.ones(2), np.ones(3)), errors.ShapeError, "2 in x: .*, 3 in y"),
    ("axis_size", lambda: fg.vmap(lambda x: x, axis_size=3)(np.ones(2)), errors.ShapeError, "3 in axis_size"),
    ("negative size", lambda: fg.vmap(lambda x: x, axis_size=-1), errors.ArgumentError, "number of rows"),
    ("float size", lambda: fg.vmap(lambda x: x, axis_size=2.0), errors.ArgumentError, "number of rows"),
    ("bool axis", lambda: fg.vmap(lambda x: x, in_axes=True), errors.ArgumentError, "in_axes is an int"),
    ("no rows", lambda: fg.vmap(lambda x: x, in_axes=None)(1.0), errors.ArgumentError, "no argument of f has rows"),
    ("scalar", lambda: fg.vmap(lambda x: x)(1.0), errors.AxisError, "axis 0 is out of range for x"),
    ("axis", lambda: fg.vmap(lambda x: x, in_axes=2)(np.ones((2, 2))), errors.AxisError, "axis 2"),
    ("out axis", lambda: fg.vmap(lambda x: x, out_axes=1)(np.ones(2)), errors.AxisError, "axis 1"),
    ("in_axes length", lambda: fg.vmap(lambda x: x, in_axes=(0, 0))(np.ones(2)), errors.ArgumentError, "has 2 entries"),
    ("in_axes kind", lambda: fg.vmap(lambda x: x, in_axes="x"), errors.ArgumentError, "in_axes is an int"),
    ("prefix", lambda: fg.vmap(lambda x: x["a"], in_axes=({"b": 0},))({"a": np.ones(2)}), errors.TreeError, "prefix"),
    ("out prefix", lambda: fg.vmap(lambda x: x, out_axes=(0, 0))(np.ones(2)), errors.TreeError, "prefix"),
    ("out None", lambda: fg.vmap(lambda x: x, out_axes=None)(np.ones(2)), errors.TreeError, "differs from row to row"),
    ("if", lambda: fg.vmap(lambda x: x if x > 0 else -x)(np.ones(2)), errors.TracerBoolConversionError, "rows of vmap"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(call: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
