"""Differences, sums by the trapezoidal rule, polynomials."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, FLOAT, INT, is_inexact, promote
from funcgrad.base.errors import DtypeError, ParameterError, ShapeError
from funcgrad.core.trace import describe
from funcgrad.numpy import reductions, shaping
from funcgrad.numpy.elementwise import ufuncs
from funcgrad.numpy.operands import array, as_dtype, broadcast_to, dtype_of, normalize_axis, operand, public
from funcgrad.numpy.parameters import flag, integer, one_of, sized
from funcgrad.ops.broadcasting import broadcast, reshape
from funcgrad.ops.cumulative import section
from funcgrad.ops.movement import concatenate, convert
from funcgrad.ops.op import full_like


@public(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th difference along `axis`: ``a[i + 1] - a[i]``, taken n times. For bool, whether neighbours differ.

    Parameters
    ----------
    prepend, append
        Put before and behind `a` first; a scalar is repeated.
    """
    n = integer("diff", "n", n)
    if n < 0:
        raise ParameterError(f"diff: n must not be negative, got {n}")
    x = array(a, "diff")
    if n == 0:
        return x
    if not x.shape:
        raise ShapeError("diff: at least one axis is needed")
    i = normalize_axis("diff", axis, len(x.shape))
    if prepend is not None or append is not None:
        parts = [x]
        for at, extra in ((0, prepend), (len(parts) + 1, append)):
            if extra is not None:
                e = array(extra, "diff")
                one = tuple([1 if j == i else m for j, m in enumerate(x.shape)])
                parts.insert(at, broadcast_to(e, one) if not e.shape else e)
        x = shaping.concatenate(parts, i)
    function = ufuncs.not_equal if x.dtype == BOOL else ufuncs.subtract
    for _ in range(min(n, x.shape[i])):
        m = x.shape[i]
        x = function(section(x, i, min(1, m), m), section(x, i, 0, max(m - 1, 0)))
    return x


