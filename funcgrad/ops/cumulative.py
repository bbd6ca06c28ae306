"""Running totals along one axis: cumsum, cumprod, cummax, cummin, and the recurrence behind their derivatives.

All take a static `axis` and `reverse`; reversed, they run from the last element to the first. Each derivative is
again one pass: a linear recurrence is closed under differentiation, transposition and batching, so every order
costs O(n), and no product is ever divided by an element, which may be zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, FLOAT, Dtype, highest, lowest
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.primitive import Primitive, Recurrence, Traits
from funcgrad.core.trace import bind1
from funcgrad.ops.arithmetic import add, add_p, div, mul, mul_p, select
from funcgrad.ops.broadcasting import align
from funcgrad.ops.comparison import eq, isnan, logical_or
from funcgrad.ops.extrema import maximum_p, minimum_p
from funcgrad.ops.movement import convert, pad, slice_
from funcgrad.ops.op import (
    ALL,
    INEXACT,
    LINEAR,
    NUMERIC,
    SMOOTH,
    Domain,
    Op,
    Operand,
    aval_of,
    constant,
    full_like,
    literal_of,
    zeros_of,
)

# -- what the ops here share


def section(x: Operand, axis: int, start: int, stop: int) -> Any:
    """The elements ``start:stop`` along one axis."""
    shape = aval_of(x).shape
    return slice_(
        x,
        tuple([start if i == axis else 0 for i in range(len(shape))]),
        tuple([stop if i == axis else n for i, n in enumerate(shape)]),
        (1,) * len(shape),
    )


def extend(x: Operand, axis: int, fill: Any, before: int, after: int) -> Any:
    """`x` with the Python scalar `fill` before and after it along one axis."""
    a = aval_of(x)
    return pad(
        x,
        constant(fill, make_aval((), a.dtype)),
        tuple([before if i == axis else 0 for i in range(a.ndim)]),
        tuple([after if i == axis else 0 for i in range(a.ndim)]),
        (0,) * a.ndim,
    )


def previous(x: Operand, axis: int, reverse: bool, fill: Any) -> Any:
    """For each element the one before it in running order; `fill` for the first."""
    n = aval_of(x).shape[axis]
    if n == 0:
        return x
    if reverse:
        return extend(section(x, axis, 1, n), axis, fill, 0, 1)
    return extend(section(x, axis, 0, n - 1), axis, fill, 1, 0)


def attains(x: Operand, extreme: Operand) -> Any:
    """Where `x` equals a maximum or minimum that it was among; a NaN does, since it made the extreme NaN."""
    return logical_or(eq(x, extreme), isnan(x))


def _stepwise(combine: Primitive, start: Callable[[Dtype], float]) -> Recurrence:
    """Each step combines the result so far with the next element; `start` leaves the first as it is."""

    def step(b: Any, dtype: Dtype, state: list[Any], x: Any) -> tuple[list[Any], Any]:
        assert combine.emit is not None
        total = combine.emit(b, dtype, state[0], x)
        return [total], total

    return Recurrence(lambda dtype: ((dtype, start(dtype)),), step, combine.emit)


def _running(function: Callable[..., Any], ufunc: np.ufunc, dtypes: str, domain: Domain, exact: bool) -> Op:
    """A running total with a ufunc: everything but its derivative."""
    op = Op(function, Traits(exact=exact, kind="cumulative"), dtypes=dtypes, domain=domain)
    op.hidden_params = {"reverse": False}

    def abstract(x: Aval, *, axis: int, reverse: bool) -> tuple[Aval]:
        if x.dtype.kind not in dtypes:
            raise DtypeError(f"{op.name}: does not take {x}")
        return (make_aval(x.shape, x.dtype),)

    def evaluate(x: Any, *, axis: int, reverse: bool) -> tuple[Any]:
        if reverse:
            return (np.flip(ufunc.accumulate(np.flip(x, axis), axis, x.dtype), axis),)
        return (ufunc.accumulate(x, axis, x.dtype),)

    op.abstract = abstract
    op.evaluate = evaluate
    op.batch = batch_along(op)
    return op


def batch_along(op: Op) -> Callable[..., Any]:
    """The batching rule of ops along one axis that keep shapes: bring the batch axes to one place."""

    def batch(size: int, args: Any, dims: Any, *, axis: int, **params: Any) -> Any:
        to = next(d for d in dims if d is not None)
        rows = [align(x, d, to, size) for x, d in zip(args, dims, strict=True)]
        return (bind1(op, *rows, axis=axis + (axis >= to), **params),), (to,)

    return batch


# -- linear recurrence


def linear_recurrence(a: Operand, b: Operand, keep: Operand, axis: int, reverse: bool = False) -> Any:
    """The recurrence h[k] = a[k] h[k-1] + b[k] along `axis`, from h[0] = b[0].

    Where `keep` (bool) is False the past is forgotten, whatever it holds: h[k] = b[k] there. Its value at the
    first element, like that of `a`, has no meaning.

    Notes
    -----
    Computed one step after the other, so it overflows only where h does. Cost O(n), to every order: the
    tangent is the recurrence of b' + a' h[k-1], and its transpose runs the other way.
    """
    return bind1(linear_recurrence_p, a, b, keep, axis=axis, reverse=reverse)


def _recurrence_abstract(a: Aval, b: Aval, keep: Aval, *, axis: int, reverse: bool) -> tuple[Aval]:
    if a.shape != b.shape or b.shape != keep.shape or a.dtype != b.dtype or keep.dtype != BOOL:
        raise ShapeError(f"linear_recurrence: types do not fit: {a}, {b}, {keep}")
    return (make_aval(b.shape, b.dtype),)


def _recurrence_evaluate(a: Any, b: Any, keep: Any, *, axis: int, reverse: bool) -> tuple[Any]:
    out = np.empty(b.shape, b.dtype)
    a, b, keep, h = (np.moveaxis(v, axis, 0)[:: -1 if reverse else 1] for v in (a, b, keep, out))
    if len(b) == 0:
        return (out,)
    lanes = b[0].size
    if lanes <= 16:  # Python's numbers are faster than short rows, and at least as precise
        rows = [v.reshape(len(v), lanes).T.tolist() for v in (a, b, keep)]
        done = [_recur(*lane) for lane in zip(*rows, strict=True)]
        h[...] = np.array(done, b.dtype).T.reshape(b.shape)
        return (out,)
    h[0] = b[0]
    everywhere = bool(keep[1:].all())
    for k in range(1, len(b)):
        past = a[k] * h[k - 1]
        h[k] = past + b[k] if everywhere else np.where(keep[k], past + b[k], b[k])
    return (out,)


def _recur(a: list[Any], b: list[Any], keep: list[bool]) -> list[Any]:
    h = b[0]
    out = [h]
    for a_k, b_k, keep_k in zip(a[1:], b[1:], keep[1:], strict=True):
        h = a_k * h + b_k if keep_k else b_k
        out.append(h)
    return out


def _recurrence_start(dtype: Dtype) -> tuple[tuple[Dtype, float], ...]:
    return (FLOAT, 0), (BOOL, 0)  # the past, in double precision, and whether there is one


def _recurrence_step(b: Any, dtype: Dtype, state: list[Any], a: Any, drive: Any, keep: Any) -> tuple[list[Any], Any]:
    h, begun = state
    a, drive = b.convert(a, h.type), b.convert(drive, h.type)
    h = b.select(b.and_(keep, begun), b.add(b.mul(a, h), drive), drive)
    return [h, b.constant(begun.type, 1)], b.convert(h, h.type.with_element("double" if dtype == FLOAT else "float"))


def _recurrence_jvp(primal: Any, primals: Any, tangents: Any, *, axis: int, reverse: bool) -> Any:
    outs = primal()
    a, _, keep = primals
    a_dot, drive, _ = tangents
    n = aval_of(a).shape[axis]
    if a_dot is not None and n > 1:
        # dh[k] = a[k] dh[k-1] + (da[k] h[k-1] + db[k]); the first element has no past
        now, past = ((0, n - 1), (1, n)) if reverse else ((1, n), (0, n - 1))
        term = mul(section(a_dot, axis, *now), section(outs[0], axis, *past))
        if literal_of(keep) is None:
            term = select(section(keep, axis, *now), term, 0.0)
        term = extend(term, axis, 0, *((0, 1) if reverse else (1, 0)))
        drive = term if drive is None else add(drive, term)
    return outs, (None if drive is None else linear_recurrence(a, drive, keep, axis, reverse),)


def _recurrence_transpose(cts: Any, a: Any, b: Any, keep: Any, *, axis: int, reverse: bool) -> Any:
    # b_bar[k] = h_bar[k] + a[k+1] b_bar[k+1]
    later = [x if literal_of(x) is not None else previous(x, axis, not reverse, 0) for x in (a, keep)]
    return None, linear_recurrence(later[0], cts[0], later[1], axis, not reverse), None


linear_recurrence_p = Op(
    linear_recurrence, Traits(kind="cumulative"), dtypes=INEXACT, domain=Domain(smooth="bilinear in a and h")
)
linear_recurrence_p.hidden_params = {"reverse": False}
linear_recurrence_p.abstract = _recurrence_abstract
linear_recurrence_p.evaluate = _recurrence_evaluate
linear_recurrence_p.jvp = _recurrence_jvp
linear_recurrence_p.transpose = _recurrence_transpose
linear_recurrence_p.recurrence = Recurrence(_recurrence_start, _recurrence_step)
linear_recurrence_p.batch = batch_along(linear_recurrence_p)

# -- cumulative sum


def cumsum(x: Operand, axis: int, reverse: bool = False) -> Any:
    """The sum of the elements so far along `axis`, in the dtype of `x`; integers wrap."""
    return bind1(cumsum_p, x, axis=axis, reverse=reverse)


cumsum_p = _running(cumsum, np.add, NUMERIC, LINEAR, exact=False)
cumsum_p.recurrence = _stepwise(add_p, lambda dtype: -0.0)
cumsum_p.def_linear()
cumsum_p.transpose = lambda cts, x, *, axis, reverse: (cumsum(cts[0], axis, not reverse),)

# -- cumulative product


def cumprod(x: Operand, axis: int, reverse: bool = False) -> Any:
    """The product of the elements so far along `axis`, in the dtype of `x`; integers wrap.

    Notes
    -----
    Derivatives are exact where elements are zero, to every order.
    """
    return bind1(cumprod_p, x, axis=axis, reverse=reverse)


def _cumprod_jvp(x_dot: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    # y[k] = y[k-1] x[k]  =>  dy[k] = x[k] dy[k-1] + y[k-1] dx[k]
    keep = constant(True, make_aval(aval_of(x).shape, BOOL))
    return linear_recurrence(x, mul(x_dot, previous(y, axis, reverse, 1)), keep, axis, reverse)


cumprod_p = _running(cumprod, np.multiply, NUMERIC, SMOOTH, exact=False)
cumprod_p.recurrence = _stepwise(mul_p, lambda dtype: 1)
cumprod_p.def_jvp(_cumprod_jvp)
cumprod_p.decline("transpose", "it is not linear")

# -- cumulative maximum and minimum


def cummax(x: Operand, axis: int, reverse: bool = False) -> Any:
    """The largest element so far along `axis`; NaN from the first NaN on.

    Notes
    -----
    Elements that tie for the maximum so far share its derivative evenly, as in `reduce_max`; so do NaNs.
    """
    return bind1(cummax_p, x, axis=axis, reverse=reverse)


def cummin(x: Operand, axis: int, reverse: bool = False) -> Any:
    """The smallest element so far along `axis`; NaN from the first NaN on.

    Notes
    -----
    Elements that tie for the minimum so far share its derivative evenly, as in `reduce_min`; so do NaNs.
    """
    return bind1(cummin_p, x, axis=axis, reverse=reverse)


def _record_jvp(x_dot: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    # the mean of dx over the elements so far that attain y[k]: two sums that start anew at every new record
    one, hit, before = full_like(x, 1), attains(x, y), previous(y, axis, reverse, 0)
    keep = attains(before, y)
    total = linear_recurrence(one, select(hit, x_dot, zeros_of(x_dot)), keep, axis, reverse)
    return div(total, linear_recurrence(one, convert(hit, aval_of(x).dtype), keep, axis, reverse))


_RECORDS = Domain(smooth="its kinks are ties of two elements")
cummax_p = _running(cummax, np.maximum, ALL, _RECORDS, exact=True)
cummax_p.recurrence = _stepwise(maximum_p, lowest)
cummax_p.def_jvp(_record_jvp)
cummax_p.decline("transpose", "it is not linear")

cummin_p = _running(cummin, np.minimum, ALL, _RECORDS, exact=True)
cummin_p.recurrence = _stepwise(minimum_p, highest)
cummin_p.def_jvp(_record_jvp)
cummin_p.decline("transpose", "it is not linear")
