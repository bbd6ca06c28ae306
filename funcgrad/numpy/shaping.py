"""Shapes: reshape, transpose and their relatives, joining, splitting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import promote
from funcgrad.base.errors import ArgumentError, AxisError, ParameterError, ShapeError, UnsupportedError, printed
from funcgrad.core.ir import Shape
from funcgrad.core.trace import Tracer, describe
from funcgrad.numpy import operands
from funcgrad.numpy.elementwise import refuse_out
from funcgrad.numpy.operands import (
    MAX_AXES,
    array,
    broadcast_shape,
    common_shape,
    dtype_key,
    given_dtype,
    given_shape,
    normalize_axes,
    normalize_axis,
    operand,
    public,
    shape_of,
    strong,
)
from funcgrad.numpy.parameters import ARRAYS, integer, integers, sequence
from funcgrad.ops import broadcasting, movement
from funcgrad.ops.movement import convert

# -- asking


@public(np.shape)
def shape(a: Any) -> Shape:
    """The lengths of the axes."""
    return shape_of(operand(a, "shape"))


@public(np.ndim)
def ndim(a: Any) -> int:
    """The number of axes."""
    return len(shape_of(operand(a, "ndim")))


@public(np.size)
def size(a: Any, axis: int | tuple[int, ...] | None = None) -> int:
    """The number of elements, or the length of `axis`."""
    lengths = shape_of(operand(a, "size"))
    return prod([lengths[i] for i in normalize_axes("size", axis, len(lengths))])


@public(np.iscomplexobj)
def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex."""
    return array(x, "iscomplexobj").dtype.kind == "c"


@public(np.isrealobj)
def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether `element` is a Python or NumPy scalar; arrays of shape () are not, nor are tracers."""
    return bool(np.isscalar(element))


@public(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype that NumPy's promotion gives to the operands together; Python scalars are weak."""
    keys = []
    for x in arrays_and_dtypes:
        if isinstance(x, np.dtype | type | str):
            keys.append(given_dtype("result_type", x))
        else:
            keys.append(dtype_key(operand(x, "result_type")))
    if not keys:
        raise ArgumentError("result_type: at least one operand is needed")
    return promote(*keys)


def broadcast_shapes(*shapes: Any) -> Shape:
    """The shape that arrays of these shapes broadcast to."""
    out: Shape = ()
    for s in shapes:
        common = common_shape(out, given_shape("broadcast_shapes", s))
        if common is None:
            raise ShapeError(f"broadcast_shapes: shapes do not broadcast: {' and '.join(map(str, shapes))}")
        out = common
    return out


# -- reshape


def require_order(name: str, order: Any) -> None:
    """Raise unless the order of elements is C's."""
    if not isinstance(order, str | None) or order not in ("C", "K", None):
        raise UnsupportedError(
            f"{name}: order={printed(order)} is not supported, arrays are in C order",
            hint="transpose first: x.T.reshape(...)",
        )


