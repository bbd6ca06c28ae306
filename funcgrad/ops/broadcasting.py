"""Broadcast and sum, each the transpose of the other, and the reshapes and transpositions that batching needs."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.errors import ShapeError
from funcgrad.core.ir import Aval, Shape, make_aval
from funcgrad.core.primitive import Traits
from funcgrad.core.trace import bind1
from funcgrad.ops.op import LINEAR, NUMERIC, Op, Operand, aval_of, constant, literal_of
from funcgrad.ops.reductions import total

Axes = tuple[int, ...]
MOVE = Traits(exact=True, kind="view")

# -- broadcast


def broadcast(x: Operand, shape: Shape, axes: tuple[int, ...]) -> Any:
    """`x` repeated along new axes.

    Axis i of `x` becomes axis ``axes[i]`` of the result (`axes` increases); the other axes are new.
    """
    if shape == aval_of(x).shape:
        return x
    literal = literal_of(x)
    if literal is not None:
        return constant(literal.value, make_aval(shape, literal.aval.dtype))
    return bind1(broadcast_p, x, shape=shape, axes=axes)


def _broadcast_abstract(x: Aval, *, shape: Shape, axes: tuple[int, ...]) -> tuple[Aval]:
    if tuple(shape[a] for a in axes) != x.shape or any(a >= b for a, b in pairwise(axes)):
        raise ShapeError(f"broadcast: {x} does not fit axes {axes} of shape {shape}")
    return (make_aval(shape, x.dtype),)


def _broadcast_evaluate(x: Any, *, shape: Shape, axes: tuple[int, ...]) -> tuple[Any]:
    x = np.asarray(x)
    strides = [0] * len(shape)
    for from_axis, to_axis in enumerate(axes):
        strides[to_axis] = x.strides[from_axis]
    if not x.flags.c_contiguous:
        return (np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False),)
    out = np.ndarray(shape, x.dtype, x, 0, strides)
    out.flags.writeable = False
    return (out,)


def _broadcast_batch(size: int, args: Any, dims: Any, *, shape: Shape, axes: tuple[int, ...]) -> Any:
    # the batch axis goes in front: axes of the result shift by one, and the operand keeps its batch axis first
    x = align(args[0], dims[0], 0, size)
    return (bind1(broadcast_p, x, shape=(size, *shape), axes=(0, *[a + 1 for a in axes])),), (0,)


broadcast_p = Op(broadcast, MOVE, domain=LINEAR)
broadcast_p.abstract = _broadcast_abstract
broadcast_p.evaluate = _broadcast_evaluate
broadcast_p.batch = _broadcast_batch
broadcast_p.def_linear()
broadcast_p.view = lambda x, *, shape, axes: x.broadcast(shape, axes)
broadcast_p.transpose = lambda cts, x, *, shape, axes: (
    reduce_sum(cts[0], tuple(i for i in range(len(shape)) if i not in axes)),
)


def broadcast_to(x: Operand, shape: Shape) -> Any:
    """NumPy's broadcasting of one operand to a shape it is compatible with."""
    a = aval_of(x)
    if a.shape == shape:
        return x
    offset = len(shape) - len(a.shape)
    kept = [i for i, n in enumerate(a.shape) if n == shape[i + offset]]
    if len(kept) < len(a.shape):
        x = reshape(x, tuple(a.shape[i] for i in kept))
    return broadcast(x, shape, tuple(i + offset for i in kept))


# -- reshape


def reshape(x: Operand, shape: Shape) -> Any:
    """The elements of `x`, in C order, with another shape of the same size."""
    if aval_of(x).shape == shape:
        return x
    literal = literal_of(x)
    if literal is not None:
        return constant(literal.value, make_aval(shape, literal.aval.dtype))
    return bind1(reshape_p, x, shape=shape)


def _reshape_abstract(x: Aval, *, shape: Shape) -> tuple[Aval]:
    if prod(shape) != x.size:
        raise ShapeError(f"reshape: {x} has {x.size} elements, shape {shape} has {prod(shape)}")
    return (make_aval(shape, x.dtype),)


def _reshape_batch(size: int, args: Any, dims: Any, *, shape: Shape) -> Any:
    return (reshape(align(args[0], dims[0], 0, size), (size, *shape)),), (0,)


reshape_p = Op(reshape, MOVE, domain=LINEAR)
reshape_p.abstract = _reshape_abstract
reshape_p.evaluate = lambda x, *, shape: (np.reshape(x, shape),)
reshape_p.batch = _reshape_batch
reshape_p.def_linear()
reshape_p.view = lambda x, *, shape: x.reshaped(shape)
reshape_p.transpose = lambda cts, x, *, shape: (reshape(cts[0], x.aval.shape),)


