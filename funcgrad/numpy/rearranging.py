"""Elements in other places: flip, roll, repeat, pad, take, diagonals and triangles, insert and delete.

Known positions are moved with slices, pads and reshapes; only where they are arrays is there a gather.
"""

from __future__ import annotations

from math import isfinite, prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT
from funcgrad.base.errors import ArgumentError, ParameterError, ShapeError, UnsupportedError, printed
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Tracer, describe
from funcgrad.numpy import creation, reductions, shaping
from funcgrad.numpy.elementwise import refuse_out, ufuncs
from funcgrad.numpy.operands import (
    array,
    as_dtype,
    broadcast_to,
    common_shape,
    known_value,
    normalize_axes,
    normalize_axis,
    operand,
    public,
    refuse_traced,
)
from funcgrad.numpy.parameters import integer, integers, sequence, sized
from funcgrad.ops import broadcasting, movement
from funcgrad.ops.arithmetic import select
from funcgrad.ops.broadcasting import broadcast, move_axis, reshape
from funcgrad.ops.cumulative import section
from funcgrad.ops.indexing import gather
from funcgrad.ops.movement import convert, iota
from funcgrad.ops.op import constant, full_like

Axis = int | tuple[int, ...] | None


def _require_rank(name: str, x: Any, rank: int) -> None:
    if len(x.shape) < rank:
        raise ShapeError(f"{name}: at least {rank} axes are needed, got {describe(x)}")


# -- flips and turns


@public(np.flip)
def flip(m: Any, axis: Axis = None) -> Any:
    """The order of the elements along `axis` (default: all axes) turned round."""
    x = array(m, "flip")
    return movement.reverse(x, normalize_axes("flip", axis, len(x.shape)))


@public(np.fliplr)
def fliplr(m: Any) -> Any:
    """`flip` along axis 1."""
    x = array(m, "fliplr")
    _require_rank("fliplr", x, 2)
    return movement.reverse(x, (1,))


@public(np.flipud)
def flipud(m: Any) -> Any:
    """`flip` along axis 0."""
    x = array(m, "flipud")
    _require_rank("flipud", x, 1)
    return movement.reverse(x, (0,))


@public(np.rot90)
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """The plane of two axes turned by `k` right angles, from the first axis toward the second."""
    x = array(m, "rot90")
    plane = [normalize_axis("rot90", a, len(x.shape)) for a in sequence("rot90", "axes", axes)]
    if len(plane) != 2:
        raise ParameterError(f"rot90: two axes are needed, got {printed(axes)}")
    i, j = plane
    k = integer("rot90", "k", k)
    if i == j:
        raise ParameterError(f"rot90: two different axes are needed, got {axes}")
    k %= 4
    if k == 0:
        return x
    if k == 2:
        return movement.reverse(x, (min(i, j), max(i, j)))
    if k == 1:
        return shaping.swapaxes(movement.reverse(x, (j,)), i, j)
    return movement.reverse(shaping.swapaxes(x, i, j), (j,))


@public(np.roll)
def roll(a: Any, shift: Any, axis: Axis = None) -> Any:
    """Elements moved by `shift` places along `axis`; what leaves at the end comes in again at the beginning.

    Parameters
    ----------
    shift
        An integer, which may be traced, or a tuple of them, one per axis.
    axis
        An axis or a tuple; None moves in the flattened array.
    """
    x = array(a, "roll")
    if axis is None:
        flat = reshape(x, (prod(x.shape),))
        shifts = shift if isinstance(shift, tuple | list) else (shift,)
        for s in shifts:
            flat = _roll(flat, s, 0)
        return reshape(flat, x.shape)
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    shifts = shift if isinstance(shift, tuple | list) else (shift,) * len(axes)
    if len(axes) == 1 < len(shifts):
        axes = tuple(axes) * len(shifts)
    if len(axes) != len(shifts):
        raise ParameterError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for s, i in zip(shifts, axes, strict=True):
        x = _roll(x, s, normalize_axis("roll", i, len(x.shape)))
    return x