@public(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of neighbours in the flattened array, between `to_begin` and `to_end`."""
    x = shaping.ravel(ary)
    n = x.shape[0]
    d = ufuncs.subtract(section(x, 0, min(1, n), n), section(x, 0, 0, max(n - 1, 0)))
    parts = [d]
    if to_begin is not None:
        parts.insert(0, _end("to_begin", to_begin, d))
    if to_end is not None:
        parts.append(_end("to_end", to_end, d))
    return shaping.concatenate(parts)


def _end(what: str, given: Any, d: Any) -> Any:
    """What `ediff1d` puts before or behind the differences `d`, in their dtype."""
    x = operand(given, "ediff1d")
    if not np.can_cast(dtype_of(x), d.dtype, "same_kind") and not (type(x) is int and d.dtype.kind == "u"):
        raise DtypeError(f"ediff1d: {what} is {describe(x)}, which does not fit among {describe(d)}")
    return shaping.ravel(as_dtype(x, d.dtype))


@public(np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes from central differences, one-sided at the ends: one array per axis (a tuple for several).

    Parameters
    ----------
    varargs
        The distances: one number for all axes; or for every axis a number or the coordinates.
    axis
        The axes to differentiate along; default: all.
    edge_order
        Order of the one-sided differences, 1 or 2.
    """
    x = array(f, "gradient")
    if x.dtype == BOOL:
        raise DtypeError(f"gradient: not defined for {describe(x)}")
    x = x if is_inexact(x.dtype) else convert(x, FLOAT)
    if axis is None:
        axes = tuple(range(len(x.shape)))
    else:
        given = axis if isinstance(axis, tuple | list) else (axis,)
        axes = tuple([normalize_axis("gradient", i, len(x.shape)) for i in given])
    one_of("gradient", "edge_order", edge_order, (1, 2))
    steps = [array(v, "gradient") for v in varargs] or [np.float64(1)]
    if len(steps) == 1 and not steps[0].shape:
        steps *= len(axes)
    if len(steps) != len(axes):
        raise ParameterError(f"gradient: {len(steps)} distances for {len(axes)} axes")
    out = []
    for i, h in zip(axes, steps, strict=True):
        n = x.shape[i]
        if n < edge_order + 1:
            raise ShapeError(f"gradient: axis {i} of {describe(x)} needs {edge_order + 1} elements")
        if h.shape and h.shape != (n,):
            raise ShapeError(f"gradient: {h.shape[0]} coordinates for axis {i} of length {n}")
        out.append(_slopes(x, i, h, edge_order))
    return out[0] if len(out) == 1 else tuple(out)


def _slopes(x: Any, axis: int, h: Any, edge_order: int) -> Any:
    n = x.shape[axis]

    def part(start: int, stop: int) -> Any:
        return section(x, axis, start, stop)

    def at(i: int) -> Any:
        return part(i, i + 1)

    def column(v: Any) -> Any:
        return reshape(v, tuple([v.shape[0] if j == axis else 1 for j in range(len(x.shape))])) if v.shape else v

    if h.shape:
        d = convert(diff(h), promote(x.dtype, h.dtype)) if not is_inexact(h.dtype) else diff(h)
        d1, d2 = section(d, 0, 0, n - 2), section(d, 0, 1, n - 1)
        total = ufuncs.add(d1, d2)
        a = ufuncs.divide(ufuncs.negative(d2), ufuncs.multiply(d1, total))
        b = ufuncs.divide(ufuncs.subtract(d2, d1), ufuncs.multiply(d1, d2))
        c = ufuncs.divide(d1, ufuncs.multiply(d2, total))
        inner = _combine([(column(a), part(0, n - 2)), (column(b), part(1, n - 1)), (column(c), part(2, n))])
        first, last = column(section(d, 0, 0, 1)), column(section(d, 0, n - 2, n - 1))
    else:
        inner = ufuncs.divide(ufuncs.subtract(part(2, n), part(0, n - 2)), ufuncs.multiply(2.0, h)) if n > 2 else None
        first = last = h
    if edge_order == 1:
        begin = ufuncs.divide(ufuncs.subtract(at(1), at(0)), first)
        end = ufuncs.divide(ufuncs.subtract(at(n - 1), at(n - 2)), last)
    elif h.shape:
        begin = _edge(x, axis, column(section(d, 0, 0, 1)), column(section(d, 0, 1, 2)), (0, 1, 2), 1.0)
        p, q = column(section(d, 0, n - 2, n - 1)), column(section(d, 0, n - 3, n - 2))
        end = _edge(x, axis, p, q, (n - 1, n - 2, n - 3), -1.0)
    else:
        begin = ufuncs.divide(_combine([(-1.5, at(0)), (2.0, at(1)), (-0.5, at(2))]), h)
        end = ufuncs.divide(_combine([(0.5, at(n - 3)), (-2.0, at(n - 2)), (1.5, at(n - 1))]), h)
    parts = [begin, end] if n == 2 else [begin, inner, end]
    return concatenate([convert(p, x.dtype) for p in parts], axis)


def _edge(x: Any, axis: int, p: Any, q: Any, places: tuple[int, int, int], sign: float) -> Any:
    """The one-sided difference of second order: p and q are the distances from the end inward."""
    total = ufuncs.add(p, q)
    a = ufuncs.divide(ufuncs.negative(ufuncs.add(ufuncs.multiply(2.0, p), q)), ufuncs.multiply(p, total))
    b = ufuncs.divide(total, ufuncs.multiply(p, q))
    c = ufuncs.divide(ufuncs.negative(p), ufuncs.multiply(q, total))
    terms = zip((a, b, c), places, strict=True)
    return ufuncs.multiply(sign, _combine([(w, section(x, axis, i, i + 1)) for w, i in terms]))


def _combine(terms: list[tuple[Any, Any]]) -> Any:
    total = None
    for weight, x in terms:
        term = ufuncs.multiply(weight, x)
        total = term if total is None else ufuncs.add(total, term)
    return total


@public(getattr(np, "trapezoid", None))
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of the samples `y` along `axis` by the trapezoidal rule.

    Parameters
    ----------
    x
        The places of the samples: one-dimensional, or of the shape of `y`.
    dx
        Their distance, if `x` is None.
    """
    v = array(y, "trapezoid")
    i = normalize_axis("trapezoid", axis, len(v.shape))
    n = v.shape[i]
    if x is None:
        d = operand(dx, "trapezoid")
    else:
        places = array(x, "trapezoid")
        d = diff(places, axis=0 if len(places.shape) == 1 else i)
        if len(places.shape) == 1:
            d = reshape(d, tuple([d.shape[0] if j == i else 1 for j in range(len(v.shape))]))
    pairs = ufuncs.add(section(v, i, min(1, n), n), section(v, i, 0, max(n - 1, 0)))
    return reductions.sum(ufuncs.divide(ufuncs.multiply(d, pairs), 2.0), i)


# -- polynomials


@public(np.polyval)
def polyval(p: Any, x: Any) -> Any:
    """The polynomial ``p[0] x^(n-1) + ... + p[n-1]``, by Horner's rule."""
    coefficients, v = array(p, "polyval"), array(x, "polyval")
    if len(coefficients.shape) != 1:
        raise ShapeError(f"polyval: coefficients are one-dimensional, got {describe(coefficients)}")
    out = full_like(v, 0)
    for part in shaping.unstack(coefficients):
        out = ufuncs.add(ufuncs.multiply(out, v), part)
    return out


@public(np.vander)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The matrix whose columns are powers of `x`, from N - 1 down to 0, or upward."""
    v = array(x, "vander")
    if len(v.shape) != 1:
        raise ShapeError(f"vander: one axis is needed, got {describe(v)}")
    count = v.shape[0] if N is None else integer("vander", "N", N)
    if count < 0:
        raise ParameterError(f"vander: N must not be negative, got {count}")
    sized("vander", (v.shape[0], count))
    increasing = flag("vander", "increasing", increasing)
    kind = promote(v.dtype, INT)
    v = convert(v, kind)
    powers = [full_like(v, 1)]
    for _ in range(1, count):
        powers.append(ufuncs.multiply(powers[-1], v))
    powers = powers[:count]
    if not powers:
        return broadcast(section(v, 0, 0, 0), (v.shape[0], 0), (1,))
    return shaping.stack(powers if increasing else powers[::-1], 1)
