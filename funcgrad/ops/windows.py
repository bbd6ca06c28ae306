"""Windows of static size at traced positions: dynamic_slice and dynamic_update_slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.ir import Aval, Shape, make_aval
from funcgrad.core.primitive import Linear, Traits
from funcgrad.core.trace import bind1, describe
from funcgrad.ops.arithmetic import add
from funcgrad.ops.broadcasting import align, broadcast, transpose
from funcgrad.ops.indexing import gather_p, scatter_p
from funcgrad.ops.movement import iota
from funcgrad.ops.op import LINEAR, Op, Operand, aval_of, constant, zeros_of
from funcgrad.ops.positions import (
    check_index,
    clamped,
    from_end,
    require_mode,
)

# -- dynamic_slice and dynamic_update_slice


def dynamic_slice(x: Operand, *starts: Operand, sizes: Shape, mode: str = "raise") -> Any:
    """The window of `x` of shape `sizes` that begins at `starts`.

    Parameters
    ----------
    x
        Array of n axes.
    starts
        n int64 scalars; negative ones count from the end.
    sizes
        Lengths of the window, static; at most those of `x`.
    mode
        ``"raise"``: a window that does not fit raises. ``"clip"``: it is moved until it fits.

    Raises
    ------
    OutOfBoundsError
        In mode ``"raise"``, where the window does not fit.

    Notes
    -----
    Linear in `x`; its transpose is `dynamic_update_slice` of zeros.
    """
    return bind1(dynamic_slice_p, x, *_window("dynamic_slice", x, starts, sizes, mode), sizes=sizes)


def _window(name: str, x: Any, starts: Sequence[Any], sizes: Shape, mode: str) -> list[Any]:
    require_mode(name, mode, ("raise", "clip"))
    a = aval_of(x)
    _require_window(name, a, [aval_of(s) for s in starts], sizes)
    if mode == "raise":
        return [check_index(s, i, a.shape[i], sizes[i], of=describe(x)) for i, s in enumerate(starts)]
    return [from_end(s, n) for s, n in zip(starts, a.shape, strict=True)]


def _require_window(name: str, x: Aval, starts: Sequence[Aval], sizes: Shape) -> None:
    if len(starts) != x.ndim or len(sizes) != x.ndim:
        raise ShapeError(f"{name}: {len(starts)} starts and {len(sizes)} sizes for {x}")
    for s in starts:
        if s.shape != () or s.dtype != INT:
            raise ShapeError(f"{name}: a start has type {s}, not i64[]")
    if any(not 0 <= size <= n for size, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(f"{name}: a window of shape {sizes} is larger than {x}")


def _dynamic_slice_abstract(x: Aval, *starts: Aval, sizes: Shape) -> tuple[Aval]:
    _require_window("dynamic_slice", x, starts, sizes)
    return (make_aval(sizes, x.dtype),)


def _slices(shape: Shape, starts: Sequence[Any], sizes: Shape) -> tuple[slice, ...]:
    first = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    return tuple([slice(s, s + k) for s, k in zip(first, sizes, strict=True)])


def _moving(x: Any, starts: Sequence[Any], sizes: Shape) -> tuple[tuple[int, ...], list[Any]]:
    """For windows that differ from row to row: the axes where they move, and index arrays (row, *window)."""
    shape = aval_of(x).shape[1:]
    axes = tuple([i for i, n in enumerate(shape) if sizes[i] < n])
    window = (*aval_of(x).shape[:1], *[sizes[i] for i in axes])
    indices = [iota(window, INT, 0)]
    for j, i in enumerate(axes, 1):
        start = clamped(starts[i], shape[i] - sizes[i])
        kept = tuple(range(aval_of(start).ndim))  # (0,) for a start of each row, () for one of all
        indices.append(add(broadcast(start, window, kept), iota(window, INT, j)))
    return axes, indices


def _forward(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    """The order of axes that brings the rows first, then `axes` (of a row), then the others."""
    return (0, *[i + 1 for i in axes], *[i + 1 for i in range(ndim) if i not in axes])


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(np.argsort(order).tolist())


def _dynamic_slice_batch(size: int, args: Any, dims: Any, *, sizes: Shape) -> Any:
    x, *starts = args
    d, *start_dims = dims
    if all(i is None for i in start_dims):
        x = align(x, d, 0, size)
        zero = constant(0, make_aval((), INT))
        return (bind1(dynamic_slice_p, x, zero, *starts, sizes=(size, *sizes)),), (0,)
    x = align(x, d, 0, size)
    axes, indices = _moving(x, starts, sizes)
    order = _forward(axes, len(sizes))
    return (transpose(bind1(gather_p, transpose(x, order), *indices), _inverse(order)),), (0,)


def _dynamic_slice_transpose(cts: Any, x: Linear, *starts: Any, sizes: Shape) -> Any:
    x_bar = bind1(dynamic_update_slice_p, zeros_of(x.aval), cts[0], *starts)
    return x_bar, *[None] * len(starts)


dynamic_slice_p = Op(dynamic_slice, Traits(exact=True, kind="window"), domain=LINEAR)
dynamic_slice_p.abstract = _dynamic_slice_abstract
dynamic_slice_p.evaluate = lambda x, *starts, sizes: (x[_slices(x.shape, starts, sizes)],)
dynamic_slice_p.batch = _dynamic_slice_batch
dynamic_slice_p.def_linear()
dynamic_slice_p.transpose = _dynamic_slice_transpose


def dynamic_update_slice(x: Operand, update: Operand, *starts: Operand, mode: str = "raise") -> Any:
    """A copy of `x` in which the window that begins at `starts` is replaced by `update`.

    Parameters
    ----------
    x, update
        Arrays of n axes and one dtype; `update` is nowhere longer than `x`.
    starts
        n int64 scalars; negative ones count from the end.
    mode
        ``"raise"``: a window that does not fit raises. ``"clip"``: it is moved until it fits.

    Raises
    ------
    OutOfBoundsError
        In mode ``"raise"``, where the window does not fit.

    Notes
    -----
    Linear in `x` and `update` together.
    """
    positions = _window("dynamic_update_slice", x, starts, aval_of(update).shape, mode)
    return bind1(dynamic_update_slice_p, x, update, *positions)


def _dynamic_update_slice_abstract(x: Aval, update: Aval, *starts: Aval) -> tuple[Aval]:
    if update.dtype != x.dtype:
        raise DtypeError(f"dynamic_update_slice: dtypes differ: {x} and {update}")
    _require_window("dynamic_update_slice", x, starts, update.shape)
    return (make_aval(x.shape, x.dtype),)


def _dynamic_update_slice_evaluate(x: Any, update: Any, *starts: Any) -> tuple[Any]:
    out = np.array(x, order="C", copy=True, subok=False)
    out[_slices(x.shape, starts, update.shape)] = update
    return (out,)


def _dynamic_update_slice_batch(size: int, args: Any, dims: Any) -> Any:
    x, update, *starts = args
    d, e, *start_dims = dims
    x, update = align(x, d, 0, size), align(update, e, 0, size)
    if all(i is None for i in start_dims):
        return (bind1(dynamic_update_slice_p, x, update, constant(0, make_aval((), INT)), *starts),), (0,)
    axes, indices = _moving(x, starts, aval_of(update).shape[1:])
    order = _forward(axes, len(starts))
    out = bind1(scatter_p, transpose(x, order), transpose(update, order), *indices, mode="clip")
    return (transpose(out, _inverse(order)),), (0,)


def _dynamic_update_slice_transpose(cts: Any, x: Any, update: Any, *starts: Any) -> Any:
    ct = cts[0]
    u = update.aval if isinstance(update, Linear) else aval_of(update)
    x_bar = bind1(dynamic_update_slice_p, ct, zeros_of(u), *starts) if isinstance(x, Linear) else None
    u_bar = bind1(dynamic_slice_p, ct, *starts, sizes=u.shape) if isinstance(update, Linear) else None
    return x_bar, u_bar, *[None] * len(starts)


dynamic_update_slice_p = Op(dynamic_update_slice, Traits(exact=True, zero="source", kind="update"), domain=LINEAR)
dynamic_update_slice_p.abstract = _dynamic_update_slice_abstract
dynamic_update_slice_p.evaluate = _dynamic_update_slice_evaluate
dynamic_update_slice_p.batch = _dynamic_update_slice_batch
dynamic_update_slice_p.def_linear(0, 1)
dynamic_update_slice_p.transpose = _dynamic_update_slice_transpose


def _add_window(total: Any, update: Any, *starts: Any) -> Any:
    window = bind1(dynamic_slice_p, total, *starts, sizes=aval_of(update).shape)
    return bind1(dynamic_update_slice_p, total, add(window, update), *starts)


dynamic_update_slice_p.add_onto = _add_window