def _roll(x: Any, shift: Any, axis: int) -> Any:
    n = x.shape[axis]
    if n == 0:
        return x
    if type(shift) is Tracer:
        places = ufuncs.remainder(ufuncs.subtract(iota((n,), INT, 0), convert(shift, INT)), n)
        return _take_one(x, places, axis, "clip")
    if isinstance(shift, float) and isfinite(shift):  # as in NumPy
        shift = int(shift)
    s = integer("roll", "shift", shift) % n
    return x if s == 0 else movement.concatenate([section(x, axis, n - s, n), section(x, axis, 0, n - s)], axis)


# -- repetition


@public(np.repeat)
def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    """Every element `repeats` times, one beside the other.

    Parameters
    ----------
    repeats
        An integer, or one per element of `axis`; static.
    axis
        None flattens first.
    """
    x = array(a, "repeat")
    refuse_traced("repeat", "repeats", repeats)
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    if not x.shape:
        x = reshape(x, (1,))
    i = normalize_axis("repeat", axis, len(x.shape))
    n = x.shape[i]
    counts = np.asarray(integers("repeat", "repeats", repeats))
    counts = counts if counts.size or np.ndim(repeats) else counts.astype(INT)
    if counts.dtype.kind not in "iu":
        raise ArgumentError(f"repeat: repeats are integers, got {printed(repeats)}")
    if counts.size == 1:
        times = int(counts.reshape(()))
        if times < 0:
            raise ParameterError(f"repeat: repeats must not be negative, got {times}")
        places = (*range(i + 1), *range(i + 2, len(x.shape) + 1))
        spread = broadcast(x, sized("repeat", (*x.shape[: i + 1], times, *x.shape[i + 1 :])), places)
        return reshape(spread, (*x.shape[:i], n * times, *x.shape[i + 1 :]))
    if counts.shape != (n,):
        raise ShapeError(f"repeat: {counts.size} repeats for axis {i} of {describe(x)}")
    return _take_one(x, np.repeat(np.arange(n), counts), i, "clip")


@public(np.tile)
def tile(A: Any, reps: Any) -> Any:
    """The whole array `reps` times along each axis; missing axes are added in front, as are missing numbers."""
    x = array(A, "tile")
    times = integers("tile", "reps", reps)
    if min(times, default=0) < 0:
        raise ParameterError(f"tile: reps must not be negative, got {printed(reps)}")
    rank = max(len(x.shape), len(times))
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - len(x.shape)) + x.shape
    sized("tile", tuple([t * m for t, m in zip(times, shape, strict=True)]))
    spread = broadcast_to(
        reshape(x, tuple([n for m in shape for n in (1, m)])),
        tuple([n for t, m in zip(times, shape, strict=True) for n in (t, m)]),
    )
    return reshape(spread, tuple([t * m for t, m in zip(times, shape, strict=True)]))


# -- pad


def _pairs(name: str, given: Any, rank: int) -> list[tuple[Any, Any]]:
    """A width (or value) argument of `pad` as one pair per axis."""
    if isinstance(given, dict):
        pairs = [(0, 0)] * rank
        for axis, value in given.items():
            pairs[normalize_axis(name, axis, rank)] = value if isinstance(value, tuple | list) else (value, value)
        return [tuple(p) for p in pairs]
    items = given.tolist() if isinstance(given, np.ndarray | DeviceArray) else given
    if not isinstance(items, tuple | list):
        return [(items, items)] * rank
    items = list(items)
    if len(items) == 1:
        items = items[0] if isinstance(items[0], tuple | list) else [items[0], items[0]]
        return [tuple(items) if len(items) == 2 else (items[0], items[0])] * rank
    if len(items) == 2 and not any([isinstance(i, tuple | list) for i in items]):
        return [tuple(items)] * rank
    if len(items) != rank:
        raise ShapeError(f"{name}: {len(items)} pairs for {rank} axes")
    pairs = [tuple(i) if isinstance(i, tuple | list) else (i, i) for i in items]
    pairs = [p * 2 if len(p) == 1 else p for p in pairs]
    if {len(p) for p in pairs} != {2}:
        raise ShapeError(f"{name}: one pair per axis is needed, got {printed(given)}")
    return pairs


