"""Movement of data: convert, reverse, slice, pad, concatenate, iota, banded.

All are exact, and all but `iota` are linear: the tangent is the same movement of the tangent.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype, is_inexact
from funcgrad.base.errors import ShapeError
from funcgrad.core.ir import Aval, Shape, make_aval
from funcgrad.core.primitive import Linear, Traits
from funcgrad.core.trace import bind1
from funcgrad.ops import scalar
from funcgrad.ops.arithmetic import select, sub
from funcgrad.ops.broadcasting import MOVE, align, broadcast, reduce_sum
from funcgrad.ops.op import LINEAR, Op, Operand, aval_of, constant, literal_of, zeros_of

# -- convert


def convert(x: Operand, dtype: Dtype, weak: bool = False) -> Any:
    """`x` as another dtype.

    Float to integer truncates toward zero and saturates at the ends of the range; NaN gives 0. Anything to bool
    is ``x != 0``. Complex to real keeps the real part. Integer to integer wraps.

    The derivative passes between inexact dtypes, rounded to the target, and is zero otherwise.
    """
    a = aval_of(x)
    if a.dtype == dtype and a.weak == weak:
        return x
    literal = literal_of(x)
    if literal is not None and a.dtype == dtype:
        return constant(literal.value, make_aval(a.shape, dtype, weak))
    return bind1(convert_p, x, dtype=dtype, weak=weak)


def _convert(x: Any, *, dtype: Dtype, weak: bool) -> Any:
    source = x.dtype
    if source == dtype:
        return x
    if dtype.kind in "iu" and source.kind in "fc":
        x = x.real if source.kind == "c" else x
        info = np.iinfo(dtype)
        low = x.dtype.type(info.min)
        high = x.dtype.type(info.max)
        if high == np.inf or low == -np.inf:  # float16: the range of the target is wider than that of the source
            big = np.where(np.isposinf(x), info.max, np.where(np.isneginf(x), info.min, 0)).astype(dtype)
            return np.where(np.isfinite(x), np.where(np.isfinite(x), x, 0).astype(dtype), big)[()]
        inside = (x > low) & (x < high)  # the ends themselves are filled in below: `high` may have rounded up
        return np.where(
            inside,
            np.where(inside, x, 0).astype(dtype),
            np.where(x >= high, info.max, np.where(x <= low, info.min, 0)).astype(dtype),
        )[()]
    if source.kind == "c" and dtype.kind == "f":
        return x.real.astype(dtype)
    return x.astype(dtype)


convert_p = Op(convert, Traits(exact=True, kind="elementwise"), domain=LINEAR)
convert_p.flops = 0
convert_p.abstract = lambda x, *, dtype, weak: (make_aval(x.shape, dtype, weak),)
convert_p.evaluate = lambda x, **params: (_convert(x, **params),)
convert_p.emit = scalar.convert
convert_p.hidden_params = {"weak": False}
convert_p.batch = lambda size, args, dims, *, dtype, weak: (convert_p_bind(args[0], dtype), dims)


def convert_p_bind(x: Any, dtype: Dtype) -> tuple[Any]:
    """The results of convert, as a tuple."""
    return (bind1(convert_p, x, dtype=dtype, weak=False),)


def _convert_jvp(primal: Any, primals: Any, tangents: Any, *, dtype: Dtype, weak: bool) -> Any:
    outs = primal()
    if not is_inexact(dtype):
        return outs, (None,)
    return outs, (convert(tangents[0], dtype),)


convert_p.jvp = _convert_jvp
convert_p.transpose = lambda cts, x, **params: (convert(cts[0], x.aval.dtype),)

# -- reverse


def reverse(x: Operand, axes: tuple[int, ...]) -> Any:
    """The order of the elements along `axes` turned round."""
    return bind1(reverse_p, x, axes=axes) if axes else x


reverse_p = Op(reverse, MOVE, domain=LINEAR)
reverse_p.abstract = lambda x, *, axes: (make_aval(x.shape, x.dtype),)
reverse_p.evaluate = lambda x, *, axes: (np.flip(x, axes),)
reverse_p.batch = lambda size, args, dims, *, axes: (
    (reverse(args[0], tuple(a + (a >= dims[0]) for a in axes)),),
    dims,
)
reverse_p.def_linear()
reverse_p.view = lambda x, *, axes: x.reversed(axes)
reverse_p.transpose = lambda cts, x, *, axes: (reverse(cts[0], axes),)

# -- slice and pad


def slice_(x: Operand, start: tuple[int, ...], stop: tuple[int, ...], step: tuple[int, ...]) -> Any:
    """``x[start:stop:step]`` along every axis; ``0 <= start <= stop <= length``, ``step >= 1``."""
    shape = aval_of(x).shape
    if all(b == 0 and e == n and s == 1 for b, e, s, n in zip(start, stop, step, shape, strict=True)):
        return x
    return bind1(slice_p, x, start=start, stop=stop, step=step)


def _slice_abstract(x: Aval, *, start: Shape, stop: Shape, step: Shape) -> tuple[Aval]:
    for b, e, s, n in zip(start, stop, step, x.shape, strict=True):
        if not (0 <= b <= e <= n and s >= 1):
            raise ShapeError(f"slice: [{start}:{stop}:{step}] is outside {x}")
    return (make_aval(tuple(-(-(e - b) // s) for b, e, s in zip(start, stop, step, strict=True)), x.dtype),)


def _slice_batch(size: int, args: Any, dims: Any, *, start: Shape, stop: Shape, step: Shape) -> Any:
    x = align(args[0], dims[0], 0, size)
    return (slice_(x, (0, *start), (size, *stop), (1, *step)),), (0,)


def _slice_transpose(cts: Any, x: Linear, *, start: Shape, stop: Shape, step: Shape) -> Any:
    taken = aval_of(cts[0]).shape
    after = tuple(
        n - (b + (k - 1) * s + 1 if k else b) for n, b, s, k in zip(x.aval.shape, start, step, taken, strict=True)
    )
    return (pad(cts[0], zeros_of(make_aval((), x.aval.dtype)), start, after, tuple(s - 1 for s in step)),)


slice_p = Op(slice_, MOVE, name="slice", domain=LINEAR)
slice_p.abstract = _slice_abstract
slice_p.evaluate = lambda x, *, start, stop, step: (
    x[tuple(slice(b, e, s) for b, e, s in zip(start, stop, step, strict=True))],
)
slice_p.batch = _slice_batch
slice_p.def_linear()
slice_p.view = lambda x, *, start, stop, step: x.sliced(start, stop, step)
slice_p.transpose = _slice_transpose


def pad(x: Operand, value: Operand, before: Shape, after: Shape, between: Shape) -> Any:
    """`x` with `value` (a scalar) before, after and between its elements along every axis; counts may be 0.

    ``between`` counts the fill between neighbours: the pad that undoes a slice of step s has ``between = s - 1``.
    Negative counts of ``before`` and ``after`` are not allowed: slice instead.
    """
    if not any(before) and not any(after) and not any(between):
        return x
    return bind1(pad_p, x, value, before=before, after=after, between=between)


def _padded(shape: Shape, before: Shape, after: Shape, between: Shape) -> Shape:
    return tuple(b + a + n + max(n - 1, 0) * i for n, b, a, i in zip(shape, before, after, between, strict=True))


def _pad_abstract(x: Aval, value: Aval, *, before: Shape, after: Shape, between: Shape) -> tuple[Aval]:
    if value.shape or value.dtype != x.dtype or min((*before, *after, *between), default=0) < 0:
        raise ShapeError(f"pad: {x} with {value} by {before}, {after}, {between}")
    return (make_aval(_padded(x.shape, before, after, between), x.dtype),)


def _pad_evaluate(x: Any, value: Any, *, before: Shape, after: Shape, between: Shape) -> tuple[Any]:
    x = np.asarray(x)
    out = np.full(_padded(x.shape, before, after, between), value, x.dtype)
    where = tuple(
        slice(b, b + (n - 1) * (i + 1) + 1 if n else b, i + 1) for b, i, n in zip(before, between, x.shape, strict=True)
    )
    out[where] = x
    return (out,)


def _pad_batch(size: int, args: Any, dims: Any, *, before: Shape, after: Shape, between: Shape) -> Any:
    x, value = args
    if dims[1] is None:
        x = align(x, dims[0], 0, size)
        return (pad(x, value, (0, *before), (0, *after), (0, *between)),), (0,)
    # a fill that differs from row to row: pad with zeros, and select the fill outside
    x = align(x, dims[0], 0, size)
    zero, one = constant(0, make_aval((), aval_of(x).dtype)), np.bool_(True)
    frame = ((0, *before), (0, *after), (0, *between))
    inside = bind1(pad_p, constant(one, make_aval(aval_of(x).shape, np.dtype(bool))),
                   constant(False, make_aval((), np.dtype(bool))),
                   before=frame[0], after=frame[1], between=frame[2])  # fmt: skip
    padded = bind1(pad_p, x, zero, before=frame[0], after=frame[1], between=frame[2])
    fill = broadcast(value, aval_of(padded).shape, (0,))
    return (select(inside, padded, fill),), (0,)


def _pad_transpose(cts: Any, x: Any, value: Any, *, before: Shape, after: Shape, between: Shape) -> Any:
    ct = cts[0]
    shape = aval_of(ct).shape
    inner = x.aval.shape if isinstance(x, Linear) else aval_of(x).shape
    stop = tuple(b + (n - 1) * (i + 1) + 1 if n else b for b, n, i in zip(before, inner, between, strict=True))
    taken = slice_(ct, before, stop, tuple(i + 1 for i in between))
    x_bar = taken if isinstance(x, Linear) else None
    value_bar = None
    if isinstance(value, Linear):
        axes = tuple(range(len(shape)))
        value_bar = sub(reduce_sum(ct, axes), reduce_sum(taken, axes))
    return x_bar, value_bar


pad_p = Op(pad, Traits(exact=True, zero="source", kind="index"), domain=LINEAR)
pad_p.abstract = _pad_abstract
pad_p.evaluate = _pad_evaluate
pad_p.batch = _pad_batch
pad_p.def_linear(0, 1)
pad_p.transpose = _pad_transpose

# -- concatenate


def concatenate(arrays: Sequence[Operand], axis: int) -> Any:
    """Arrays one after another along an existing axis; the other axes agree."""
    if len(arrays) == 1:
        return arrays[0]
    return bind1(concatenate_p, *arrays, axis=axis)


def _concatenate_abstract(*avals: Aval, axis: int) -> tuple[Aval]:
    first = avals[0]
    for a in avals:
        others = [n for i, n in enumerate(a.shape) if i != axis]
        if a.dtype != first.dtype or others != [n for i, n in enumerate(first.shape) if i != axis]:
            raise ShapeError(f"concatenate: {' and '.join(map(str, avals))} differ outside axis {axis}")
    total = sum(a.shape[axis] for a in avals)
    return (make_aval((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype),)


def _concatenate_jvp(primal: Any, primals: Any, tangents: Any, *, axis: int) -> Any:
    dots = [zeros_of(x) if t is None else t for x, t in zip(primals, tangents, strict=True)]
    return primal(), (concatenate(dots, axis),)


def _concatenate_batch(size: int, args: Any, dims: Any, *, axis: int) -> Any:
    rows = [align(x, d, 0, size) for x, d in zip(args, dims, strict=True)]
    return (concatenate(rows, axis + 1),), (0,)


def _concatenate_transpose(cts: Any, *args: Any, axis: int) -> Any:
    out, at = [], 0
    shape = aval_of(cts[0]).shape
    for x in args:
        n = (x.aval if isinstance(x, Linear) else aval_of(x)).shape[axis]
        if isinstance(x, Linear):
            start = tuple(at if i == axis else 0 for i in range(len(shape)))
            stop = tuple(at + n if i == axis else m for i, m in enumerate(shape))
            out.append(slice_(cts[0], start, stop, (1,) * len(shape)))
        else:
            out.append(None)
        at += n
    return out


concatenate_p = Op(concatenate, Traits(exact=True, zero="source", kind="index"), domain=LINEAR)
concatenate_p.abstract = _concatenate_abstract
concatenate_p.evaluate = lambda *arrays, axis: (np.concatenate(arrays, axis),)
concatenate_p.jvp = _concatenate_jvp
concatenate_p.batch = _concatenate_batch
concatenate_p.transpose = _concatenate_transpose

# -- iota


def iota(shape: Shape, dtype: Dtype, axis: int) -> Any:
    """0, 1, 2, ... along `axis`, repeated along the others; exact while the length fits the dtype."""
    return bind1(iota_p, shape=shape, dtype=dtype, axis=axis)


def _iota_evaluate(*, shape: Shape, dtype: Dtype, axis: int) -> tuple[Any]:
    column = np.arange(shape[axis]).astype(dtype)
    return (np.broadcast_to(column.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape),)


iota_p = Op(iota, Traits(exact=True, kind="iota"))
iota_p.abstract = lambda *, shape, dtype, axis: (make_aval(shape, dtype),)
iota_p.evaluate = _iota_evaluate
iota_p.def_no_derivative("it has no operands")
iota_p.decline("batch", "it has no operands")
iota_p.decline("transpose", "it has no operands")

# -- banded: written by lowering.diagonals


def banded(
    *lines: Operand,
    shape: Shape,
    dtype: Dtype,
    boxes: tuple[tuple[Shape, Shape, Any], ...],
    places: tuple[tuple[int, int], ...],
) -> Any:
    """An array of constants with vectors written over them.

    `boxes` are start, stop and constant of parts that cover it; the elements of a line lie, in C order, at
    ``offset + i * step``, where `places` has offset and step.
    """
    return bind1(banded_p, *lines, shape=shape, dtype=dtype, boxes=boxes, places=places)


def _banded_abstract(*lines: Aval, shape: Shape, dtype: Dtype, boxes: Any, places: Any) -> tuple[Aval]:
    for line, (offset, step) in zip(lines, places, strict=True):
        last = offset + (line.size - 1) * step
        if line.dtype != dtype or line.ndim != 1 or not line.size or step < 1 or offset < 0 or last >= prod(shape):
            raise ShapeError(f"banded: {line} from {offset} by {step} in shape {shape}")
    for start, stop, _ in boxes:
        if not all(0 <= b < e <= n for b, e, n in zip(start, stop, shape, strict=True)):
            raise ShapeError(f"banded: a box from {start} to {stop} in shape {shape}")
    return (make_aval(shape, dtype),)


def _banded_evaluate(*lines: Any, shape: Shape, dtype: Dtype, boxes: Any, places: Any) -> tuple[Any]:
    out = np.empty(shape, dtype)
    for start, stop, value in boxes:
        out[tuple(slice(b, e) for b, e in zip(start, stop, strict=True))] = value
    flat = out.reshape(-1)
    for line, (offset, step) in zip(lines, places, strict=True):
        flat[offset : offset + (len(line) - 1) * step + 1 : step] = line
    return (out,)


banded_p = Op(banded, Traits(exact=True, kind="index"))
banded_p.abstract = _banded_abstract
banded_p.evaluate = _banded_evaluate
banded_p.def_no_derivative("it is written after all transforms")
banded_p.decline("batch", "it is written after all transforms")
banded_p.decline("transpose", "it is written after all transforms")
