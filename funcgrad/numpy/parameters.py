"""Static parameters of the front end: what must be an integer, a flag, a number or a name, or else an error says so.

integer("tril", "k", 1.5)      ArgumentError: tril: k must be an integer, got 1.5
flag("sum", "keepdims", [])    ArgumentError: sum: keepdims must be True or False, got []
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from operator import index
from typing import Any

import numpy as np

from funcgrad.base.errors import ArgumentError, ParameterError, printed
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Shape
from funcgrad.core.trace import Tracer
from funcgrad.numpy.operands import refuse_traced

ARRAYS = Tracer | DeviceArray | np.ndarray
LARGEST = 2**59
"""More elements than this have no addresses."""


def integer(name: str, what: str, value: Any) -> int:
    """A parameter that is an integer."""
    if type(value) is int:
        return value
    refuse_traced(name, what, value)
    try:
        return index(value)
    except TypeError:
        raise ArgumentError(f"{name}: {what} must be an integer, got {printed(value)}") from None


def integers(name: str, what: str, value: Any) -> tuple[int, ...]:
    """A parameter that is an integer or a sequence of them."""
    if isinstance(value, ARRAYS):
        refuse_traced(name, what, value)
        value = value.tolist()
    items = value if isinstance(value, tuple | list | range) else (value,)
    return tuple([integer(name, what, i) for i in items])


def flag(name: str, what: str, value: Any) -> bool:
    """A parameter that is True or False; 0, 1 and None too."""
    if value is True or value is False:
        return value
    refuse_traced(name, what, value)
    if value is None or isinstance(value, int | np.bool_ | np.integer):
        return bool(value)
    if isinstance(value, ARRAYS) and value.shape == () and value.dtype.kind in "biu":
        return bool(value)
    raise ArgumentError(f"{name}: {what} must be True or False, got {printed(value)}")


def number(name: str, what: str, value: Any) -> Any:
    """A parameter that is a real number, as it is."""
    refuse_traced(name, what, value)
    if isinstance(value, ARRAYS) and value.shape == () and value.dtype.kind in "biuf":
        return value.item() if type(value) is Tracer else np.asarray(value)[()]
    if isinstance(value, int | float | np.bool_ | np.integer | np.floating):
        return value
    raise ArgumentError(f"{name}: {what} must be a number, got {printed(value)}")


def one_of(name: str, what: str, value: Any, allowed: Collection[Any]) -> Any:
    """A parameter that is one of a few values."""
    if not isinstance(value, str | int | None) or value not in allowed:
        names = [repr(v) for v in allowed]
        raise ParameterError(f"{name}: {what} is {', '.join(names[:-1])} or {names[-1]}, got {printed(value)}")
    return value


def sequence(name: str, what: str, value: Any) -> list[Any]:
    """A parameter that is a list or tuple, or the items of an array along its first axis."""
    if isinstance(value, list | tuple | range) or (isinstance(value, ARRAYS) and value.shape):
        return list(value)
    raise ArgumentError(f"{name}: {what} must be a list or tuple, got {printed(value)}")


def sized(name: str, shape: Shape) -> Shape:
    """`shape`, unless no memory could hold it."""
    if prod([max(n, 1) for n in shape]) > LARGEST:
        raise ParameterError(f"{name}: a result of shape {printed(shape)} is too large")
    return shape