@public(np.pad)
def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """Elements added before and after, along every axis.

    Parameters
    ----------
    pad_width
        A pair (before, after) per axis, one pair, or one number; or a dict from axis to pair. Static.
    mode
        "constant", "edge", "reflect", "symmetric" or "wrap".
    constant_values
        For "constant": a number, which may be traced, or pairs like `pad_width`. Default 0.
    """
    x = as_array(array, "pad")
    rank = len(x.shape)
    pairs = _pairs("pad", pad_width, rank)
    widths = [(integer("pad", "pad_width", b), integer("pad", "pad_width", a)) for b, a in pairs]
    if min([n for pair in widths for n in pair], default=0) < 0:
        raise ParameterError(f"pad: widths must not be negative: {pad_width}")
    sized("pad", tuple([n + b + a for n, (b, a) in zip(x.shape, widths, strict=True)]))
    if mode == "constant":
        values = _pairs("pad", kwargs.pop("constant_values", 0), rank)
        _no_more("pad", kwargs)
        return _pad_constant(x, widths, values)
    if not isinstance(mode, str) or mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise UnsupportedError(f"pad: mode {printed(mode)} is not one of constant, edge, reflect, symmetric and wrap")
    if kwargs.pop("reflect_type", "even") != "even":
        raise UnsupportedError("pad: reflect_type='odd' is not supported")
    _no_more("pad", kwargs)
    for axis, width in enumerate(widths):
        if width != (0, 0):
            if x.shape[axis] == 0:
                raise ShapeError(f"pad: axis {axis} of {describe(x)} has no elements to repeat")
            x = _take_one(x, np.pad(np.arange(x.shape[axis]), width, mode), axis, "clip")  # type: ignore[call-overload]
    return x


def _no_more(name: str, kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise ArgumentError(f"{name}: unexpected keyword argument {next(iter(kwargs))!r}")


def _pad_constant(x: Any, widths: list[tuple[int, int]], values: list[tuple[Any, Any]]) -> Any:
    none = (0,) * len(widths)
    first = values[0][0] if values else 0
    if all([v is first or (type(v) is type(first) is not Tracer and v == first) for pair in values for v in pair]):
        fill = as_dtype(operand(first, "pad"), x.dtype)
        return movement.pad(x, fill, tuple([b for b, _ in widths]), tuple([a for _, a in widths]), none)
    for axis, (width, pair) in enumerate(zip(widths, values, strict=True)):
        for side in (0, 1):
            count = tuple([width[side] if i == axis else 0 for i in range(len(widths))])
            fill = as_dtype(operand(pair[side], "pad"), x.dtype)
            x = movement.pad(x, fill, none if side else count, count if side else none, none)
    return x


as_array = array  # `pad` has a parameter of that name

# -- take


def _take_one(x: Any, places: Any, axis: int, mode: str, fill_value: Any = None) -> Any:
    """Elements at `places` (int64, of any shape) along one axis."""
    moved = gather(move_axis(x, axis, 0), places, mode=mode, fill_value=fill_value, axes=(axis,))
    k = len(places.shape)
    rank = len(moved.shape)
    order = (*range(k, k + axis), *range(k), *range(k + axis, rank))
    return broadcasting.transpose(moved, order)


@public(np.take)
def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise", *, fill_value: Any = None
) -> Any:
    """The elements at `indices`, which may be traced, along `axis`; of the flattened array by default.

    Parameters
    ----------
    mode
        "raise"; "wrap": modulo the length; "clip": the nearest position inside, where a negative one is 0;
        "fill": `fill_value` for what is outside (not in NumPy).
    """
    refuse_out("take", out)
    x, places = array(a, "take"), array(indices, "take")
    if places.dtype.kind not in "iu":
        raise ArgumentError(f"take: indices are integers, got {describe(places)}")
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    return _take_one(x, convert(places, INT), normalize_axis("take", axis, len(x.shape)), mode, fill_value)


