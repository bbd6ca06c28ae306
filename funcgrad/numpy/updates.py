"""Functional updates, ``x.at[index].set(v)``: a changed copy in place of an assignment.

Where the index is made of integers and slices the window is read, changed and written back with
`dynamic_update_slice` (gaps between elements are filled with the old ones first); index arrays need a scatter. A
boolean mask with a scalar (or a value for all rows) is `where`, so its value need not be known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, is_inexact
from funcgrad.base.errors import ArgumentError, DtypeError, ParameterError, ShapeError, printed
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Shape, make_aval
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import Tracer, bind1, describe
from funcgrad.numpy.elementwise import ufuncs
from funcgrad.numpy.indexing import Index, given_mode, move_block, parse, take_index, take_window
from funcgrad.numpy.operands import array, as_dtype, broadcast_to, common_shape, is_weak, operand, public, shape_of
from funcgrad.ops.arithmetic import div, neg, select
from funcgrad.ops.broadcasting import reshape, transpose
from funcgrad.ops.indexing import (
    scatter,
    scatter_add,
    scatter_add_p,
    scatter_max,
    scatter_max_p,
    scatter_min,
    scatter_min_p,
    scatter_mul,
    scatter_mul_p,
    scatter_p,
)
from funcgrad.ops.movement import convert, pad, reverse
from funcgrad.ops.op import constant, full_like
from funcgrad.ops.windows import dynamic_update_slice_p

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, v: v,
    "add": lambda old, v: ufuncs.add(old, v),
    "subtract": lambda old, v: ufuncs.subtract(old, v),
    "multiply": lambda old, v: ufuncs.multiply(old, v),
    "divide": lambda old, v: ufuncs.divide(old, v),
    "power": lambda old, v: ufuncs.power(old, v),
    "min": lambda old, v: ufuncs.minimum(old, v),
    "max": lambda old, v: ufuncs.maximum(old, v),
}
_SCATTER: dict[str, tuple[Callable[..., Any], Primitive]] = {
    "set": (scatter, scatter_p),
    "add": (scatter_add, scatter_add_p),
    "multiply": (scatter_mul, scatter_mul_p),
    "min": (scatter_min, scatter_min_p),
    "max": (scatter_max, scatter_max_p),
}


# -- the value


def cast_value(x: Any, values: Any, how: str) -> Any:
    """The value in the dtype of `x`: `set` casts as an assignment does, the others only within a kind."""
    name = f".at[...].{how}"
    v = operand(values, name)
    if is_weak(v) and type(v) is not Tracer:
        given = np.dtype(type(v))
        fits = np.can_cast(given, x.dtype, "same_kind") or (type(v) is int and x.dtype.kind == "u")
        if type(v) is int or (fits and x.dtype.kind != "b"):
            v = as_dtype(v, x.dtype) if x.dtype != BOOL or how == "set" else array(v)
        else:
            v = array(v)
    if v.dtype == x.dtype:
        return array(v)
    if how == "set":
        allowed = v.dtype.kind != "c"
    else:
        allowed = np.can_cast(v.dtype, x.dtype, "same_kind")
    if not allowed:
        raise DtypeError(
            f"{name}: a value of type {describe(v)} does not fit into {describe(x)}",
            hint=f"convert one of them first: x.astype(np.{v.dtype})",
        )
    return convert(v, x.dtype)


def fit_value(v: Any, shape: Shape, how: str) -> Any:
    """The value repeated to the shape of what is updated; more leading axes of length 1 are let pass, as in NumPy."""
    extra = len(v.shape) - len(shape)
    if extra > 0 and all([n == 1 for n in v.shape[:extra]]):
        v = reshape(v, v.shape[extra:])
    if common_shape(v.shape, shape) != shape:
        raise ShapeError(f".at[...].{how}: {describe(v)} does not broadcast to the updated shape {shape}")
    return broadcast_to(v, shape)


# -- writing


def put_window(x: Any, p: Index, v: Any) -> Any:
    """`x` with its window replaced by `v`, which has all axes and the order of `x`."""
    v = reverse(v, tuple(p.flips))
    shape = x.shape
    if 0 in v.shape:
        return x
    if any([s > 1 for s in p.steps]):  # keep what lies between
        none = (0,) * len(shape)
        between = tuple([s - 1 for s in p.steps])
        inner = constant(True, make_aval(v.shape, BOOL))
        taken = pad(inner, constant(False, make_aval((), BOOL)), none, none, between)
        spread = pad(v, constant(0, make_aval((), x.dtype)), none, none, between)
        old = take_window(x, Index(p.starts, p.spans(), [1] * len(shape), [], [], [], [], None, 0, ()))
        v = select(taken, spread, old)
    if v.shape == shape and not p.traced():
        return v
    starts = [np.int64(s) if type(s) is int else s for s in p.starts]
    return bind1(dynamic_update_slice_p, x, v, *starts)


def _update_basic(x: Any, p: Index, v: Any, how: str) -> Any:
    v = reshape(fit_value(v, p.shape, how), tuple(p.counts))
    old = None if how == "set" else take_window(x, p)
    return put_window(x, p, convert(_COMBINE[how](old, v), x.dtype))


def _update_arrays(x: Any, p: Index, v: Any, how: str, mode: str) -> Any:
    assert p.block is not None
    window = take_window(x, p)
    kept = tuple([n for a, n in enumerate(window.shape) if a not in p.dropped])
    order = p.order()
    inner = transpose(reshape(window, kept), order)  # axes with index arrays first
    rest = inner.shape[len(p.arrays) :]
    v = fit_value(v, p.shape, how)
    v = reshape(v, (*rest[: p.at], *p.block, *rest[p.at :]))
    v = move_block(v, len(p.block), p.at, 0)
    if p.arrays:
        inner = _scattered(inner, v, p, how, "drop" if mode == "fill" else mode)
    elif p.block == (1,):
        inner = convert(_COMBINE[how](inner, reshape(v, inner.shape)), x.dtype)
    back = transpose(inner, tuple(np.argsort(order).tolist()))
    return put_window(x, p, reshape(back, window.shape))


def _scattered(x: Any, v: Any, p: Index, how: str, mode: str) -> Any:
    if mode == "wrap":
        raise ParameterError(f".at[...].{how}: mode is one of raise, clip and drop, got 'wrap'")
    if how == "subtract":
        how, v = "add", neg(v)
    if how in _SCATTER:
        function, primitive = _SCATTER[how]
        if mode == "drop":
            return function(x, v, *p.arrays, mode=mode, axes=p.axes)
        return bind1(primitive, x, v, *p.arrays, mode="clip")  # the positions are checked already
    # several updates of one place multiply up: x / (v1 v2), x ** (v1 v2)
    product = _scattered(full_like(x, 1), v, p, "multiply", mode)
    return div(x, product) if how == "divide" else ufuncs.power(x, product)


def _mask_of(x: Any, index: Any) -> Any:
    """The index as a lone boolean mask over the first axes of `x`, or None."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if isinstance(index, list | DeviceArray):
        index = operand(index)
    if (type(index) is Tracer or isinstance(index, np.ndarray)) and index.dtype == BOOL and index.shape:
        mask = operand(index)
        return mask if mask.shape == x.shape[: mask.ndim] else None
    return None


