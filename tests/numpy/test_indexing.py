"""Indexing tracers and `.at`, against NumPy's own indexing and assignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import funcgrad.numpy as fnp
from funcgrad.base.errors import (
    AssignmentError,
    DtypeError,
    IndexingError,
    NonConcreteBooleanIndexError,
    OutOfBoundsError,
    ShapeError,
    TracerIntegerConversionError,
)
from funcgrad.core.array import Array
from funcgrad.core.check import check
from funcgrad.core.evaluate import run
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace, Tracer
from tests.numpy.routes import assert_fresh, assert_same, traced

F64 = np.dtype(np.float64)


@st.composite
def cases(draw: Any, updates: bool = False) -> tuple[np.ndarray, Any, tuple[int, ...]]:
    """An array, an index that NumPy takes, and the indices in it that are to be traced."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0 if not updates else 1, max_side=4))
    dtype = draw(st.sampled_from(["f8", "i8", "f4"]))
    x = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=dtype).reshape(shape)
    items: list[Any] = []
    axis = 0
    block = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3))
    while axis < len(shape) and draw(st.integers(0, 5)):
        kind = draw(st.sampled_from(["int", "slice", "slice", "array", "mask", "new", "scalar array"]))
        n = shape[axis]
        if kind == "new":
            items.append(None)
            continue
        if kind == "slice":
            bound = st.one_of(st.none(), st.integers(-n - 1, n + 1))
            items.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))))
        elif n == 0:
            items.append(slice(None))
        elif kind == "int":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "scalar array":
            items.append(np.array(draw(st.integers(-n, n - 1))))
        elif kind == "array":
            dtype = draw(st.sampled_from([np.int64, np.int32, np.int8]))
            own = draw(st.sampled_from([block, (1,), block[-1:], ()]))
            items.append(draw(hnp.arrays(dtype, own, elements=st.integers(-n, n - 1))))
            if draw(st.booleans()):
                items[-1] = items[-1].tolist()
        else:
            items.append(draw(hnp.arrays(bool, (n,))))
        axis += 1
    if draw(st.booleans()) and Ellipsis not in [i for i in items if not isinstance(i, np.ndarray | list)]:
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    if draw(st.integers(0, 9)) == 0:
        items.insert(draw(st.integers(0, len(items))), draw(st.booleans()))
    index = items[0] if len(items) == 1 and draw(st.booleans()) and type(items[0]) is not list else tuple(items)
    known = tuple(i for i, item in enumerate(items) if draw(st.booleans()))
    return x, index, known


def expected(x: np.ndarray, index: Any) -> Any:
    try:
        return x[index]
    except IndexError:
        return None


def as_traced(index: Any, known: tuple[int, ...]) -> Any:
    """The index with plain lists as arrays, so that `traced` makes them inputs, unless `known`."""
    items = index if isinstance(index, tuple) else (index,)
    out = []
    for i, item in enumerate(items):
        integer = isinstance(item, int | list) and not isinstance(item, bool)
        if integer and i not in known and np.asarray(item).size:
            out.append(np.asarray(item, np.int64))
        else:
            out.append(item)
    return tuple(out)


class Known:
    """Hides an array from `traced`, so that it stays a plain index."""

    def __init__(self, value: Any) -> None:
        self.value = value


def split_known(index: tuple) -> tuple:
    """Masks stay plain: their values have to be known."""
    return tuple(Known(i) if isinstance(i, np.ndarray) and i.dtype == bool else i for i in index)


def joined(index: tuple) -> tuple:
    return tuple(i.value if isinstance(i, Known) else i for i in index)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_reading_agrees_with_numpy(case: tuple[np.ndarray, Any, tuple[int, ...]]) -> None:
    x, index, known = case
    want = expected(x, index)
    if want is None:
        with pytest.raises(IndexError):
            traced(lambda t: t[index], (x,), {})
        with pytest.raises(IndexError):
            fnp.asarray(x).at[index].get()
        return
    (got,) = traced(lambda t: t[index], (x,), {})
    assert_same(got, want, exact=True)
    (got,) = traced(lambda t, *i: t[joined(i)], (x, *split_known(as_traced(index, known))), {})
    assert_same(got, want, exact=True)
    eager = fnp.asarray(x).at[index].get()
    assert_same(eager, want, exact=True)
    assert_fresh(eager, [x])