@public(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1, mode: str = "raise", fill_value: Any = None) -> Any:
    """For every line along `axis` the elements at its own indices: the shape is that of `indices`, broadcast.

    Parameters
    ----------
    axis
        None takes from the flattened array.
    """
    x, places = array(arr, "take_along_axis"), array(indices, "take_along_axis")
    if places.dtype.kind not in "iu":
        raise ArgumentError(f"take_along_axis: indices are integers, got {describe(places)}")
    places = convert(places, INT)
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    if len(x.shape) != len(places.shape):
        raise ShapeError(f"take_along_axis: {describe(x)} and indices {describe(places)} have different ranks")
    i = normalize_axis("take_along_axis", axis, len(x.shape))
    others = common_shape(
        tuple([1 if j == i else n for j, n in enumerate(x.shape)]),
        tuple([1 if j == i else n for j, n in enumerate(places.shape)]),
    )
    if others is None:
        raise ShapeError(f"take_along_axis: shapes do not broadcast: {describe(x)} and indices {describe(places)}")
    shape = tuple([places.shape[i] if j == i else n for j, n in enumerate(others)])
    x = broadcast_to(x, tuple([x.shape[i] if j == i else n for j, n in enumerate(others)]))
    every = [broadcast_to(places, shape) if j == i else iota(shape, INT, j) for j in range(len(shape))]
    return gather(x, *every, mode=mode, fill_value=fill_value)


# -- diagonals and triangles


def _diagonal_places(rows: int, columns: int, offset: int) -> tuple[int, int]:
    """In a matrix that lies in C order: where the diagonal begins, and its length."""
    row, column = max(-offset, 0), max(offset, 0)
    return row * columns + column, max(min(rows - row, columns - column), 0)


