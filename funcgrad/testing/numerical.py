"""Numerical derivatives of functions of pytrees: extrapolated differences, and the complex step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, printed
from funcgrad.testing.differences import derivative_along, ravel
from funcgrad.testing.flat import argument_tuple, evaluated, flat_function, is_float


def _tangent_leaves(x: list[Any], tangents: Any, primals: Any) -> list[Any]:
    found, treedef = tree.flatten(tuple(tangents))
    given, expected = tree.flatten(tuple(primals))
    if treedef != expected:
        raise ArgumentError(
            "the tangents must have the tree of the primals; " + tree.describe_mismatch("tangents", expected, treedef)
        )
    for v, a in zip(found, given, strict=True):
        if np.shape(v) != np.shape(a):
            raise ArgumentError(f"the tangent of an argument has its shape: {np.shape(v)} for {np.shape(a)}")
    return [np.asarray(v)[()] for v, a in zip(found, given, strict=True) if is_float(a)]


def numerical_jvp(f: Callable[..., Any], primals: Any, tangents: Any, side: str = "both") -> tuple[Any, Any]:
    """The derivative of `f` along `tangents` by differences, and how far to trust it.

    Parameters
    ----------
    f
        Takes and returns pytrees of arrays. It is called with plain arrays only.
    primals, tangents
        Tuples with one entry per argument, as for `jvp`; integer leaves are not moved.
    side
        ``"both"``: central differences. ``"right"``, ``"left"``: differences of one side, which exist at a kink too.

    Returns
    -------
    tangent, error
        Trees like the result of `f`; of leaves that are no floats, zeros.

    Notes
    -----
    Differences for steps from 1/16 on, relative to the arguments where these are larger than 1, are extrapolated as by
    Ridders; each element takes the entry of the table that is trusted most. Of smooth functions about 12 digits are
    right. `f` is called about 20 times; more often where these steps do not say much, and smaller ones follow.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import numerical_jvp
    >>> y_dot, error = numerical_jvp(np.sin, (1.0,), (1.0,))
    >>> bool(abs(y_dot - np.cos(1.0)) < 1e-12), bool(error < 1e-10)
    (True, True)
    >>> [float(numerical_jvp(abs, (0.0,), (1.0,), side)[0]) for side in ("left", "right")]
    [-1.0, 1.0]
    """
    primals = argument_tuple(primals, "numerical_jvp")
    flat = flat_function(f, primals, None, "numerical_jvp")
    v = _tangent_leaves(flat.x, argument_tuple(tangents, "numerical_jvp"), primals)
    name = {"both": "value", "right": "right", "left": "left"}.get(side)
    if name is None:
        raise ArgumentError(f"side is 'both', 'right' or 'left', got {printed(side)}")
    with np.errstate(all="ignore"):
        out = evaluated(f, (tuple(primals), {}))
    if not any([np.any(a) for a in v]):  # nothing moves
        zeros = np.zeros(ravel(flat.values(flat.x)).shape)
        return _like(out, zeros), _like(out, abs(zeros))
    values = flat.values(flat.x)
    d = derivative_along(flat.call, flat.x, v, _precision(values))
    error = d.error if name == "value" else getattr(d, f"{name}_error")
    there = np.isfinite(ravel(values))  # else there is no derivative
    return _like(out, np.where(there, getattr(d, name), np.nan)), _like(out, np.where(there, error, np.inf))


def _precision(arrays: list[Any]) -> float:
    """The relative rounding error of the least precise array."""
    return max([float(np.finfo(a.dtype).eps) for a in arrays], default=2.0**-52)


def _like(out: Any, vector: Any) -> Any:
    """The parts of a vector, as the floating-point leaves of a tree."""
    leaves, treedef = tree.flatten(out)
    found, at = [], 0
    for y in leaves:
        if is_float(y):
            a = np.asarray(y)
            found.append(vector[at : at + a.size].reshape(a.shape)[()])
            at += a.size
        else:
            found.append(np.zeros(np.shape(y))[()])
    return tree.unflatten(treedef, found)


def finite_differences(f: Callable[[float], Any], x: float, side: str = "both") -> tuple[Any, Any]:
    """The derivative of a function of one real number by extrapolated differences, and how far to trust it.

    Parameters
    ----------
    f
        Takes a float, returns a pytree of arrays.
    x
        Where.
    side
        As in `numerical_jvp`.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import finite_differences
    >>> value, error = finite_differences(np.exp, 0.0)
    >>> round(float(value), 10), bool(error < 1e-10)
    (1.0, True)
    """
    return numerical_jvp(f, (float(x),), (1.0,), side)


def complex_step(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The derivative of `f` along `tangents` from one evaluation at a complex point: Im f(x + i h v) / h.

    Parameters
    ----------
    f
        A real function that takes complex numbers as well and is analytic there: no `abs`, `max`, comparison,
        conjugation. It is called with plain arrays only.
    primals, tangents
        Tuples with one entry per argument, real; integer leaves are not moved.

    Returns
    -------
    tangent
        A tree like the result of `f`, exact to rounding: nothing is subtracted.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import complex_step
    >>> float(complex_step(np.exp, (0.0,), (1.0,)))
    1.0
    """
    primals = argument_tuple(primals, "complex_step")
    leaves, treedef = tree.flatten(primals)
    found = iter(_tangent_leaves([], argument_tuple(tangents, "complex_step"), primals))
    h = 2.0**-330
    moved = [np.asarray(a) + 1j * h * next(found) if is_float(a) else a for a in leaves]
    out, out_tree = tree.flatten(f(*tree.unflatten(treedef, moved)))
    for y in out:
        if np.asarray(y).dtype.kind == "f":
            raise ArgumentError("complex_step: the function returns real numbers for complex ones")
    return tree.unflatten(out_tree, [np.asarray(y).imag[()] / h for y in out])


__all__ = ["complex_step", "finite_differences", "numerical_jvp"]