def has_mask(index: Any) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, bool) or (isinstance(i, np.ndarray) and i.dtype == bool) for i in items)


UPDATES = {
    "set": None,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@settings(max_examples=300, deadline=None)
@given(cases(updates=True), st.sampled_from(sorted(UPDATES)), st.data())
def test_updates_agree_with_numpy(case: Any, how: str, data: Any) -> None:
    x, index, known = case
    selected = expected(x, index)
    if selected is None:
        return
    longer = (1, *selected.shape) if how == "set" and selected.ndim and not has_mask(index) else ()
    shape = data.draw(st.sampled_from([(), selected.shape, selected.shape[-1:], longer]))
    v = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + 1).astype(x.dtype)
    want = x.copy()
    if how == "set":
        want[index] = v
    else:
        UPDATES[how].at(want, index, np.broadcast_to(v, selected.shape).copy())  # it broadcasts wrongly itself
    (got,) = traced(lambda t, v: getattr(t.at[index], how)(v), (x, v), {})
    assert_same(got, want, exact=True)
    index_in = split_known(as_traced(index, known))
    (got,) = traced(lambda t, v, *i: getattr(t.at[joined(i)], how)(v), (x, v, *index_in), {})
    assert_same(got, want, exact=True)
    before = x.copy()
    eager = getattr(fnp.asarray(x).at[index], how)(v)
    assert_same(eager, want, exact=True)
    assert_fresh(eager, [x, v])
    np.testing.assert_array_equal(x, before)


def program_of(function: Any, *shapes: Any) -> str:
    with Trace("f") as t:
        xs = [t.input(make_aval(s, F64) if isinstance(s, tuple) else s, name="xyz"[i]) for i, s in enumerate(shapes)]
        return str(check(t.program([function(*xs)])))


I64 = make_aval((), np.dtype(np.int64))


@pytest.mark.parametrize(
    ("function", "inputs", "primitives"),
    [
        (lambda x: x[1], [(4, 3)], ["slice", "reshape"]),
        (lambda x: x[1:3], [(4, 3)], ["slice"]),
        (lambda x: x[...], [(4, 3)], []),
        (lambda x: x[:, None], [(4, 3)], ["reshape"]),
        (lambda x: x[::-1], [(4, 3)], ["reverse"]),
        (lambda x: x[-2::-2, 1], [(4, 3)], ["slice", "reverse", "reshape"]),
        (lambda x, i: x[i], [(4, 3), I64], ["check_index", "dynamic_slice", "reshape"]),
        (lambda x, i: x[i, 1:], [(4, 3), I64], ["check_index", "dynamic_slice", "reshape"]),
        (lambda x: x.at[1:3].set(0), [(4, 3)], ["dynamic_update_slice"]),
        (lambda x: x.at[:].set(0), [(4, 3)], []),
        (lambda x, i: x.at[i].add(1), [(4, 3), I64],
         ["check_index", "dynamic_slice", "add", "dynamic_update_slice"]),
        (lambda x: x.at[x > 0].set(0), [(4, 3)], ["gt", "select"]),
    ],
)  # fmt: skip
def test_the_program_of_an_index_is_short(function: Any, inputs: list, primitives: list[str]) -> None:
    lines = program_of(function, *inputs).splitlines()
    assert [line.split(" = ")[1].split()[0].split("[")[0] for line in lines if " = " in line] == primitives


