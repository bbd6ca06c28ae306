"""Products: dot, matmul, einsum and their relatives, all through one pairwise contraction by labels.

Every axis of the two operands gets a label; a label in both operands is summed if it is not in the result, and
kept once if it is. That plan, a sum, a reshape, a general dot and a transposition at most, depends on labels and
shapes only and is remembered.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from funcgrad.base.dtypes import BOOL
from funcgrad.base.errors import ParameterError, ShapeError, printed
from funcgrad.core.ir import Shape
from funcgrad.core.trace import Tracer, bind1, describe, name_of
from funcgrad.numpy import selection
from funcgrad.numpy.elementwise import refuse_out, ufuncs
from funcgrad.numpy.operands import array, broadcast_to, common_shape, normalize_axis, promoted_dtype, public
from funcgrad.numpy.parameters import integer
from funcgrad.ops import dot as dots
from funcgrad.ops.broadcasting import broadcast, reduce_sum, reshape, transpose
from funcgrad.ops.movement import concatenate, slice_
from funcgrad.ops.reduce import reduce_any

Labels = tuple[Hashable, ...]


# -- the contraction of two operands


class Plan(NamedTuple):
    """How two operands with labelled axes are contracted; see `contract`."""

    shapes: tuple[Shape | None, Shape | None]  # without the axes of length 1 that the other operand has longer
    sums: tuple[tuple[int, ...], tuple[int, ...]]  # axes of x and y that only one of them has, and the result has not
    product: bool  # nothing is summed: an elementwise product
    contract: dots.Pair
    batch: dots.Pair
    swap: bool
    order: tuple[int, ...]  # transposition of the result of dot
    places: tuple[tuple[int, ...], tuple[int, ...]]  # of an elementwise product: where the axes are in the result
    shape: Shape


@lru_cache(maxsize=2048)
def make_plan(x: Shape, x_labels: Labels, y: Shape, y_labels: Labels, out: Labels | None) -> Plan:
    """The plan for operands of these shapes. `out` None leaves the order of the result free."""
    sizes: dict[Hashable, int] = {}
    for shape, labels in ((x, x_labels), (y, y_labels)):
        for n, label in zip(shape, labels, strict=True):
            sizes[label] = n if sizes.get(label, 1) == 1 else sizes[label]
    wanted = set(sizes) if out is None else set(out)
    shapes, kept = [], []
    for shape, labels in ((x, x_labels), (y, y_labels)):
        full = [(n, label) for n, label in zip(shape, labels, strict=True) if n == sizes[label]]
        shapes.append(tuple([n for n, _ in full]) if len(full) < len(labels) else None)
        kept.append([label for _, label in full])
    sums = []
    for side, other in ((kept[0], kept[1]), (kept[1], kept[0])):
        sums.append(tuple([i for i, label in enumerate(side) if label not in other and label not in wanted]))
    a, b = [[k for i, k in enumerate(side) if i not in axes] for side, axes in zip(kept, sums, strict=True)]
    shared = [label for label in a if label in b]
    contracted = [label for label in shared if label not in wanted]
    batch = [label for label in shared if label in wanted]
    a_free = [label for label in a if label not in shared]
    b_free = [label for label in b if label not in shared]
    natural = (*batch, *a_free, *b_free)
    result = natural if out is None else out
    swap = result != natural and result == (*batch, *b_free, *a_free) and bool(contracted)
    if swap:
        a, b, natural = b, a, result
    index = {label: i for i, label in enumerate(result)}
    return Plan(
        (shapes[0], shapes[1]),
        (sums[0], sums[1]),
        not contracted,
        (tuple([a.index(k) for k in contracted]), tuple([b.index(k) for k in contracted])),
        (tuple([a.index(k) for k in batch]), tuple([b.index(k) for k in batch])),
        swap,
        tuple([natural.index(label) for label in result]),
        (tuple([index[k] for k in a if k in index]), tuple([index[k] for k in b if k in index])),
        tuple([sizes[label] for label in result]),
    )


def contract(x: Any, x_labels: Labels, y: Any, y_labels: Labels, out: Labels) -> Any:
    """The product of two operands of one dtype, summed over the labels that are not in `out`."""
    plan = make_plan(x.shape, x_labels, y.shape, y_labels, out)
    x = x if plan.shapes[0] is None else reshape(x, plan.shapes[0])
    y = y if plan.shapes[1] is None else reshape(y, plan.shapes[1])
    x, y = total(x, plan.sums[0]), total(y, plan.sums[1])
    if plan.product:
        return ufuncs.multiply(spread(x, plan.shape, plan.places[0]), spread(y, plan.shape, plan.places[1]))
    if plan.swap:
        x, y = y, x
    return transpose(_dot(x, y, plan.contract, plan.batch), plan.order)


def total(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`; for bool, *or*."""
    return x if not axes else reduce_any(x, axes) if x.dtype == BOOL else reduce_sum(x, axes)