def resolve_shape(name: str, x: Any, newshape: Any) -> Shape:
    """The shape with its -1, if any, filled in."""
    wanted = given_shape(name, newshape)
    total = prod(x.shape)
    if -1 in wanted:
        known = -prod(wanted)
        if wanted.count(-1) > 1:
            raise ParameterError(f"{name}: one length may be -1, got {wanted}")
        if known > 0 and total % known == 0:
            return tuple([total // known if n == -1 else n for n in wanted])
    elif prod(wanted) == total and min(wanted, default=0) >= 0:
        return wanted
    raise ShapeError(f"{name}: {describe(x)} has {total} elements and does not fit shape {wanted}")


@public(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: bool | None = None) -> Any:
    """The same elements, in C order, with another shape.

    Parameters
    ----------
    shape
        The new lengths; one of them may be -1 and follows from the others.
    """
    require_order("reshape", order)
    wanted = shape if shape is not None else newshape
    if wanted is None:
        raise ArgumentError("reshape: the new shape is missing")
    x = array(a, "reshape")
    return broadcasting.reshape(x, resolve_shape("reshape", x, wanted))


@public(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    """All elements in C order along one axis."""
    require_order("ravel", order)
    x = array(a, "ravel")
    return broadcasting.reshape(x, (prod(x.shape),))


@public(np.expand_dims)
def expand_dims(a: Any, axis: int | tuple[int, ...]) -> Any:
    """New axes of length 1 at the places `axis` of the result."""
    x = array(a, "expand_dims")
    count = len(axis) if isinstance(axis, tuple | list) else 1
    axes = normalize_axes("expand_dims", axis, len(x.shape) + count)
    lengths = list(x.shape)
    for i in axes:
        lengths.insert(i, 1)
    return broadcasting.reshape(x, tuple(lengths))


@public(np.squeeze)
def squeeze(a: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    """Without the axes of length 1, or without those named by `axis`."""
    x = array(a, "squeeze")
    if axis is None:
        return broadcasting.reshape(x, tuple([n for n in x.shape if n != 1]))
    scalar = not x.shape and isinstance(axis, int) and axis in (0, -1)
    axes = () if scalar else normalize_axes("squeeze", axis, len(x.shape))
    for i in axes:
        if x.shape[i] != 1:
            raise ShapeError(f"squeeze: axis {i} of {describe(x)} has length {x.shape[i]}, not 1")
    return broadcasting.reshape(x, broadcasting.reduced(x.shape, axes))


def _at_least(name: str, arrays: Sequence[Any], to: Any) -> Any:
    out = []
    for a in arrays:
        x = array(a, name)
        out.append(broadcasting.reshape(x, to(x.shape)))
    return out[0] if len(out) == 1 else tuple(out)


@public(np.atleast_1d)
def atleast_1d(*arys: Any) -> Any:
    """Arrays with at least one axis; a tuple for several."""
    return _at_least("atleast_1d", arys, lambda s: s or (1,))


@public(np.atleast_2d)
def atleast_2d(*arys: Any) -> Any:
    """Arrays with at least two axes, new ones in front; a tuple for several."""
    return _at_least("atleast_2d", arys, lambda s: (1,) * (2 - len(s)) + s)


@public(np.atleast_3d)
def atleast_3d(*arys: Any) -> Any:
    """Arrays with at least three axes: (n,) becomes (1, n, 1) and (m, n) becomes (m, n, 1); a tuple for several."""

    def lengths(s: Shape) -> Shape:
        return s if len(s) > 2 else (*s, 1) if len(s) == 2 else (1, *s, 1) if s else (1, 1, 1)

    return _at_least("atleast_3d", arys, lengths)


# -- the order of the axes


@public(np.transpose)
def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """The axes in another order (default: reversed): axis i of the result is axis ``axes[i]`` of `a`."""
    x = array(a, "transpose")
    n = len(x.shape)
    if axes is None:
        return broadcasting.transpose(x, tuple(range(n))[::-1])
    order = tuple([normalize_axis("transpose", i, n) for i in sequence("transpose", "axes", axes)])
    if sorted(order) != list(range(n)):
        raise ParameterError(f"transpose: axes {printed(axes)} are no order of the {n} axes of {describe(x)}")
    return broadcasting.transpose(x, order)


@public(getattr(np, "permute_dims", None))
def permute_dims(a: Any, axes: Sequence[int] | None = None) -> Any:
    """`transpose`, as the array API standard calls it."""
    return transpose(a, axes)


@public(getattr(np, "matrix_transpose", None))
def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    x = array(x, "matrix_transpose")
    if len(x.shape) < 2:
        raise ShapeError(f"matrix_transpose: at least two axes are needed, got {describe(x)}")
    return swapaxes(x, -1, -2)


@public(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    x = array(a, "swapaxes")
    order = list(range(len(x.shape)))
    i, j = normalize_axis("swapaxes", axis1, len(order)), normalize_axis("swapaxes", axis2, len(order))
    order[i], order[j] = order[j], order[i]
    return broadcasting.transpose(x, tuple(order))


@public(np.moveaxis)
def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Axes moved to other places; the rest keep their order."""
    x = array(a, "moveaxis")
    n = len(x.shape)
    pairs = []
    for name, given in (("source", source), ("destination", destination)):
        items = given if isinstance(given, tuple | list) else (given,)
        pairs.append([normalize_axis("moveaxis", i, n) for i in items])
        if len(set(pairs[-1])) < len(items):
            raise AxisError(f"moveaxis: an axis is given twice in {name}: {given}")
    if len(pairs[0]) != len(pairs[1]):
        raise ParameterError(f"moveaxis: {len(pairs[0])} axes cannot move to {len(pairs[1])} places")
    order = [i for i in range(n) if i not in pairs[0]]
    for to, from_ in sorted(zip(pairs[1], pairs[0], strict=True)):
        order.insert(to, from_)
    return broadcasting.transpose(x, tuple(order))


@public(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """One axis moved in front of axis `start`; `moveaxis` is clearer."""
    x = array(a, "rollaxis")
    n = len(x.shape)
    from_ = normalize_axis("rollaxis", axis, n)
    to = normalize_axis("rollaxis", start, n + 1)
    return broadcasting.move_axis(x, from_, to - (from_ < to))


# -- repeating along new axes


@public(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """`array` repeated to `shape`, by NumPy's broadcasting rules."""
    x = strong(operand(array, "broadcast_to"))
    wanted = given_shape("broadcast_to", shape)
    if type(x) is not Tracer and not isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x)
    if common_shape(x.shape, wanted) != wanted:
        raise ShapeError(f"broadcast_to: {describe(x)} does not broadcast to shape {wanted}")
    return operands.broadcast_to(x, wanted)


@public(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Any, ...]:
    """The arguments repeated to their common shape."""
    xs = [array(a, "broadcast_arrays") for a in args]
    common = broadcast_shape("broadcast_arrays", xs)
    return tuple([operands.broadcast_to(x, common) for x in xs])


# -- joining


def _common(name: str, arrays: Any, dtype: Any = None) -> list[Any]:
    """A sequence of arrays, of one dtype."""
    if isinstance(arrays, ARRAYS):
        arrays = operand(arrays, name)
        if not arrays.shape:
            raise ArgumentError(f"{name}: expected a sequence of arrays, got {describe(arrays)}")
        xs = list(arrays)
    elif isinstance(arrays, list | tuple):
        xs = list(arrays)
    else:
        raise ArgumentError(f"{name}: expected a list or tuple of arrays, got a {type(arrays).__name__}")
    if not xs:
        raise ShapeError(f"{name}: at least one array is needed")
    xs = [array(x, name) for x in xs]
    kind = promote(*[x.dtype for x in xs]) if dtype is None else given_dtype(name, dtype)
    return [convert(x, kind) for x in xs]


@public(np.concatenate)
def concatenate(
    arrays: Any, /, axis: int | None = 0, out: None = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Arrays one after another along an existing axis; ``axis=None`` flattens them first."""
    refuse_out("concatenate", out)
    xs = _common("concatenate", arrays, dtype)
    if axis is None:
        xs = [broadcasting.reshape(x, (prod(x.shape),)) for x in xs]
        return movement.concatenate(xs, 0)
    first = xs[0]
    if not first.shape:
        raise ShapeError("concatenate: arrays without axes cannot be joined", hint="stack(arrays) adds an axis")
    along = normalize_axis("concatenate", axis, len(first.shape))
    for x in xs:
        same_rank = len(x.shape) == len(first.shape)
        if not same_rank or any(
            n != m for i, (n, m) in enumerate(zip(x.shape, first.shape, strict=True)) if i != along
        ):
            raise ShapeError(
                f"concatenate: {describe(first)} and {describe(x)} differ outside axis {along}",
                hint=None if same_rank else "x[None] adds an axis",
            )
    return movement.concatenate(xs, along)


@public(getattr(np, "concat", None))
def concat(
    arrays: Any, /, axis: int | None = 0, out: None = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """`concatenate`, as the array API standard calls it."""
    return concatenate(arrays, axis, out, dtype=dtype, casting=casting)


@public(np.stack)
def stack(arrays: Any, axis: int = 0, out: None = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Arrays of one shape one after another along a new axis."""
    refuse_out("stack", out)
    xs = _common("stack", arrays, dtype)
    first = xs[0]
    for x in xs:
        if x.shape != first.shape:
            raise ShapeError(f"stack: all arrays need one shape, got {describe(first)} and {describe(x)}")
    at = normalize_axis("stack", axis, len(first.shape) + 1)
    return movement.concatenate([broadcasting.expand(x, at) for x in xs], at)


@public(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Rows one below another: `concatenate` along axis 0, after `atleast_2d`."""
    xs = _common("vstack", tup, dtype)
    return concatenate([atleast_2d(x) for x in xs], 0)


@public(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Arrays side by side: `concatenate` along axis 1, along axis 0 for one-dimensional arrays."""
    xs = [atleast_1d(x) for x in _common("hstack", tup, dtype)]
    return concatenate(xs, 0 if len(xs[0].shape) == 1 else 1)


@public(np.dstack)
def dstack(tup: Any) -> Any:
    """Arrays one behind another: `concatenate` along axis 2, after `atleast_3d`."""
    return concatenate([atleast_3d(x) for x in _common("dstack", tup)], 2)


@public(np.column_stack)
def column_stack(tup: Any) -> Any:
    """One-dimensional arrays as the columns of a matrix; matrices are put side by side."""
    xs = []
    for x in _common("column_stack", tup):
        xs.append(x if len(x.shape) > 1 else broadcasting.reshape(x, (prod(x.shape), 1)))
    return concatenate(xs, 1)


@public(np.block)
def block(arrays: Any) -> Any:
    """An array from nested lists of blocks: the innermost join along the last axis, the next along the one before."""
    if isinstance(arrays, tuple):
        raise ArgumentError("block: nested lists are expected, not a tuple")

    def depth(node: Any, above: int = 0) -> int:
        if above > MAX_AXES:
            raise ParameterError(f"block: lists are nested more than {MAX_AXES} deep")
        return 1 + max([depth(item, above + 1) for item in node], default=0) if isinstance(node, list) else 0

    def blocks(node: Any) -> list[Any]:
        return [x for item in node for x in blocks(item)] if isinstance(node, list) else [array(node, "block")]

    levels = depth(arrays)
    rank = max([levels, *[len(x.shape) for x in blocks(arrays)]])

    def join(node: Any, level: int) -> Any:
        if not isinstance(node, list):
            x = array(node, "block")
            return broadcasting.reshape(x, (1,) * (rank - len(x.shape)) + x.shape)
        if not node:
            raise ShapeError("block: an empty list has no shape")
        return concatenate([join(item, level + 1) for item in node], rank - levels + level)

    return join(arrays, 0)


# -- splitting

MOST_SECTIONS = 1_000_000
"""An axis is split into as many parts, or into as many as it has elements."""


def _pieces(x: Any, bounds: Sequence[int], axis: int) -> list[Any]:
    """``x[bounds[i]:bounds[i + 1]]`` along `axis`."""
    out = []
    rank = len(x.shape)
    for start, stop in pairwise(bounds):
        begin = tuple([start if i == axis else 0 for i in range(rank)])
        end = tuple([max(start, stop) if i == axis else n for i, n in enumerate(x.shape)])
        out.append(movement.slice_(x, begin, end, (1,) * rank))
    return out


def _split(name: str, ary: Any, indices_or_sections: Any, axis: int, uneven: bool) -> list[Any]:
    x = array(ary, name)
    if not x.shape:
        raise ShapeError(f"{name}: {describe(x)} has no axis to split")
    along = normalize_axis(name, axis, len(x.shape))
    n = x.shape[along]
    if isinstance(indices_or_sections, tuple | list | range) or (
        isinstance(indices_or_sections, ARRAYS) and indices_or_sections.ndim
    ):
        given = integers(name, "a place", indices_or_sections)
        places = [slice(None, i).indices(n)[1] for i in given]
        return _pieces(x, [0, *places, n], along)
    sections = integer(name, "the number of sections", indices_or_sections)
    if sections <= 0:
        raise ParameterError(f"{name}: the number of sections must be positive, got {sections}")
    if sections > max(n, MOST_SECTIONS):
        raise ParameterError(f"{name}: {sections} sections of axis {along} of {describe(x)} are too many")
    if n % sections and not uneven:
        raise ShapeError(
            f"{name}: axis {along} of {describe(x)} does not divide into {sections} equal parts",
            hint="array_split allows unequal parts",
        )
    length, longer = divmod(n, sections)
    bounds = [0]
    for i in range(sections):
        bounds.append(bounds[-1] + length + (i < longer))
    return _pieces(x, bounds, along)


@public(np.split)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Equal parts along `axis`, or the parts between the given places."""
    return _split("split", ary, indices_or_sections, axis, False)


@public(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """`split`, where the first parts may be longer by one."""
    return _split("array_split", ary, indices_or_sections, axis, True)


@public(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 1; along axis 0 for one axis."""
    return _split("hsplit", ary, indices_or_sections, 0 if ndim(ary) == 1 else 1, False)


@public(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 0, of at least two."""
    if ndim(ary) < 2:
        raise ShapeError("vsplit: at least two axes are needed")
    return _split("vsplit", ary, indices_or_sections, 0, False)


@public(np.dsplit)
def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 2, of at least three."""
    if ndim(ary) < 3:
        raise ShapeError("dsplit: at least three axes are needed")
    return _split("dsplit", ary, indices_or_sections, 2, False)


@public(getattr(np, "unstack", None))
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The slices along `axis`, each without that axis."""
    x = array(x, "unstack")
    if not x.shape:
        raise ShapeError(f"unstack: {describe(x)} has no axis")
    along = normalize_axis("unstack", axis, len(x.shape))
    rest = broadcasting.reduced(x.shape, (along,))
    parts = _pieces(x, range(x.shape[along] + 1), along)
    return tuple([broadcasting.reshape(part, rest) for part in parts])