def test_a_mask_with_a_visible_value_selects() -> None:
    x = np.array([1.0, -2.0, 3.0])
    with Trace("f", shows=True) as t:
        a = t.input(make_aval((3,), F64), x, name="x")
        out = a[a > 0]
        assert out.shape == (2,)
        program = t.program([out, a.at[a > 0].set(9), a.at[a > 0].add(np.array([1.0, 2.0]))])
        results = run(program, [*t.constants(), x])
    np.testing.assert_array_equal(results[0], [1, 3])
    np.testing.assert_array_equal(results[1], [9, -2, 9])
    np.testing.assert_array_equal(results[2], [2, -2, 5])


def test_a_mask_without_a_value() -> None:
    with Trace("f") as t:
        a = t.input(make_aval((3,), F64), name="x")
        with pytest.raises(NonConcreteBooleanIndexError, match="where"):
            a[a > 0]
        with pytest.raises(IndexError):
            a.at[a > 0].set(np.ones(2))


def test_masks_that_update_whole_rows() -> None:
    x, rows, v = np.arange(6.0).reshape(2, 3), np.array([True, False]), np.array([7.0, 8.0, 9.0])
    want = x.copy()
    want[rows] = v
    for got in traced(lambda x, m, v: x.at[m].set(v), (x, rows, v), {}):
        assert_same(got, want, exact=True)


@pytest.mark.parametrize("index", [3, -4, (0, 5), (2, -6)])
def test_a_known_integer_outside(index: Any) -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3, 5), F64), name="x")
        with pytest.raises(OutOfBoundsError, match=r"index -?\d is out of bounds for axis \d of length \d \(x: f64"):
            x[index]
        assert x.at[index].get(mode="clip").shape == (() if isinstance(index, tuple) else (5,))


def test_a_traced_integer_outside_raises_when_it_runs() -> None:
    with pytest.raises(OutOfBoundsError, match="index 7 is out of bounds for axis 1 of length 5"):
        traced(lambda x, i: x[:, i], (np.ones((3, 5)), np.array(7)), {})
    with pytest.raises(OutOfBoundsError, match="index -6 is out of bounds for axis 1 of length 5"):
        traced(lambda x, i: x[:, i], (np.ones((3, 5)), np.array([0, -6])), {})
    with pytest.raises(OutOfBoundsError, match="axis 0 of length 3"):
        traced(lambda x, i: x.at[i].set(0), (np.ones((3, 5)), np.array(3)), {})


@pytest.mark.parametrize("traced_index", [False, True])
def test_modes(traced_index: bool) -> None:
    x = np.array([1.0, 2.0, 3.0])
    index = np.array([0, 7, -1, -9])

    def call(function: Any) -> Any:
        if traced_index:
            return traced(lambda x, i: function(x, i), (x, index), {})[0]
        return function(fnp.asarray(x), index)

    np.testing.assert_array_equal(call(lambda x, i: x.at[i].get(mode="fill")), [1, np.nan, 3, np.nan])
    np.testing.assert_array_equal(call(lambda x, i: x.at[i].get(mode="fill", fill_value=-1)), [1, -1, 3, -1])
    np.testing.assert_array_equal(call(lambda x, i: x.at[i].get(mode="wrap")), [1, 2, 3, 1])
    np.testing.assert_array_equal(call(lambda x, i: x.at[i].set(9, mode="drop")), [9, 2, 9])
    np.testing.assert_array_equal(call(lambda x, i: x.at[i].add(1, mode="drop")), [2, 2, 4])
    np.testing.assert_array_equal(call(lambda x, i: x.at[i[:2]].add(1, mode="clip")), [2, 2, 4])


def test_modes_of_single_integers() -> None:
    x = np.array([1.0, 2.0, 3.0])
    a = fnp.asarray(x)
    assert np.isnan(a.at[7].get(mode="fill"))
    assert a.at[7].get(mode="clip") == 3
    np.testing.assert_array_equal(a.at[7].set(0, mode="drop"), x)
    np.testing.assert_array_equal(a.at[7].set(0, mode="clip"), [1, 2, 0])
    (got,) = traced(lambda x, i: x.at[i].set(0, mode="drop"), (x, np.array(-2)), {})
    np.testing.assert_array_equal(got, [1, 0, 3])


