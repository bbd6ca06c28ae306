"""Shapes, joining, splitting and rearranging against NumPy's, on every route."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.base.errors import ArgumentError, ParameterError, ShapeError, UnsupportedError
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace
from tests.numpy.routes import check_call, traced
from tests.numpy.samples import DTYPES, array

SHAPES = ((), (0,), (3,), (1, 4), (2, 3), (2, 0, 3), (2, 3, 4))
BY_DTYPE = pytest.mark.parametrize("dtype", ["bool", "int8", "float64"])
BY_SHAPE = pytest.mark.parametrize("shape", SHAPES)


def exact(name: str, *args: Any, **kwargs: Any) -> None:
    check_call(name, *args, exact=True, **kwargs)


@BY_SHAPE
@BY_DTYPE
def test_one_array(shape: tuple[int, ...], dtype: str) -> None:
    x = array(shape, dtype)
    for name in (
        "shape", "ndim", "size", "ravel", "squeeze", "transpose", "flip", "fliplr", "flipud", "rot90",
        "atleast_1d", "atleast_2d", "atleast_3d", "tril", "triu", "diag", "diagflat", "diagonal",
        "matrix_transpose", "permute_dims", "copy", "unstack", "iscomplexobj", "isrealobj",
    ):  # fmt: skip
        exact(name, x)
    exact("atleast_2d", x, x)


@BY_SHAPE
def test_reshape(shape: tuple[int, ...]) -> None:
    x = array(shape)
    for wanted in ((-1,), (3, -1), (1, 2, 3), (6,), (0,), (4, 6), (-1, -1), 6, -1, [2, -1], (0, -1), (2, 3, 1)):
        exact("reshape", x, wanted)
    with pytest.raises(UnsupportedError, match="order='F'"):
        fnp.reshape(x, (-1,), order="F")


@BY_SHAPE
@BY_DTYPE
def test_axes(shape: tuple[int, ...], dtype: str) -> None:
    x = array(shape, dtype)
    for axis in (0, 1, -1, (0, -1), 5, (0, 0)):
        exact("expand_dims", x, axis)
        exact("squeeze", x, axis)
        exact("flip", x, axis)
    for pair in ((0, 1), (1, 0), (-1, 0), (2, 1), (0, 2)):
        exact("swapaxes", x, *pair)
        exact("moveaxis", x, *pair)
        exact("rollaxis", x, *pair)
        exact("transpose", x, pair)
        exact("diagonal", x, 0, *pair)
        exact("rot90", x, 1, pair)
    exact("transpose", x, (2, 0, 1))
    exact("moveaxis", x, (0, 1), (-1, 0))
    exact("moveaxis", x, [0, 2], [1, 0])
    exact("unstack", x, axis=-1)
    exact("size", x, 0)


@BY_SHAPE
@BY_DTYPE
def test_diagonals_turns_and_rolls(shape: tuple[int, ...], dtype: str) -> None:
    x = array(shape, dtype)
    for k in (-3, -1, 1, 2, 5):
        for name in ("tril", "triu", "diag", "diagonal", "diagflat"):
            exact(name, x, k)
        check_call("trace", x, k, scale=10)
        exact("rot90", x, k)
        exact("roll", x, k)
        exact("roll", x, k, 0)
        exact("roll", x, k, -1)
    exact("roll", x, (1, 2), (0, 1))
    exact("roll", x, 1, (0, 1))
    exact("roll", x, (1, 2), 0)
    check_call("trace", array((3, 3), dtype), dtype="float32", scale=10)


@BY_SHAPE
@BY_DTYPE
def test_repetition(shape: tuple[int, ...], dtype: str) -> None:
    x = array(shape, dtype)
    for reps in (2, (2, 1), (2, 2, 2), (1,), 0, ()):
        exact("tile", x, reps)
    for repeats in (0, 1, 3):
        for axis in (None, 0, -1):
            exact("repeat", x, repeats, axis)
    exact("repeat", x, [1, 0, 2], -1)
    exact("repeat", x, [1, 2], 0)
    exact("resize", x, (2, 5))
    exact("resize", x, 3)
    for wanted in ((3,), (2, 3), (2, 2, 3), (0,), (2, 3, 4), (5, 1, 4)):
        exact("broadcast_to", x, wanted)
    for other in ((), (3,), (3, 1), (2, 1, 1)):
        exact("broadcast_arrays", x, array(other, dtype))


@BY_SHAPE
def test_pad(shape: tuple[int, ...]) -> None:
    x = array(shape)
    for width in (1, (1, 2), ((1, 2),), ((0, 1), (2, 0)), 0, ((1, 1), (0, 2), (1, 0)), 5, [[1, 2]]):
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap"):
            exact("pad", x, width, mode)
        exact("pad", x, width, constant_values=1)
        exact("pad", x, width, constant_values=((1, 0),))
        exact("pad", x, width, "constant", constant_values=(0, 1))
    with pytest.raises(UnsupportedError, match="mean"):
        fnp.pad(np.ones(3), 1, "mean")
    with pytest.raises(ArgumentError, match="stat_length"):
        fnp.pad(np.ones(3), 1, "edge", stat_length=1)
    with pytest.raises(ParameterError):
        fnp.pad(np.ones(3), -1)


def test_pad_with_a_traced_value() -> None:
    (got,) = traced(lambda x, v: fnp.pad(x, 1, constant_values=v), (np.ones(2), np.array(5.0)), {})
    np.testing.assert_array_equal(got, [5, 1, 1, 5])


@pytest.mark.parametrize("name", ["concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_joining(name: str, dtype: str) -> None:
    for shape in SHAPES:
        x, y = array(shape, dtype), array(shape, dtype, seed=1)
        exact(name, [x, y])
        exact(name, (x, y, x))
        exact(name, [x])
        for other in DTYPES:
            exact(name, [x, array(shape, other)])
        if name in ("concatenate", "stack"):
            for axis in (0, 1, -1, 2, *([None] if name == "concatenate" else [])):
                exact(name, [x, y], axis=axis)
            exact(name, [x, y], dtype="float64")
    exact(name, [])
    exact(name, [array((2, 3), dtype), array((2, 2), dtype)])
    exact(name, [array((2, 3), dtype), array((3,), dtype)])
    exact(name, array((2, 3, 2), dtype))
    with pytest.raises(ArgumentError):
        getattr(fnp, name)(3)


def test_blocks() -> None:
    a, b, c = array((2, 2)), array((2, 3)), array((1, 5))
    exact("block", [[a, b], [c]])
    exact("block", [array((2,)), array((3,))])
    exact("block", [[array((2,))], [array((2,))]])
    exact("block", a)
    exact("block", [[[a]], [[a]]])
    exact("block", [[a, b], [a]])
    exact("append", a, c)
    exact("append", a, a, 0)
    exact("append", a, 3)
    exact("concat", [a, b], axis=1)


@BY_SHAPE
def test_splitting(shape: tuple[int, ...]) -> None:
    x = array(shape)
    for where in (1, 2, 3, [1], [1, 2], [0, 5], [-1], [3, 1], 0):
        for name in ("array_split", "split"):
            exact(name, x, where)
            exact(name, x, where, -1)
        for name in ("hsplit", "vsplit", "dsplit"):
            exact(name, x, where)


@BY_SHAPE
def test_delete_and_insert(shape: tuple[int, ...]) -> None:
    x = array(shape)
    for where in (0, -1, 1, [0, 1], slice(0, 2), [], 7, [1, 7], slice(None, None, 2), [True, False, True]):
        for axis in (None, 0, -1):
            exact("delete", x, where, axis)
            if where != [True, False, True]:
                exact("insert", x, where, 1, axis)
    if shape in ((3,), (2, 3)):
        exact("insert", x, [0, 2], array((2,)))
        exact("insert", x, 1, array((3,)), 0)
        exact("insert", x, [1], array((2, 1)), -1)


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_take(mode: str) -> None:
    for dtype in ("float64", "int8", "bool"):
        x = array((2, 3, 4), dtype)
        for axis in (None, 0, 1, -1):
            for where in (1, [0, 1], [[0, -1], [1, 1]], np.array([0, 30]), np.array(-1), np.array([-30, 1], np.int8)):
                exact("take", x, where, axis, mode=mode)
    np.testing.assert_array_equal(fnp.take(np.arange(3.0), [0, 9], mode="fill"), [0, np.nan])


def test_take_along_axis() -> None:
    x, where = array((2, 3)), np.array([[0, 2, -1], [1, 1, 0]])
    exact("take_along_axis", x, where, 1)
    exact("take_along_axis", x, where % 2, 0)
    exact("take_along_axis", x, where[:1], axis=1)
    exact("take_along_axis", x, where[0], None)
    exact("take_along_axis", x, where * 5, 1)
    exact("take_along_axis", x, where[0], 1)
    exact("take_along_axis", array((2, 3, 4)), np.array([[[0], [2], [1]]]), -1)


def test_a_traced_shift() -> None:
    x = array((2, 5))
    for shift in (0, 2, -7):
        (got,) = traced(lambda x, s: fnp.roll(x, s, 1), (x, np.array(shift)), {})
        np.testing.assert_array_equal(got, np.roll(x, shift, 1))


def test_results_share_no_memory_with_nested_arguments() -> None:
    a = array((2, 2))
    for out in (fnp.block([[a]]), fnp.concatenate([a]), fnp.split(a, 1)[0], fnp.array(a), fnp.where(True, a, a)):
        assert not np.shares_memory(out, a)


def test_objects_with_an_array() -> None:
    class Box:
        data = np.ones(3)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.data

    assert not np.shares_memory(fnp.array(Box()), Box.data)
    np.testing.assert_array_equal(fnp.add(Box(), 1), 2)


def test_lists_of_tracers() -> None:
    (got,) = traced(lambda a, b: fnp.array([[a, 1.0], [2.0, b]]), (np.array(5.0), np.array(6.0)), {})
    np.testing.assert_array_equal(got, [[5, 1], [2, 6]])
    (got,) = traced(lambda a: fnp.sin([a, a]), (np.ones(2),), {})
    np.testing.assert_array_equal(got, np.sin(np.ones((2, 2))))
    (got,) = traced(lambda a: a + [1.0, 2.0], (np.ones(2),), {})
    np.testing.assert_array_equal(got, [2, 3])


def test_dtypes_and_shapes_of_operands() -> None:
    for dtype in DTYPES:
        x = array((2,), dtype)
        check_call("result_type", x, 1)
        check_call("result_type", x, 1.5)
        check_call("result_type", x, "float32", True)
        check_call("result_type", x, np.int16)
    check_call("broadcast_shapes", (2, 1), (3,), 1)
    check_call("broadcast_shapes", (2, 1), (3, 2, 2))
    check_call("isscalar", 2.0)
    check_call("isscalar", np.float64(2))


def test_errors_name_the_operands() -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3, 4), np.dtype(float)), name="x")
        w = t.input(make_aval((4, 4), np.dtype(float)), name="w")
        with pytest.raises(ShapeError, match=r"reshape: x: f64\[3,4\] has 12 elements and does not fit shape \(5,\)"):
            x.reshape(5)
        with pytest.raises(ShapeError, match=r"concatenate: x: f64\[3,4\] and w: f64\[4,4\] differ outside axis 1"):
            fnp.concatenate([x, w], 1)
        with pytest.raises(ShapeError, match=r"stack: all arrays need one shape, got x: f64\[3,4\] and w: f64\[4,4\]"):
            fnp.stack([x, w])
        with pytest.raises(ShapeError, match=r"add: shapes do not broadcast: x: f64\[3,4\] and w: f64\[4,4\]"):
            x + w
        with pytest.raises(ShapeError, match="squeeze: axis 0 of x"):
            x.squeeze(0)