def expand(x: Operand, axis: int) -> Any:
    """`x` with a new axis of length 1 at `axis` of the result."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:axis], 1, *shape[axis:]))


# -- transpose


def transpose(x: Operand, axes: tuple[int, ...]) -> Any:
    """Axes in another order: axis i of the result is axis ``axes[i]`` of `x`."""
    if axes == tuple(range(len(axes))):
        return x
    literal = literal_of(x)
    if literal is not None:
        return constant(literal.value, make_aval(tuple(literal.aval.shape[a] for a in axes), literal.aval.dtype))
    return bind1(transpose_p, x, axes=axes)


def _transpose_batch(size: int, args: Any, dims: Any, *, axes: tuple[int, ...]) -> Any:
    d = dims[0]
    return (transpose(args[0], (d, *[a + (a >= d) for a in axes])),), (0,)


transpose_p = Op(transpose, MOVE, domain=LINEAR)
transpose_p.abstract = lambda x, *, axes: (make_aval(tuple(x.shape[a] for a in axes), x.dtype),)
transpose_p.evaluate = lambda x, *, axes: (np.transpose(x, axes),)
transpose_p.batch = _transpose_batch
transpose_p.def_linear()
transpose_p.view = lambda x, *, axes: x.permuted(axes)
transpose_p.transpose = lambda cts, x, *, axes: (transpose(cts[0], tuple(np.argsort(axes).tolist())),)


def move_axis(x: Operand, source: int, target: int) -> Any:
    """One axis moved to another place, the others in order."""
    if source == target:
        return x
    order = [i for i in range(len(aval_of(x).shape)) if i != source]
    order.insert(target, source)
    return transpose(x, tuple(order))


def align(x: Any, dim: int | None, to: int, size: int) -> Any:
    """`x` with its batch axis moved from `dim` to `to`; an unbatched operand is repeated `size` times there."""
    if dim == to:
        return x
    if dim is not None:
        return move_axis(x, dim, to)
    shape = aval_of(x).shape
    axes = tuple(i + (i >= to) for i in range(len(shape)))
    return broadcast(x, (*shape[:to], size, *shape[to:]), axes)


# -- reductions


def reduced(shape: Shape, axes: Axes) -> Shape:
    """The shape without `axes`."""
    return tuple([n for i, n in enumerate(shape) if i not in axes])


def batch_reduce(op: Op) -> Any:
    """The batching rule of a reduction: shift the axes past the batch axis."""

    def batch(size: int, args: Any, dims: Any, *, axes: Axes, **params: Any) -> Any:
        d = dims[0]
        shifted = tuple([a + (a >= d) for a in axes])
        return (bind1(op, args[0], axes=shifted, **params),), (d - sum(a < d for a in shifted),)

    return batch


def last(x: Any, axes: Axes) -> Any:
    """`x` with `axes` gathered into one last axis, contiguous: where NumPy's pairwise sum keeps its bound."""
    x = np.asarray(x)
    kept = [i for i in range(x.ndim) if i not in axes]
    moved = x.transpose(*kept, *axes)
    return (
        np.ascontiguousarray(moved).reshape(*[x.shape[i] for i in kept], -1)
        if x.size
        else moved.reshape(*[x.shape[i] for i in kept], int(np.prod([x.shape[i] for i in axes])))
    )


# -- sum


def reduce_sum(x: Operand, axes: Axes) -> Any:
    """The sum over `axes`, in the dtype of `x`, by pairwise summation: error at most about log2(n) ulp."""
    return bind1(reduce_sum_p, x, axes=axes) if axes else x


def _broadcast_back(ct: Any, aval: Aval, axes: Axes) -> Any:
    kept = tuple([i for i in range(len(aval.shape)) if i not in axes])
    return broadcast(ct, aval.shape, kept)


reduce_sum_p = Op(reduce_sum, Traits(kind="reduce"), dtypes=NUMERIC, domain=LINEAR)
reduce_sum_p.abstract = lambda x, *, axes: (make_aval(reduced(x.shape, axes), x.dtype),)
reduce_sum_p.evaluate = lambda x, *, axes: (np.add.reduce(last(x, axes), axis=-1, dtype=x.dtype),)
reduce_sum_p.batch = batch_reduce(reduce_sum_p)
reduce_sum_p.reduction = total
reduce_sum_p.def_linear()
reduce_sum_p.transpose = lambda cts, x, *, axes: (_broadcast_back(cts[0], x.aval, axes),)