def test_divide_power_and_apply() -> None:
    x = fnp.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(x.at[1:].divide(2), [1, 1, 1.5])
    np.testing.assert_array_equal(x.at[[1, 1]].divide(2), [1, 0.5, 3])
    np.testing.assert_array_equal(x.at[1:].power(2), [1, 4, 9])
    np.testing.assert_array_equal(x.at[np.array([2, 1])].power(2), [1, 4, 9])
    np.testing.assert_array_equal(x.at[::2].apply(np.negative), [-1, 2, -3])
    with pytest.raises(DtypeError):
        fnp.array([1, 2]).at[0].divide(2)


def test_values_are_cast_as_in_an_assignment() -> None:
    x = fnp.array([1, 2, 3])
    assert x.at[0].set(7.9).dtype == np.int64
    np.testing.assert_array_equal(x.at[0].set(7.9), [7, 2, 3])
    np.testing.assert_array_equal(x.at[0].set(np.float32(7.9)), [7, 2, 3])
    np.testing.assert_array_equal(fnp.array([True, False]).at[1].set(5), [True, True])
    assert fnp.array([1.0], np.float32).at[0].add(2.5).dtype == np.float32
    assert fnp.array([1.0], np.float32).at[0].add(np.float64(2.5)).dtype == np.float32
    with pytest.raises(DtypeError, match=r"\.add"):
        x.at[0].add(1.5)
    with pytest.raises(OverflowError):
        fnp.array([1], np.uint8).at[0].set(300)
    with pytest.raises(ShapeError):
        x.at[:2].set([1, 2, 3])


def test_assignment_says_what_to_write_instead() -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3,), F64), name="x")
        with pytest.raises(AssignmentError, match=r"x = x\.at\[0\]\.set\(1\.0\)"):
            x[0] = 1.0
        with pytest.raises(AssignmentError, match=r"x = x\.at\[1:\]\.add\(2\.5 \* x\[1:\]\)"):
            x[1:] += 2.5 * x[1:]  # a comment
        with pytest.raises(AssignmentError, match=r"x = x\.at\[index\]\.set\(value\)"):
            exec("x[0] = 1.0")
        with pytest.raises(AssignmentError):
            del x[0]
        y = x
        y += 1
        assert y is not x and isinstance(y, Tracer)


@pytest.mark.parametrize(
    "index", ["a", 1.5, (0, 0, 0), (..., ...), np.ones(2), ([0], [0, 1], [0, 1, 2]), np.ones(4, bool)]
)
def test_what_is_no_index(index: Any) -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3, 5), F64), name="x")
        with pytest.raises(IndexingError):
            x[index]


def test_a_slice_with_a_traced_bound() -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3,), F64), name="x")
        i = t.input(I64, name="i")
        with pytest.raises(TracerIntegerConversionError, match="takes n elements"):
            x[i : i + 1]
    with Trace("f", shows=True) as t:
        x = t.input(make_aval((3,), F64), np.arange(3.0), name="x")
        i = t.input(I64, np.array(1), name="i")
        assert x[i : i + 2].shape == (2,)


def test_at_on_arrays() -> None:
    x = fnp.zeros(3)
    y = x.at[1].set(5)
    assert type(y) is Array and not np.shares_memory(x, y)
    np.testing.assert_array_equal(x, 0)
    assert repr(x.at) == "Array.at" and repr(x.at[1]) == "Array.at[1]"


def test_iteration_unrolls() -> None:
    with Trace("f") as t:
        x = t.input(make_aval((2, 3), F64), name="x")
        a, b = x
        assert a.shape == b.shape == (3,)
        with pytest.raises(TypeError):
            list(x.sum())


def test_the_hint_for_an_assignment_ends_with_the_statement() -> None:
    def assign(x: Any) -> None:
        # fmt: off
        x[0] = 1.0; x[1] = 2.0  # noqa: E702
        # fmt: on

    with pytest.raises(AssignmentError) as caught:
        traced(assign, (np.ones(3),), {})
    assert caught.value.hint == "x = x.at[0].set(1.0)"
