"""Reductions over axes: product, maximum, minimum, any, all, and the positions of extremes.

`reduce_sum` is in `broadcasting`, beside its transpose. All keep the dtype of the operand, but positions are
int64.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.primitive import Traits
from funcgrad.core.trace import bind1
from funcgrad.ops.arithmetic import div, mul, select
from funcgrad.ops.broadcasting import Axes, batch_reduce, broadcast, reduce_sum, reduced, reshape, transpose
from funcgrad.ops.cumulative import attains, cumprod, previous
from funcgrad.ops.movement import convert
from funcgrad.ops.op import ALL, NUMERIC, SMOOTH, Domain, Op, Operand, aval_of, zeros_of
from funcgrad.ops.reductions import all_of, any_of, first_largest, first_smallest, largest, product, smallest

# -- what the ops here share


def _reduction(
    function: Callable[..., Any],
    ufunc: np.ufunc,
    dtypes: str,
    *,
    exact: bool,
    nonempty: bool = False,
    domain: Domain | None = None,
) -> Op:
    """A reduction with a ufunc: everything but its derivative."""
    op = Op(function, Traits(exact=exact, kind="reduce"), dtypes=dtypes, domain=domain)

    def abstract(x: Aval, *, axes: Axes) -> tuple[Aval]:
        if x.dtype.kind not in dtypes:
            raise DtypeError(f"{op.name}: does not take {x}")
        if nonempty:
            _require_elements(op.name, x, axes)
        return (make_aval(reduced(x.shape, axes), x.dtype),)

    op.abstract = abstract
    op.evaluate = lambda x, *, axes: (ufunc.reduce(x, axes, x.dtype),)
    op.batch = batch_reduce(op)
    op.decline("transpose", "it is not linear")
    return op


def _require_elements(name: str, x: Aval, axes: Axes) -> None:
    empty = [a for a in axes if x.shape[a] == 0]
    if empty:
        raise ShapeError(
            f"{name}: there is no element along axis {empty[0]} of {x}",
            hint="initial=v gives v for no elements" if name.startswith("reduce") else None,
        )


def _over(op: Op, x: Operand, axes: Axes) -> Any:
    _require_elements(op.name, aval_of(x), axes)
    return bind1(op, x, axes=axes) if axes else x


# -- product


def reduce_prod(x: Operand, axes: Axes) -> Any:
    """The product over `axes`, in the dtype of `x`; integers wrap. Of no elements it is 1.

    Notes
    -----
    Derivatives are exact where elements are zero, to every order: the derivative for one element is the
    product of those before it and those after it, never a quotient.
    """
    return bind1(reduce_prod_p, x, axes=axes) if axes else x


def _prod_jvp(x_dot: Any, z: Any, x: Any, *, axes: Axes) -> Any:
    shape = aval_of(x).shape
    kept = tuple([i for i in range(len(shape)) if i not in axes])
    n, axis = prod([shape[a] for a in axes]), len(kept)

    def flat(v: Any) -> Any:
        return reshape(transpose(v, (*kept, *axes)), (*[shape[i] for i in kept], n))

    if n > 1:
        others = [cumprod(previous(flat(x), axis, way, 1), axis, way) for way in (False, True)]
        return reduce_sum(mul(flat(x_dot), mul(*others)), (axis,))
    return reduce_sum(flat(x_dot), (axis,))


reduce_prod_p = _reduction(reduce_prod, np.multiply, NUMERIC, exact=False, domain=SMOOTH)
reduce_prod_p.reduction = product
reduce_prod_p.def_jvp(_prod_jvp)

# -- maximum and minimum


def reduce_max(x: Operand, axes: Axes) -> Any:
    """The largest element over `axes`; NaN if one is NaN.

    Raises
    ------
    ShapeError
        There are no elements.

    Notes
    -----
    Elements that tie for the maximum share its derivative evenly; so do NaNs.
    """
    return _over(reduce_max_p, x, axes)


def reduce_min(x: Operand, axes: Axes) -> Any:
    """The smallest element over `axes`; NaN if one is NaN.

    Raises
    ------
    ShapeError
        There are no elements.

    Notes
    -----
    Elements that tie for the minimum share its derivative evenly; so do NaNs.
    """
    return _over(reduce_min_p, x, axes)


def _extreme_jvp(x_dot: Any, z: Any, x: Any, *, axes: Axes) -> Any:
    # dz = the mean of dx over the elements that attain z
    a = aval_of(x)
    hit = attains(x, broadcast(z, a.shape, tuple([i for i in range(a.ndim) if i not in axes])))
    return div(reduce_sum(select(hit, x_dot, zeros_of(x_dot)), axes), reduce_sum(convert(hit, a.dtype), axes))


_KINKS = Domain(smooth="its kinks are ties of two elements")
reduce_max_p = _reduction(reduce_max, np.maximum, ALL, exact=True, nonempty=True, domain=_KINKS)
reduce_max_p.reduction = largest
reduce_max_p.def_jvp(_extreme_jvp)

reduce_min_p = _reduction(reduce_min, np.minimum, ALL, exact=True, nonempty=True, domain=_KINKS)
reduce_min_p.reduction = smallest
reduce_min_p.def_jvp(_extreme_jvp)

# -- any and all


def reduce_any(x: Operand, axes: Axes) -> Any:
    """Whether an element over `axes` is True; of no elements it is False. Takes bool."""
    return bind1(reduce_any_p, x, axes=axes) if axes else x


def reduce_all(x: Operand, axes: Axes) -> Any:
    """Whether all elements over `axes` are True; of no elements it is True. Takes bool."""
    return bind1(reduce_all_p, x, axes=axes) if axes else x


reduce_any_p = _reduction(reduce_any, np.logical_or, "b", exact=True)
reduce_any_p.reduction = any_of
reduce_any_p.def_no_derivative("its result is bool")

reduce_all_p = _reduction(reduce_all, np.logical_and, "b", exact=True)
reduce_all_p.reduction = all_of
reduce_all_p.def_no_derivative("its result is bool")

# -- positions of extremes


def argmax(x: Operand, axis: int) -> Any:
    """The position of the largest element along `axis`, int64; of several the first, and of NaNs the first.

    Raises
    ------
    ShapeError
        There are no elements.
    """
    _require_elements("argmax", aval_of(x), (axis,))
    return bind1(argmax_p, x, axis=axis)


def argmin(x: Operand, axis: int) -> Any:
    """The position of the smallest element along `axis`, int64; of several the first, and of NaNs the first.

    Raises
    ------
    ShapeError
        There are no elements.
    """
    _require_elements("argmin", aval_of(x), (axis,))
    return bind1(argmin_p, x, axis=axis)


def _position(function: Callable[..., Any], numpy: Callable[..., Any]) -> Op:
    op = Op(function, Traits(exact=True, kind="argreduce"), dtypes=ALL)

    def abstract(x: Aval, *, axis: int) -> tuple[Aval]:
        _require_elements(op.name, x, (axis,))
        return (make_aval(reduced(x.shape, (axis,)), INT),)

    def batch(size: int, args: Any, dims: Any, *, axis: int) -> Any:
        d = dims[0]
        axis += axis >= d
        return (bind1(op, args[0], axis=axis),), (d - (axis < d),)

    op.abstract = abstract
    op.evaluate = lambda x, *, axis: (numpy(x, axis),)
    op.batch = batch
    op.def_no_derivative("its result is an integer")
    op.decline("transpose", "its result is an integer")
    return op


argmax_p = _position(argmax, np.argmax)
argmax_p.reduction = first_largest

argmin_p = _position(argmin, np.argmin)
argmin_p.reduction = first_smallest
