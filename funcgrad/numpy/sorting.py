"""Order: sort and argsort.

The order is an integer result without derivative; what is sorted is taken in that order, and so has all derivatives.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from funcgrad.base.errors import DtypeError, ParameterError, printed
from funcgrad.core.trace import describe
from funcgrad.numpy.operands import array, normalize_axis, public
from funcgrad.ops.broadcasting import move_axis, reshape
from funcgrad.ops.indexing import in_order, stable_order

_KINDS = ("quicksort", "mergesort", "heapsort", "stable")


def _lines(name: str, a: Any, axis: int | None, kind: str | None, order: None, stable: bool | None) -> tuple[Any, int]:
    """The array with the axis to sort as its last, and which one that was."""
    x = array(a, name)
    if x.dtype.kind == "c":
        raise DtypeError(f"{name}: complex numbers are not ordered, got {describe(x)}")
    if kind is not None and not (isinstance(kind, str) and kind in _KINDS):
        raise ParameterError(f"{name}: kind is {', '.join(map(repr, _KINDS))} or None, got {printed(kind)}")
    if kind is not None and stable is not None:
        raise ParameterError(f"{name}: kind= and stable= were given, which say the same")
    if order is not None:
        raise ParameterError(f"{name}: order= is for arrays with fields")
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    i = normalize_axis(name, axis, len(x.shape))
    return move_axis(x, i, len(x.shape) - 1), i


@public(np.argsort)
def argsort(
    a: Any, axis: int | None = -1, kind: str | None = None, order: None = None, *, stable: bool | None = None
) -> Any:
    """The positions (int64) that put the elements along `axis` in order. See `sort`; it has no derivative."""
    x, i = _lines("argsort", a, axis, kind, order, stable)
    return move_axis(stable_order(x), len(x.shape) - 1, i)


@public(np.sort)
def sort(
    a: Any, axis: int | None = -1, kind: str | None = None, order: None = None, *, stable: bool | None = None
) -> Any:
    """A copy with the elements along `axis` in order, NaN last.

    Parameters
    ----------
    axis
        None sorts the flattened array.
    kind, stable
        Equal elements keep their order, whatever is given.

    Notes
    -----
    The derivative of each element goes to its new place; where elements are equal, this is one of several.
    """
    x, i = _lines("sort", a, axis, kind, order, stable)
    return move_axis(in_order(x), len(x.shape) - 1, i)