@public(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements where index 2 - index 1 == offset, along a new last axis."""
    x = array(a, "diagonal")
    _require_rank("diagonal", x, 2)
    i, j = normalize_axis("diagonal", axis1, len(x.shape)), normalize_axis("diagonal", axis2, len(x.shape))
    offset = integer("diagonal", "offset", offset)
    if i == j:
        raise ParameterError("diagonal: axis1 and axis2 are the same")
    rest = [k for k in range(len(x.shape)) if k not in (i, j)]
    x = broadcasting.transpose(x, (*rest, i, j))
    *stack, rows, columns = x.shape
    start, n = _diagonal_places(rows, columns, offset)
    flat = reshape(x, (*stack, rows * columns))
    begin, one = (0,) * len(stack), (1,) * len(stack)
    stop = start + (n - 1) * (columns + 1) + 1 if n else 0
    return movement.slice_(flat, (*begin, start if n else 0), (*stack, stop), (*one, columns + 1 if n > 1 else 1))


@public(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
    """The sum of a diagonal. See `diagonal` and, for `dtype`, `sum`."""
    refuse_out("trace", out)
    return reductions.sum(diagonal(a, offset, axis1, axis2), -1, dtype)


@public(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    """A matrix with the vector `v` on its k-th diagonal, or the k-th diagonal of the matrix `v`."""
    x = array(v, "diag")
    if len(x.shape) == 2:
        return diagonal(x, k)
    if len(x.shape) != 1:
        raise ShapeError(f"diag: one or two axes are needed, got {describe(x)}")
    k = integer("diag", "k", k)
    n = x.shape[0] + abs(k)
    sized("diag", (n, n))
    if x.shape[0] == 0:
        return constant(0, make_aval((n, n), x.dtype))
    start, length = _diagonal_places(n, n, k)
    after = n * n - start - ((length - 1) * (n + 1) + 1)
    zero = constant(0, make_aval((), x.dtype))
    return reshape(movement.pad(x, zero, (start,), (after,), (n,)), (n, n))


@public(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    """A matrix with all elements of `v` on its k-th diagonal."""
    return diag(shaping.ravel(v), k)


@public(np.tril)
def tril(m: Any, k: int = 0) -> Any:
    """The lower triangle of the last two axes: elements where column - row > k are 0."""
    x, k = array(m, "tril"), integer("tril", "k", k)
    if len(x.shape) < 2:
        x = broadcast(x, (x.shape[0], x.shape[0]), (1,)) if x.shape else x
    _require_rank("tril", x, 2)
    return select(creation.triangle(x.shape, k), x, full_like(x, 0))


@public(np.triu)
def triu(m: Any, k: int = 0) -> Any:
    """The upper triangle of the last two axes: elements where column - row < k are 0."""
    x, k = array(m, "triu"), integer("triu", "k", k)
    if len(x.shape) < 2:
        x = broadcast(x, (x.shape[0], x.shape[0]), (1,)) if x.shape else x
    _require_rank("triu", x, 2)
    return select(creation.triangle(x.shape, k - 1), full_like(x, 0), x)


# -- longer and shorter


@public(np.append)
def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` behind `arr`; both are flattened first unless `axis` is given."""
    if axis is None:
        return shaping.concatenate([shaping.ravel(arr), shaping.ravel(values)], 0)
    return shaping.concatenate([arr, values], axis)


def _static_places(name: str, obj: Any) -> Any:
    """The positions given to `delete` and `insert`, with plain arrays in place of traced ones and those of a device."""
    if isinstance(obj, Tracer | DeviceArray):
        refuse_traced(name, "positions", obj)
        return known_value(obj)
    return [_static_places(name, o) for o in obj] if isinstance(obj, list | tuple) else obj


@public(np.delete)
def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """Without the elements at the static positions `obj` along `axis`; of the flattened array by default."""
    x = array(arr, "delete")
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    i = normalize_axis("delete", axis, len(x.shape))
    n = x.shape[i]
    places = _static_places("delete", obj)
    try:
        kept = np.delete(np.arange(n), places)
    except (IndexError, ValueError, TypeError, OverflowError):
        raise ParameterError(f"delete: {printed(obj)} for axis {i} of length {n}") from None
    return _take_one(x, kept, i, "clip") if n else x


@public(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """`values` in front of the elements at the static positions `obj` along `axis`; flattened by default."""
    x = array(arr, "insert")
    v = convert(array(values, "insert"), x.dtype)
    numbers = np.arange(prod(x.shape)).reshape(x.shape)
    given = prod(x.shape) + np.arange(prod(v.shape)).reshape(v.shape)
    places = _static_places("insert", obj)
    if axis is not None:
        axis = normalize_axis("insert", axis, len(x.shape))
    try:
        source = np.insert(numbers, places, given, axis)  # which element of both together goes where
    except (IndexError, ValueError, AttributeError, TypeError, OverflowError):  # the third for a list of bool
        raise ParameterError(f"insert: {describe(v)} at {printed(obj)} in {describe(x)}, axis {axis}") from None
    both = [reshape(x, (prod(x.shape),)), reshape(v, (prod(v.shape),))]
    return gather(movement.concatenate(both, 0), source, mode="clip")


@public(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    """The elements, repeated or cut off, in another shape."""
    x = array(a, "resize")
    shape = creation.static_shape("resize", new_shape)
    flat, total = reshape(x, (prod(x.shape),)), prod(shape)
    if flat.shape[0] == 0:
        return constant(0, make_aval(shape, x.dtype))
    times = -(-total // flat.shape[0])
    return reshape(section(tile(flat, times), 0, 0, total), shape)
