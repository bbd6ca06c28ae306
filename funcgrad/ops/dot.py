"""The general dot product: every product of arrays that is a sum over shared axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.primitive import Linear, Traits
from funcgrad.core.trace import bind1, describe
from funcgrad.ops.broadcasting import transpose
from funcgrad.ops.op import Domain, Op, Operand, aval_of

Axes = tuple[int, ...]
Pair = tuple[Axes, Axes]


def dot(x: Operand, y: Operand, contract: Pair, batch: Pair = ((), ())) -> Any:
    """The sum of products over pairs of axes.

    ``z[b, i, j] = sum over k of x[b, i, k] y[b, k, j]``, where each of b, i, j, k stands for any number of
    axes, which may lie anywhere in the operands.

    Parameters
    ----------
    x, y
        Arrays of one dtype.
    contract
        Axes of `x` and axes of `y`, pair by pair of one length: summed over (k).
    batch
        Axes of `x` and axes of `y`, pair by pair of one length: kept, one for both (b).

    Returns
    -------
    Array with the batch axes, then the other axes of `x`, then the other axes of `y`, each in their order.

    Notes
    -----
    One matrix product of the BLAS (floating, complex) or NumPy's (integers wrap; bool: *or* of *and*).
    Products inside it are not guarded: a structural zero times inf gives NaN here.
    """
    _require_fit(aval_of(x), aval_of(y), contract, batch, lambda: (describe(x), describe(y)))
    return bind1(dot_p, x, y, contract=contract, batch=batch)


def free(ndim: int, *taken: Axes) -> Axes:
    """The axes in none of `taken`, in order."""
    return tuple([i for i in range(ndim) if all(i not in t for t in taken)])


def _require_fit(x: Aval, y: Aval, contract: Pair, batch: Pair, names: Callable[[], tuple[str, str]]) -> None:
    for what, (in_x, in_y) in (("contracted", contract), ("batch", batch)):
        for i, j in zip(in_x, in_y, strict=True):
            if x.shape[i] != y.shape[j]:
                of_x, of_y = names()
                sides = f"{x.shape[i]} (axis {i} of {of_x}) and {y.shape[j]} (axis {j} of {of_y})"
                raise ShapeError(f"dot: {what} axes differ: {sides}")
    if x.dtype != y.dtype:
        of_x, of_y = names()
        raise DtypeError(f"dot: operands have different dtypes: {of_x} and {of_y}")


def _abstract(x: Aval, y: Aval, *, contract: Pair, batch: Pair) -> tuple[Aval]:
    _require_fit(x, y, contract, batch, lambda: (str(x), str(y)))
    shape = (
        *[x.shape[i] for i in batch[0]],
        *[x.shape[i] for i in free(x.ndim, contract[0], batch[0])],
        *[y.shape[i] for i in free(y.ndim, contract[1], batch[1])],
    )
    return (make_aval(shape, x.dtype),)


@lru_cache(maxsize=4096)
def _orders(x_ndim: int, y_ndim: int, contract: Pair, batch: Pair) -> tuple[Axes | None, Axes | None, int, int]:
    """Axes of x as (b, i, k) and of y as (b, k, j), None where they are so already, and how many i and j there are."""
    x_free, y_free = free(x_ndim, contract[0], batch[0]), free(y_ndim, contract[1], batch[1])
    # the summed axes in the order in which they lie in x, so that as few as possible have to be copied
    pairs = sorted(zip(*contract, strict=True))
    left = (*batch[0], *x_free, *[i for i, _ in pairs])
    right = (*batch[1], *[j for _, j in pairs], *y_free)
    return (
        None if left == tuple(range(x_ndim)) else left,
        None if right == tuple(range(y_ndim)) else right,
        len(x_free),
        len(y_free),
    )


def _evaluate(x: Any, y: Any, *, contract: Pair, batch: Pair) -> tuple[Any]:
    left, right, i, j = _orders(x.ndim, y.ndim, contract, batch)
    x = x if left is None else np.transpose(x, left)
    y = y if right is None else np.transpose(y, right)
    b, k = len(batch[0]), len(contract[0])
    if not k:
        return (x.reshape((*x.shape, *(1,) * j)) * y.reshape((*y.shape[:b], *(1,) * i, *y.shape[b:])),)
    shape = x.shape[: b + i] + y.shape[b + k :]
    z = np.matmul(_matrix(x, b, i, k), _matrix(y, b, k, j))
    return (z if z.shape == shape else z.reshape(shape),)


def _matrix(x: Any, batch: int, rows: int, columns: int) -> Any:
    """`x` as matrices: a view where its layout allows it; the BLAS takes transposed ones as they are."""
    if rows != 1 or columns != 1:
        at = batch + rows
        x = x.reshape(*x.shape[:batch], prod(x.shape[batch:at]), prod(x.shape[at:]))
    return np.ascontiguousarray(x) if min(x.strides[-2:]) <= 0 else x


def _transpose(cts: Any, x: Any, y: Any, *, contract: Pair, batch: Pair) -> Any:
    if isinstance(x, Linear):
        return _transpose_one(cts[0], x.aval, y, contract, batch, first=True), None
    return None, _transpose_one(cts[0], y.aval, x, contract[::-1], batch[::-1], first=False)


def _transpose_one(ct: Any, x: Aval, y: Any, contract: Pair, batch: Pair, *, first: bool) -> Any:
    """The cotangent of the operand of type `x`, which came `first` or second; the pairs of axes list it first.

    z = sum over k of x[b, i, k] y[b, k, j], so x_bar[b, i, k] = sum over j of z_bar[b, i, j] y[b, k, j].
    """
    x_free, y_free = free(x.ndim, contract[0], batch[0]), free(aval_of(y).ndim, contract[1], batch[1])
    b = len(batch[0])
    shared = tuple(range(b))
    at = b + len(x_free) if first else b  # where the free axes of y are in z
    ct_y = tuple(range(at, at + len(y_free)))
    summed = [i for _, i in sorted(zip(contract[1], contract[0], strict=True))]  # axes k of x as they lie in y
    if summed and x_free and min(summed) < min(x_free):  # x is stored as (k, i): that order needs no transposition
        out = dot(y, ct, (y_free, ct_y), (batch[1], shared))
        axes = (*batch[0], *summed, *x_free)
    else:
        out = dot(ct, y, (ct_y, y_free), (shared, batch[1]))
        axes = (*batch[0], *x_free, *summed)
    return transpose(out, tuple(np.argsort(axes).tolist()))


def _batch_rule(size: int, args: Any, dims: Any, *, contract: Pair, batch: Pair) -> Any:
    moved = [tuple([_past(group[side], d) for group in (contract, batch)]) for side, d in enumerate(dims)]
    (x_contract, x_batch), (y_contract, y_batch) = moved
    dx, dy = dims
    if dx is not None and dy is not None:
        x_batch, y_batch, to = (dx, *x_batch), (dy, *y_batch), 0
    elif dx is not None:  # a free axis more: one larger product
        to = len(x_batch) + free(aval_of(args[0]).ndim, x_contract, x_batch).index(dx)
    else:
        x_free = free(aval_of(args[0]).ndim, x_contract, x_batch)
        to = len(x_batch) + len(x_free) + free(aval_of(args[1]).ndim, y_contract, y_batch).index(dy)
    return (dot(*args, (x_contract, y_contract), (x_batch, y_batch)),), (to,)


def _past(axes: Axes, d: int | None) -> Axes:
    return axes if d is None else tuple([a + (a >= d) for a in axes])


dot_p = Op(dot, Traits(kind="dot"), domain=Domain(smooth="bilinear"))
dot_p.hidden_params = {"batch": ((), ())}
dot_p.abstract = _abstract
dot_p.evaluate = _evaluate
dot_p.batch = _batch_rule
dot_p.def_jvp(
    lambda x_dot, z, x, y, *, contract, batch: dot(x_dot, y, contract, batch),  # d(x y) = dx y + x dy
    lambda y_dot, z, x, y, *, contract, batch: dot(x, y_dot, contract, batch),
)
dot_p.transpose = _transpose
