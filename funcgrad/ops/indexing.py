"""Indexing by arrays: gather and the scatters.

Every op here is total: it takes positions that went through `positions.check_index`, or through the arithmetic of
another mode, so derivatives, which use the same positions again, never check again.

k index arrays of one shape S (int64) belong to the first k axes of an operand; the front end moves those there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT
from funcgrad.base.errors import ShapeError
from funcgrad.core.ir import Aval, Shape, make_aval
from funcgrad.core.primitive import Linear, Traits
from funcgrad.core.trace import bind1
from funcgrad.ops.arithmetic import add, add_p, div, mul, mul_p, select
from funcgrad.ops.broadcasting import align, reshape
from funcgrad.ops.comparison import eq
from funcgrad.ops.cumulative import attains, extend, linear_recurrence, previous, section
from funcgrad.ops.extrema import maximum_p, minimum_p
from funcgrad.ops.movement import convert, iota
from funcgrad.ops.op import ALL, LINEAR, ORDERED, SMOOTH, Domain, Op, Operand, aval_of, constant, full_like, zeros_of
from funcgrad.ops.positions import (
    checked_positions,
    repeated,
    require_indices,
    require_mode,
    rows_first,
    within,
)

# -- gather


def gather(
    x: Operand,
    *indices: Operand,
    mode: str = "raise",
    fill_value: Any = None,
    axes: Sequence[int] | None = None,
) -> Any:
    """The elements (or subarrays) of `x` at positions given by index arrays: ``x[i, j, ...]``.

    Parameters
    ----------
    x
        Array of shape ``(n1, ..., nk, *rest)``.
    indices
        k arrays of one shape S, int64; the j-th holds positions along axis j.
    mode
        ``"raise"``: a position outside raises; negative ones count from the end. ``"clip"``: the nearest
        position inside, ``"wrap"``: the position modulo the length. ``"fill"``: negative ones count from the
        end, and where a position is outside the result is `fill_value`.
    fill_value
        A scalar. Default: NaN; the least of signed integers, the greatest of unsigned ones; False.
    axes
        The user's numbers of the indexed axes, for messages.

    Returns
    -------
    Array of shape ``(*S, *rest)``.

    Raises
    ------
    OutOfBoundsError
        In mode ``"raise"``; also where an axis has no elements, except in mode ``"fill"``.

    Notes
    -----
    Linear in `x`; its transpose is `scatter_add`. What was filled in has derivative zero.
    """
    require_mode("gather", mode, ("raise", "clip", "wrap", "fill"))
    require_indices("gather", aval_of(x), [aval_of(i) for i in indices])
    positions = checked_positions("gather", x, indices, mode, axes)
    if mode != "fill":
        return bind1(gather_p, x, *positions)
    return _gather_or(x, positions, _fill_value(aval_of(x)) if fill_value is None else fill_value)


def _fill_value(x: Aval) -> Any:
    if x.dtype.kind in "fc":
        return x.dtype.type(np.nan)
    if x.dtype.kind == "b":
        return np.False_
    info = np.iinfo(x.dtype)
    return x.dtype.type(info.min if x.dtype.kind == "i" else info.max)


def _gather_or(x: Any, positions: Sequence[Any], fill: Any) -> Any:
    """The elements at positions inside, `fill` elsewhere."""
    a, k = aval_of(x), len(positions)
    shape = (*aval_of(positions[0]).shape, *a.shape[k:])
    if 0 in a.shape[:k]:
        return constant(fill, make_aval(shape, a.dtype))
    taken = bind1(gather_p, x, *positions)
    return select(repeated(within(positions, a.shape[:k]), shape), taken, full_like(taken, fill))


def _gather_abstract(x: Aval, *indices: Aval) -> tuple[Aval]:
    k = len(indices)
    require_indices("gather", x, indices)
    if 0 in x.shape[:k] and indices[0].size:
        raise ShapeError(f"gather: {x} has no elements along an indexed axis")
    return (make_aval((*indices[0].shape, *x.shape[k:]), x.dtype),)


def _gather_evaluate(x: Any, *indices: Any) -> tuple[Any]:
    if len(indices) == 1 and x.flags.c_contiguous:
        return (
            (np.take(x, indices[0], 0, mode="clip"),)
            if len(x)
            else (np.empty((*indices[0].shape, *x.shape[1:]), x.dtype),)
        )
    return (x[tuple([_inside(i, n) for i, n in zip(indices, x.shape, strict=False)])],)


def _inside(index: Any, n: int) -> Any:
    if index.size == 0 or (index.min() >= 0 and index.max() < n):
        return index
    return np.clip(index, 0, n - 1)


def _gather_batch(size: int, args: Any, dims: Any) -> Any:
    x, *indices = args
    d, *index_dims = dims
    if all(i is None for i in index_dims):
        x = align(x, d, len(indices), size)  # the rows are the first of the axes that are taken whole
        return (bind1(gather_p, x, *indices),), (aval_of(indices[0]).ndim,)
    if d is None:
        return (bind1(gather_p, x, *rows_first(size, indices, index_dims)[1:]),), (0,)
    return (bind1(gather_p, align(x, d, 0, size), *rows_first(size, indices, index_dims)),), (0,)


def _gather_transpose(cts: Any, x: Linear, *indices: Any) -> Any:
    x_bar = bind1(scatter_add_p, zeros_of(x.aval), cts[0], *indices, mode="clip")
    return x_bar, *[None] * len(indices)


gather_p = Op(gather, Traits(exact=True, kind="gather"), domain=LINEAR)
gather_p.abstract = _gather_abstract
gather_p.evaluate = _gather_evaluate
gather_p.batch = _gather_batch
gather_p.def_linear()
gather_p.transpose = _gather_transpose

# -- what the scatters share


def _bind_scatter(op: Op, x: Any, updates: Any, indices: Sequence[Any], mode: str, axes: Sequence[int] | None) -> Any:
    require_mode(op.name, mode, ("raise", "clip", "drop"))
    require_indices(op.name, aval_of(x), [aval_of(i) for i in indices])
    positions = checked_positions(op.name, x, indices, mode, axes)
    _scatter_abstract(op.name, aval_of(x), aval_of(updates), *map(aval_of, positions))
    return bind1(op, x, updates, *positions, mode="drop" if mode == "drop" else "clip")


def _scatter_abstract(name: str, x: Aval, updates: Aval, *indices: Aval) -> tuple[Aval]:
    require_indices(name, x, indices)
    shape = (*indices[0].shape, *x.shape[len(indices) :])
    if updates.shape != shape or updates.dtype != x.dtype:
        raise ShapeError(f"{name}: updates are {updates}, not {make_aval(shape, x.dtype)}")
    return (make_aval(x.shape, x.dtype),)


def _places(indices: Sequence[Any], lengths: Shape, mode: str) -> tuple[Any, Any]:
    """Numbers of the subarrays, counted in C order of the indexed axes, and which are inside (None: all)."""
    flat: Any = 0
    outside: Any = None
    for index, n in zip(indices, lengths, strict=True):
        inside = _inside(index, n)
        if inside is not index and mode == "drop":
            missed = inside != index
            outside = missed if outside is None else outside | missed
        flat = flat * n + inside
    return np.reshape(flat, -1), None if outside is None else ~np.reshape(outside, -1)


def _scatter_evaluate(ufunc: np.ufunc | None) -> Callable[..., Any]:
    def evaluate(x: Any, updates: Any, *indices: Any, mode: str) -> tuple[Any]:
        k = len(indices)
        out = np.array(x, order="C", copy=True, subok=False)
        rest = prod(x.shape[k:])
        if updates.size == 0 or out.size == 0:
            return (out,)
        places, inside = _places(indices, x.shape[:k], mode)
        values = np.reshape(updates, (len(places), rest))
        if inside is not None:
            places, values = places[inside], values[inside]
        if ufunc is None:
            out.reshape(-1, rest)[places] = values
        else:  # in one dimension ufunc.at is fast
            if rest > 1:
                places = (places[:, None] * rest + np.arange(rest)).reshape(-1)
            ufunc.at(out.reshape(-1), places, values.reshape(-1))
        return (out,)

    return evaluate


def _scatter_batch(op: Op) -> Callable[..., Any]:
    def batch(size: int, args: Any, dims: Any, *, mode: str) -> Any:
        x, updates, *indices = args
        d, e, *index_dims = dims
        if all(i is None for i in index_dims):
            k, s = len(indices), aval_of(indices[0]).ndim
            x, updates = align(x, d, k, size), align(updates, e, s, size)
            return (bind1(op, x, updates, *indices, mode=mode),), (k,)
        x, updates = align(x, d, 0, size), align(updates, e, 0, size)
        return (bind1(op, x, updates, *rows_first(size, indices, index_dims), mode=mode),), (0,)

    return batch


def _scatter(function: Callable[..., Any], ufunc: np.ufunc | None, traits: Traits, dtypes: str, domain: Domain) -> Op:
    """A scatter: everything but its derivative."""
    op = Op(function, traits, dtypes=dtypes, domain=domain)
    op.hidden_params = {"mode": "clip"}
    op.abstract = lambda *avals, mode: _scatter_abstract(op.name, *avals)
    op.evaluate = _scatter_evaluate(ufunc)
    op.batch = _scatter_batch(op)
    return op


def _taken(ct: Any, indices: Sequence[Any], mode: str) -> Any:
    """The transpose of a scatter in its updates: what was dropped gets zero."""
    return _gather_or(ct, indices, 0) if mode == "drop" else bind1(gather_p, ct, *indices)


# -- scatter


def scatter(
    x: Operand, updates: Operand, *indices: Operand, mode: str = "raise", axes: Sequence[int] | None = None
) -> Any:
    """A copy of `x` with the elements (or subarrays) at positions replaced: ``x[i, j, ...] = updates``.

    Parameters
    ----------
    x
        Array of shape ``(n1, ..., nk, *rest)``.
    updates
        Array of shape ``(*S, *rest)`` and the dtype of `x`.
    indices
        k arrays of one shape S, int64; the j-th holds positions along axis j.
    mode
        ``"raise"``: a position outside raises; negative ones count from the end. ``"clip"``: the nearest
        position inside. ``"drop"``: negative ones count from the end, and what is outside is left out.
    axes
        The user's numbers of the indexed axes, for messages.

    Raises
    ------
    OutOfBoundsError
        In mode ``"raise"``; also where an axis has no elements, except in mode ``"drop"``.

    Notes
    -----
    Where positions repeat the last one in C order wins, as in NumPy, and the derivative is that of the winner
    alone. Linear in `x` and `updates` together.
    """
    return _bind_scatter(scatter_p, x, updates, indices, mode, axes)


def _scatter_transpose(cts: Any, x: Any, updates: Any, *indices: Any, mode: str) -> Any:
    ct = cts[0]
    x_bar = updates_bar = None
    u = updates.aval if isinstance(updates, Linear) else aval_of(updates)
    if isinstance(x, Linear):
        x_bar = bind1(scatter_p, ct, zeros_of(u), *indices, mode=mode)
    if isinstance(updates, Linear):
        updates_bar = _taken(ct, indices, mode)
        wins = _winners(indices, aval_of(ct).shape, mode)
        if wins is not None:
            updates_bar = select(repeated(wins, u.shape), updates_bar, full_like(updates_bar, 0))
    return x_bar, updates_bar, *[None] * len(indices)


def _winners(indices: Sequence[Any], shape: Shape, mode: str) -> Any:
    """Which updates are the last ones at their place; None where there is only one."""
    s = aval_of(indices[0])
    if s.size <= 1:
        return None
    number = reshape(iota((s.size,), INT, 0), s.shape)
    owner = constant(-1, make_aval(shape[: len(indices)], INT))
    return eq(_taken(bind1(scatter_p, owner, number, *indices, mode=mode), indices, mode), number)


scatter_p = _scatter(scatter, None, Traits(exact=True, zero="source", kind="scatter"), ALL, LINEAR)
scatter_p.def_linear(0, 1)
scatter_p.transpose = _scatter_transpose

# -- scatter_add


def scatter_add(
    x: Operand, updates: Operand, *indices: Operand, mode: str = "raise", axes: Sequence[int] | None = None
) -> Any:
    """A copy of `x` with `updates` added at positions: ``np.add.at(x, (i, j, ...), updates)``.

    Parameters are those of `scatter`. Linear in `x` and `updates` together; its transpose is `gather`.
    """
    return _bind_scatter(scatter_add_p, x, updates, indices, mode, axes)


def _scatter_add_transpose(cts: Any, x: Any, updates: Any, *indices: Any, mode: str) -> Any:
    ct = cts[0]
    x_bar = ct if isinstance(x, Linear) else None
    updates_bar = _taken(ct, indices, mode) if isinstance(updates, Linear) else None
    return x_bar, updates_bar, *[None] * len(indices)


scatter_add_p = _scatter(scatter_add, np.add, Traits(zero="source", kind="scatter"), ALL, LINEAR)
scatter_add_p.def_linear(0, 1)
scatter_add_p.combine = add_p
scatter_add_p.transpose = _scatter_add_transpose
scatter_add_p.add_onto = lambda total, *operands, mode: bind1(scatter_add_p, total, *operands, mode=mode)

# -- scatter_mul


def scatter_mul(
    x: Operand, updates: Operand, *indices: Operand, mode: str = "raise", axes: Sequence[int] | None = None
) -> Any:
    """A copy of `x` multiplied by `updates` at positions: ``np.multiply.at(x, (i, j, ...), updates)``.

    Parameters are those of `scatter`.

    Notes
    -----
    Derivatives are exact where elements or updates are zero, to every order: the derivative for one update is
    the product of all other factors at its place. It costs a sort of the positions.
    """
    return _bind_scatter(scatter_mul_p, x, updates, indices, mode, axes)


def _scatter_mul_jvp(primal: Any, primals: Any, tangents: Any, *, mode: str) -> Any:
    x, u, *indices = primals
    x_dot, u_dot, *_ = tangents
    total = None
    if x_dot is not None:
        total = mul(x_dot, bind1(scatter_mul_p, full_like(x, 1), u, *indices, mode=mode))
    if u_dot is not None:
        a, k, m = aval_of(x), len(indices), aval_of(indices[0]).size
        n, rest = prod(a.shape[:k]), prod(a.shape[k:])
        if n and m and rest:
            place = _place_numbers(indices, a.shape[:k], mode)
            term = _one_by_one(reshape(x, (n, rest)), reshape(u, (m, rest)), reshape(u_dot, (m, rest)), place)
            term = reshape(term, a.shape)
            total = term if total is None else add(total, term)
    return primal(), (total,)


def _place_numbers(indices: Sequence[Any], lengths: Shape, mode: str) -> Any:
    """`_places` as an operation, of shape (m,); a dropped one has the number after the last."""
    flat: Any = None
    for index, n in zip(indices, lengths, strict=True):
        flat = index if flat is None else add(mul(flat, n), index)
    if mode == "drop":
        flat = select(within(indices, lengths), flat, prod(lengths))
    return reshape(flat, (aval_of(flat).size,))


def _one_by_one(x: Any, u: Any, u_dot: Any, place: Any) -> Any:
    """The sum over updates of their tangent times all other factors at their place; rows are places."""
    m = aval_of(place).size
    factor = None
    if m > 1:  # bring the updates of one place together, and multiply those before and those after each
        order = bind1(stable_order_p, place)
        place, u, u_dot = (bind1(gather_p, v, order) for v in (place, u, u_dot))
        same = eq(section(place, 0, 1, m), section(place, 0, 0, m - 1))
        for way in (False, True):
            keep = repeated(extend(same, 0, False, 0 if way else 1, 1 if way else 0), aval_of(u).shape)
            start = select(keep, zeros_of(u), full_like(u, 1))
            side = linear_recurrence(previous(u, 0, way, 1), start, keep, 0, way)
            factor = side if factor is None else mul(factor, side)
    others = _gather_or(x, (place,), 0)
    term = mul(u_dot, others if factor is None else mul(others, factor))
    return bind1(scatter_add_p, zeros_of(x), term, place, mode="drop")


scatter_mul_p = _scatter(scatter_mul, np.multiply, Traits(kind="scatter"), ALL, SMOOTH)
scatter_mul_p.combine = mul_p
scatter_mul_p.jvp = _scatter_mul_jvp
scatter_mul_p.decline("transpose", "it is not linear")


def stable_order(keys: Operand) -> Any:
    """The positions that sort numbers along the last axis, equal ones in order, NaN last, as int64."""
    return bind1(stable_order_p, keys)


def _order_batch(size: int, args: Any, dims: Any) -> Any:
    return (bind1(stable_order_p, align(args[0], dims[0], 0, size)),), (0,)


stable_order_p = Op(stable_order, Traits(exact=True, kind="sort"), dtypes=ORDERED)
stable_order_p.abstract = lambda keys: (make_aval(keys.shape, INT),)
stable_order_p.evaluate = lambda keys: (np.argsort(keys, -1, kind="stable"),)
stable_order_p.batch = _order_batch
stable_order_p.def_no_derivative("its result is an integer")
stable_order_p.decline("transpose", "its result is an integer")


def in_order(x: Operand) -> Any:
    """Each line along the last axis in the order of `stable_order`."""
    order = stable_order(x)
    shape = aval_of(order).shape
    lines = [iota(shape, INT, k) for k in range(len(shape) - 1)]
    return bind1(gather_p, x, *lines, order)  # at positions that are inside


# -- scatter_min and scatter_max


def scatter_min(
    x: Operand, updates: Operand, *indices: Operand, mode: str = "raise", axes: Sequence[int] | None = None
) -> Any:
    """A copy of `x` with the minimum of itself and all `updates` at positions: ``np.minimum.at(...)``.

    Parameters are those of `scatter`.

    Notes
    -----
    All that tie for the minimum at a place, `x` itself included, share its derivative evenly; so do NaNs.
    """
    return _bind_scatter(scatter_min_p, x, updates, indices, mode, axes)


def scatter_max(
    x: Operand, updates: Operand, *indices: Operand, mode: str = "raise", axes: Sequence[int] | None = None
) -> Any:
    """A copy of `x` with the maximum of itself and all `updates` at positions: ``np.maximum.at(...)``.

    Parameters are those of `scatter`.

    Notes
    -----
    All that tie for the maximum at a place, `x` itself included, share its derivative evenly; so do NaNs.
    """
    return _bind_scatter(scatter_max_p, x, updates, indices, mode, axes)


def _extreme_jvp(primal: Any, primals: Any, tangents: Any, *, mode: str) -> Any:
    # the mean of the tangents of all that attain the extreme at a place
    outs = primal()
    x, u, *indices = primals
    x_dot, u_dot, *_ = tangents
    x_hit, u_hit = attains(x, outs[0]), attains(u, _taken(outs[0], indices, mode))

    def added(a: Any, b: Any) -> Any:
        return bind1(scatter_add_p, a, b, *indices, mode=mode)

    dtype = aval_of(x).dtype
    count = added(convert(x_hit, dtype), convert(u_hit, dtype))
    x_part = zeros_of(x) if x_dot is None else select(x_hit, x_dot, zeros_of(x))
    u_part = zeros_of(u) if u_dot is None else select(u_hit, u_dot, zeros_of(u))
    return outs, (div(added(x_part, u_part), count),)


_TIES = Domain(smooth="its kinks are ties of two elements")
scatter_min_p = _scatter(scatter_min, np.minimum, Traits(exact=True, kind="scatter"), ALL, _TIES)
scatter_min_p.combine = minimum_p
scatter_min_p.jvp = _extreme_jvp
scatter_min_p.decline("transpose", "it is not linear")

scatter_max_p = _scatter(scatter_max, np.maximum, Traits(exact=True, kind="scatter"), ALL, _TIES)
scatter_max_p.combine = maximum_p
scatter_max_p.jvp = _extreme_jvp
scatter_max_p.decline("transpose", "it is not linear")