def spread(x: Any, shape: Shape, places: tuple[int, ...]) -> Any:
    """`x` repeated to `shape`; its axis i becomes axis ``places[i]``."""
    order = tuple(np.argsort(places).tolist())
    return broadcast(transpose(x, order), shape, tuple([places[i] for i in order]))


def _operands(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    x, y = array(a, name), array(b, name)
    return promoted_dtype(name, x, y)


def _unfit(name: str, x: Any, i: int, y: Any, j: int) -> NoReturn:
    """Raise for axes of different lengths, with a product that would fit, if there is one."""
    of_x, of_y = describe(x), describe(y)
    left = (type(x) is Tracer and name_of(x)) or "x"
    right = (type(y) is Tracer and name_of(y)) or "y"
    hint = None
    if len(x.shape) == len(y.shape) == 2 and left != right:
        if x.shape[1] == y.shape[1]:
            hint = f"{left} @ {right}.T has shape ({x.shape[0]}, {y.shape[0]})"
        elif x.shape[0] == y.shape[0]:
            hint = f"{left}.T @ {right} has shape ({x.shape[1]}, {y.shape[1]})"
        elif x.shape[0] == y.shape[1]:
            hint = f"{right} @ {left} has shape ({y.shape[0]}, {x.shape[1]})"
    raise ShapeError(
        f"{name}: contracted axes differ: {x.shape[i]} (axis {i} of {of_x}) and {y.shape[j]} (axis {j} of {of_y})",
        hint=hint,
    )


# -- dot and matmul


@public(np.dot)
def dot(a: Any, b: Any, out: None = None) -> Any:
    """The dot product: over the last axis of `a` and the last but one (the only one) of `b`.

    The result has all other axes of `a`, then all other axes of `b`. With a scalar it is the product.

    Raises
    ------
    ShapeError
        The two axes have different lengths.
    """
    refuse_out("dot", out)
    x, y = _operands("dot", a, b)
    m, n = len(x.shape), len(y.shape)
    if m == 0 or n == 0:
        return ufuncs.multiply(x, y)
    j = n - 2 if n > 1 else 0
    if x.shape[-1] != y.shape[j]:
        _unfit("dot", x, m - 1, y, j)
    return _dot(x, y, ((m - 1,), (j,)))


def _dot(x: Any, y: Any, contract: dots.Pair, batch: dots.Pair = ((), ())) -> Any:
    """`ops.dot.dot` of operands that are known to fit."""
    return bind1(dots.dot_p, x, y, contract=contract, batch=batch)


@public(np.matmul)
def matmul(x1: Any, x2: Any, /, out: None = None) -> Any:
    """The matrix product ``x1 @ x2``; axes before the last two broadcast.

    A one-dimensional operand is a row on the left, a column on the right, and has no axis in the result.

    Raises
    ------
    ShapeError
        A scalar operand, or axes that do not fit.
    """
    refuse_out("matmul", out)
    x, y = _operands("matmul", x1, x2)
    m, n = len(x.shape), len(y.shape)
    if m == 0 or n == 0:
        raise ShapeError(f"matmul: not defined for scalars: {describe(x)} and {describe(y)}", hint="x * y")
    j = n - 2 if n > 1 else 0
    if x.shape[-1] != y.shape[j]:
        _unfit("matmul", x, m - 1, y, j)
    if m <= 2 and n <= 2:
        return _dot(x, y, ((m - 1,), (j,)))
    return _stacked("matmul", x, min(m, 2), y, min(n, 2), ("i", "k")[2 - min(m, 2) :], ("k", "j")[: min(n, 2)])


def _stacked(name: str, x: Any, x_core: int, y: Any, y_core: int, x_labels: Labels, y_labels: Labels) -> Any:
    """A product over the last axes of operands whose first axes broadcast."""
    p, q = len(x.shape) - x_core, len(y.shape) - y_core
    if common_shape(x.shape[:p], y.shape[:q]) is None:
        raise ShapeError(f"{name}: leading axes do not broadcast: {describe(x)} and {describe(y)}")
    stack = tuple(range(max(p, q)))
    kept = [label for label in ("i", "j") if label in x_labels or label in y_labels]
    return contract(x, (*stack[len(stack) - p :], *x_labels), y, (*stack[len(stack) - q :], *y_labels), (*stack, *kept))


def _core_product(name: str, a: Any, b: Any, x_labels: Labels, y_labels: Labels, out: Any) -> Any:
    refuse_out(name, out)
    x, y = _operands(name, a, b)
    for operand, labels in ((x, x_labels), (y, y_labels)):
        if len(operand.shape) < len(labels):
            raise ShapeError(f"{name}: {describe(operand)} has fewer than {len(labels)} axes")
    i = len(x.shape) - len(x_labels) + x_labels.index("k")
    j = len(y.shape) - len(y_labels) + y_labels.index("k")
    if x.shape[i] != y.shape[j]:
        _unfit(name, x, i, y, j)
    return _stacked(name, x, len(x_labels), y, len(y_labels), x_labels, y_labels)


@public(getattr(np, "matvec", None))
def matvec(x1: Any, x2: Any, /, out: None = None) -> Any:
    """Matrices times vectors: over the last axes; axes before broadcast."""
    return _core_product("matvec", x1, x2, ("i", "k"), ("k",), out)


@public(getattr(np, "vecmat", None))
def vecmat(x1: Any, x2: Any, /, out: None = None) -> Any:
    """Vectors (conjugated) times matrices: over the last axis of `x1`, the last but one of `x2`."""
    return _core_product("vecmat", conjugated(x1), x2, ("k",), ("k", "j"), out)


@public(getattr(np, "vecdot", None))
def vecdot(x1: Any, x2: Any, /, out: None = None, *, axis: int = -1) -> Any:
    """Dot products of vectors along `axis`, `x1` conjugated; other axes broadcast."""
    x, y = conjugated(x1), array(x2, "vecdot")
    if type(axis) is not int or axis != -1:
        x, y = [_last("vecdot", v, axis) for v in (x, y)]
    return _core_product("vecdot", x, y, ("k",), ("k",), out)


def _last(name: str, x: Any, axis: int) -> Any:
    at = normalize_axis(name, axis, len(x.shape))
    return transpose(x, (*[i for i in range(len(x.shape)) if i != at], at))


def conjugated(a: Any) -> Any:
    """The complex conjugate; real arrays as they are."""
    x = array(a, "conjugate")
    return selection.conjugate(x) if x.dtype.kind == "c" else x


# -- other products of two


@public(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    """The sum of products over the last axes; with a scalar it is the product."""
    x, y = _operands("inner", a, b)
    m, n = len(x.shape), len(y.shape)
    if m == 0 or n == 0:
        return ufuncs.multiply(x, y)
    if x.shape[-1] != y.shape[-1]:
        _unfit("inner", x, m - 1, y, n - 1)
    return _dot(x, y, ((m - 1,), (n - 1,)))


@public(np.outer)
def outer(a: Any, b: Any, out: None = None) -> Any:
    """All products of an element of `a` with one of `b`: shape (a.size, b.size)."""
    refuse_out("outer", out)
    x, y = _operands("outer", a, b)
    m, n = prod(x.shape), prod(y.shape)
    return _all_pairs(reshape(x, (m,)), reshape(y, (n,)))


def _all_pairs(x: Any, y: Any) -> Any:
    """Every element of `x` times every one of `y`: the axes of both, one after the other."""
    p, q = len(x.shape), len(y.shape)
    shape = x.shape + y.shape
    return ufuncs.multiply(broadcast(x, shape, tuple(range(p))), broadcast(y, shape, tuple(range(p, p + q))))


@public(np.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    """The dot product of all elements, those of `a` conjugated."""
    x, y = _operands("vdot", conjugated(a), b)
    m, n = prod(x.shape), prod(y.shape)
    if m != n:
        raise ShapeError(f"vdot: different numbers of elements: {m} ({describe(x)}) and {n} ({describe(y)})")
    return _dot(reshape(x, (m,)), reshape(y, (n,)), ((0,), (0,)))


@public(np.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """The sum of products over pairs of axes.

    Parameters
    ----------
    axes
        A number n: the last n axes of `a` with the first n of `b`. Or a pair of an axis or a sequence of axes each.
    """
    x, y = _operands("tensordot", a, b)
    m, n = len(x.shape), len(y.shape)
    if isinstance(axes, tuple | list):
        if len(axes) != 2:
            raise ParameterError(f"tensordot: a pair of axes is needed, got {printed(axes)}")
        in_x, in_y = [tuple(g) if isinstance(g, tuple | list) else (g,) for g in axes]
    else:
        axes = integer("tensordot", "axes", axes)
        if not 0 <= axes <= min(m, n):
            raise ShapeError(f"tensordot: axes={axes} for {describe(x)} and {describe(y)}")
        in_x, in_y = tuple(range(m - axes, m)), tuple(range(axes))
    if len(in_x) != len(in_y):
        raise ShapeError(f"tensordot: {len(in_x)} axes of x and {len(in_y)} axes of y do not pair up")
    in_x = tuple([normalize_axis("tensordot", i, m) for i in in_x])
    in_y = tuple([normalize_axis("tensordot", j, n) for j in in_y])
    for i, j in zip(in_x, in_y, strict=True):
        if x.shape[i] != y.shape[j]:
            _unfit("tensordot", x, i, y, j)
    if not in_x:
        return _all_pairs(x, y)
    return _dot(x, y, (in_x, in_y))


@public(np.kron)
def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: every element of `a` times all of `b`, as blocks."""
    x, y = _operands("kron", a, b)
    rank = max(len(x.shape), len(y.shape))
    x_shape = (1,) * (rank - len(x.shape)) + x.shape
    y_shape = (1,) * (rank - len(y.shape)) + y.shape
    x = reshape(x, tuple([n for m in x_shape for n in (m, 1)]))
    y = reshape(y, tuple([n for m in y_shape for n in (1, m)]))
    blocks = ufuncs.multiply(x, y)
    return reshape(blocks, tuple([m * n for m, n in zip(x_shape, y_shape, strict=True)]))


@public(np.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The cross product of vectors with three components, which lie along `axis` (or `axisa`, `axisb`, `axisc`)."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = _operands("cross", a, b)
    x, y = _last("cross", x, axisa), _last("cross", y, axisb)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(f"cross: vectors need three components, got {x.shape[-1]} and {y.shape[-1]}")
    stack = common_shape(x.shape[:-1], y.shape[:-1])
    if stack is None:
        raise ShapeError(f"cross: shapes do not broadcast: {describe(x)} and {describe(y)}")
    x, y = broadcast_to(x, (*stack, 3)), broadcast_to(y, (*stack, 3))
    x1, x2 = _turned(x, 1), _turned(x, 2)
    y1, y2 = _turned(y, 1), _turned(y, 2)
    z = ufuncs.subtract(ufuncs.multiply(x1, y2), ufuncs.multiply(x2, y1))
    to = normalize_axis("cross", axisc, len(stack) + 1)
    order = list(range(len(stack)))
    order.insert(to, len(stack))
    return transpose(z, tuple(order))


def _turned(x: Any, by: int) -> Any:
    """Components (0, 1, 2) in the order (by, by + 1, by + 2) modulo 3."""
    rank, zeros, ones = len(x.shape), (0,) * (len(x.shape) - 1), (1,) * len(x.shape)
    head, tail = (*zeros, by), (*x.shape[:-1], 3)
    parts = [slice_(x, head, tail, ones), slice_(x, (0,) * rank, (*x.shape[:-1], by), ones)]
    return concatenate(parts, rank - 1)