@public()
def update(x: Any, index: Any, values: Any, how: str, mode: str | None = None) -> Any:
    """A copy of `x` in which the elements at `index` are combined with `values`. See `AtIndex`."""
    x = array(x, ".at")
    kind = given_mode(mode)
    if how == "divide" and not is_inexact(x.dtype):
        raise DtypeError(f".at[...].divide: not defined for {describe(x)}", hint="x.astype(float)")
    v = cast_value(x, values, how)
    mask = _mask_of(x, index)
    if mask is not None and len(shape_of(v)) <= len(x.shape) - mask.ndim:
        rest = x.shape[mask.ndim :]
        v = broadcast_to(fit_value(v, rest, how), x.shape)
        mask = broadcast_to(reshape(mask, mask.shape + (1,) * len(rest)), x.shape)
        return select(mask, convert(_COMBINE[how](x, v), x.dtype), x)
    p = parse(x, index, kind)
    return _update_basic(x, p, v, how) if p.block is None else _update_arrays(x, p, v, how, kind)


@public()
def read(x: Any, index: Any, mode: str | None = None, fill_value: Any = None) -> Any:
    """``x[index]`` with a choice of what happens outside. See `AtIndex.get`."""
    x = array(x, ".at")
    kind = given_mode(mode)
    return take_index(x, parse(x, index, kind), kind, fill_value)


# -- the user's face


class AtIndex:
    """``x.at[index]``: what can be done with these elements. Every method returns a copy of the whole array.

    The value is broadcast to ``x[index]``. `set` converts it to the dtype of `x`, as an assignment does; the others
    only within a kind (a float does not go into integers).

    Parameters
    ----------
    mode
        What happens to a position outside its axis. None or ``"raise"``: OutOfBoundsError. ``"clip"``: the nearest
        inside. ``"drop"``: it is left out; reading then gives `fill_value` (``"fill"`` says the same).
    indices_are_sorted, unique_indices
        Hints that JAX takes; they change nothing here.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any) -> None:
        self.array = array
        self.index = index

    def get(
        self, *, mode: str | None = None, fill_value: Any = None, indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Any:  # fmt: skip
        """``x[index]``; in mode ``"fill"`` what is outside is `fill_value` (default: NaN, for integers an extreme)."""
        return read(self.array, self.index, mode, fill_value)

    def apply(self, func: Callable[[Any], Any], *, mode: str | None = None) -> Any:
        """``x[index] = func(x[index])``; an element that is indexed twice is changed once."""
        if not callable(func):
            raise ArgumentError(f".at[...].apply: a function is needed, got {printed(func)}")
        return update(self.array, self.index, func(read(self.array, self.index, mode)), "set", mode)

    def __repr__(self) -> str:
        return f"{type(self.array).__name__}.at[{self.index!r}]"


def _method(how: str, doc: str) -> Callable[..., Any]:
    def method(
        self: AtIndex, values: Any, *, mode: str | None = None, indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Any:  # fmt: skip
        return update(self.array, self.index, values, how, mode)

    method.__name__ = method.__qualname__ = how
    method.__doc__ = doc
    return method


for _how, _doc in {
    "set": "``x[index] = values``; where positions repeat the last one wins, and has the derivative.",
    "add": "``x[index] += values``; where positions repeat all are added.",
    "subtract": "``x[index] -= values``; where positions repeat all are subtracted.",
    "multiply": "``x[index] *= values``; where positions repeat all are multiplied.",
    "divide": "``x[index] /= values``; where positions repeat all divide.",
    "power": "``x[index] **= values``; where positions repeat the exponents multiply.",
    "min": "``x[index] = minimum(x[index], values)``, of all values where positions repeat.",
    "max": "``x[index] = maximum(x[index], values)``, of all values where positions repeat.",
}.items():
    setattr(AtIndex, _how, _method(_how, _doc))


class At:
    """``x.at``: index it, and call a method of `AtIndex`."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self.array, index)

    def __repr__(self) -> str:
        return f"{type(self.array).__name__}.at"
