"""Choosing and comparing: where, select, clip, rounding to decimals, closeness, and small elementwise functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, FLOAT, INT, Dtype, is_inexact, promote
from funcgrad.base.errors import ArgumentError, DtypeError, ParameterError, ShapeError, UnsupportedError
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import describe
from funcgrad.numpy import reductions
from funcgrad.numpy.elementwise import refuse_out, ufuncs
from funcgrad.numpy.operands import (
    array,
    as_dtype,
    broadcast_operands,
    common_shape,
    dtype_key,
    dtype_of,
    is_weak,
    known_value,
    operand,
    promoted,
    public,
    shape_of,
    strong,
)
from funcgrad.numpy.parameters import flag, integer, one_of, sequence
from funcgrad.ops import arithmetic
from funcgrad.ops.movement import convert
from funcgrad.ops.op import constant, full_like

# -- where and select


@public(np.where)
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """`x` where `condition` holds, `y` elsewhere; all three broadcast.

    Notes
    -----
    The branch that is not taken has no influence on the derivative, even where its own derivative is inf or NaN:
    ``where(x > 0, sqrt(x), 0)`` has derivative 0 at 0.

    Raises
    ------
    UnsupportedError
        With one argument: the shape of the result would depend on values.
    """
    if x is None or y is None:
        raise UnsupportedError(
            "where: with one argument the shape of the result depends on values",
            hint="where(condition, x, y) chooses; sum(where(condition, x, 0)) sums a part",
        )
    a, b = operand(x, "where"), operand(y, "where")
    dtype = promote(dtype_key(a), dtype_key(b))
    c = convert(array(condition, "where"), BOOL)
    if dtype.kind in "iu":  # NumPy lets integers outside the range wrap here
        a, b = [np.int64(v) if type(v) is int and -(2**63) <= v < 2**63 else v for v in (a, b)]
    return arithmetic.select(*broadcast_operands("where", [c, as_dtype(a, dtype), as_dtype(b, dtype)]))


def _choices(name: str, choices: Any) -> list[Any]:
    items = sequence(name, "choices", choices)
    if not items:
        raise ArgumentError(f"{name}: at least one choice is needed")
    return items


@public(np.select)
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice of the first condition that holds, else `default`."""
    condlist = sequence("select", "condlist", condlist)
    choicelist = sequence("select", "choicelist", choicelist)
    if len(condlist) != len(choicelist) or not condlist:
        raise ArgumentError(f"select: {len(condlist)} conditions and {len(choicelist)} choices")
    conditions = [array(c, "select") for c in condlist]
    for c in conditions:
        if c.dtype != BOOL:
            raise DtypeError(f"select: a condition is {describe(c)}, not bool")
    *choices, out = promoted("select", *choicelist, default)
    for c, choice in zip(reversed(conditions), reversed(choices), strict=True):
        out = arithmetic.select(*broadcast_operands("select", [c, choice, out]))
    return out


@public(np.choose)
def choose(a: Any, choices: Sequence[Any], out: None = None, mode: str = "raise") -> Any:
    """``choices[a[i]][i]`` for each element; `a` holds integers, and all broadcast.

    Parameters
    ----------
    mode
        "clip" or "wrap" for integers outside. "raise" needs a known value of `a`.
    """
    refuse_out("choose", out)
    one_of("choose", "mode", mode, ("raise", "wrap", "clip"))
    index = array(a, "choose")
    if index.dtype.kind not in "biu":
        raise DtypeError(f"choose: a holds integers, got {describe(index)}")
    items = promoted("choose", *_choices("choose", choices))
    n = len(items)
    if mode == "raise":
        known = known_value(index)
        if known is None:
            raise UnsupportedError("choose: mode='raise' needs a known value of a", hint="mode='clip'")
        if known.size and (known.min() < 0 or known.max() >= n):
            raise ParameterError(f"choose: an integer is outside 0 ... {n - 1}")
    elif mode == "wrap":
        index = ufuncs.remainder(index, n)
    result = items[-1]
    for i in range(n - 2, -1, -1):
        result = arithmetic.select(*broadcast_operands("choose", [ufuncs.less_equal(index, i), items[i], result]))
    return result


@public(np.clip, "clip")
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: None = None, *, min: Any = None, max: Any = None) -> Any:
    """`a`, but not below `a_min` and not above `a_max` (also called `min` and `max`); None is no bound.

    Notes
    -----
    NaN stays NaN. At a bound `a` and the bound share the derivative evenly. Where the bounds cross, the result is
    `a_max`.
    """
    refuse_out("clip", out)
    low = a_min if min is None else min
    high = a_max if max is None else max
    x = operand(a, "clip")
    if is_weak(x) and [b for b in (low, high) if b is not None]:  # NumPy makes an array of the first argument
        x = strong(array(x))
    if array(x).dtype.kind in "iu":  # Python integers outside the range are no bounds
        info = np.iinfo(array(x).dtype)
        low = None if type(low) is int and low <= info.min else low
        high = None if type(high) is int and high >= info.max else high
    if low is None and high is None:
        return array(x)
    if low is not None and high is not None:
        return ufuncs.minimum(ufuncs.maximum(x, low), high)
    return ufuncs.maximum(x, low) if high is None else ufuncs.minimum(x, high)


@public(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`x` with NaN, inf and -inf replaced, by 0 and the largest finite numbers unless said otherwise."""
    x = array(x, "nan_to_num")
    if not is_inexact(x.dtype):
        return x
    if x.dtype.kind == "c":
        raise UnsupportedError(
            f"nan_to_num: not yet defined for {describe(x)}, whose parts it replaces one by one",
            hint="nan_to_num(x.real)",
        )
    info = np.finfo(x.dtype)
    posinf = info.max if posinf is None else posinf
    neginf = info.min if neginf is None else neginf
    out = where(ufuncs.isnan(x), _replacement(nan, x), x)
    out = where(ufuncs.equal(x, np.inf), _replacement(posinf, x), out)
    return where(ufuncs.equal(x, -np.inf), _replacement(neginf, x), out)


def _replacement(value: Any, x: Any) -> Any:
    """What stands in for the elements of `x` that are not finite, in the dtype of `x`."""
    v = operand(value, "nan_to_num")
    if not np.can_cast(dtype_of(v), x.dtype, "same_kind"):
        raise DtypeError(f"nan_to_num: {describe(v)} does not fit into {describe(x)}")
    if common_shape(shape_of(v), x.shape) != x.shape:
        raise ShapeError(f"nan_to_num: {describe(v)} does not broadcast to {describe(x)}")
    return as_dtype(v, x.dtype)


# -- closeness


@public(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether abs(a - b) <= atol + rtol abs(b), elementwise; infinities of one sign are close."""
    x, y = operand(a, "isclose"), operand(b, "isclose")
    if dtype_key(y) is int or array(y).dtype.kind in "biu":
        y = ufuncs.multiply(y, 1.0)
    equal_nan = flag("isclose", "equal_nan", equal_nan)
    near = ufuncs.less_equal(
        ufuncs.absolute(ufuncs.subtract(x, y)), ufuncs.add(atol, ufuncs.multiply(rtol, ufuncs.absolute(y)))
    )
    out = ufuncs.logical_or(ufuncs.logical_and(near, ufuncs.isfinite(y)), ufuncs.equal(x, y))
    if equal_nan:
        out = ufuncs.logical_or(out, ufuncs.logical_and(ufuncs.isnan(x), ufuncs.isnan(y)))
    return out


@public(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether `isclose` holds for all elements, as a boolean array of shape ()."""
    return reductions.all(isclose(a, b, rtol, atol, equal_nan))


@public(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether shapes and all elements are equal, as a boolean array of shape ()."""
    x, y = array(a1, "array_equal"), array(a2, "array_equal")
    if x.shape != y.shape:
        return constant(False, make_aval((), BOOL))
    same = ufuncs.equal(x, y)
    if flag("array_equal", "equal_nan", equal_nan) and is_inexact(x.dtype) and is_inexact(y.dtype):
        same = ufuncs.logical_or(same, ufuncs.logical_and(ufuncs.isnan(x), ufuncs.isnan(y)))
    return reductions.all(same)


@public(np.array_equiv)
def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether the arrays broadcast and all elements are equal, as a boolean array of shape ()."""
    try:
        return reductions.all(ufuncs.equal(a1, a2))
    except ShapeError:
        return constant(False, make_aval((), BOOL))


def _ordered(name: str, x: Any) -> Any:
    x = array(x, name)
    if x.dtype.kind == "c":
        raise DtypeError(f"{name}: not defined for {describe(x)}, whose infinities have no sign")
    return x


@public(np.isposinf)
def isposinf(x: Any, /, out: None = None) -> Any:
    """Whether an element is +inf."""
    refuse_out("isposinf", out)
    x = _ordered("isposinf", x)
    return ufuncs.logical_and(ufuncs.isinf(x), ufuncs.greater(x, 0))


@public(np.isneginf)
def isneginf(x: Any, /, out: None = None) -> Any:
    """Whether an element is -inf."""
    refuse_out("isneginf", out)
    x = _ordered("isneginf", x)
    return ufuncs.logical_and(ufuncs.isinf(x), ufuncs.less(x, 0))


# -- rounding


@public(np.round, np.around)
def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """Rounded to `decimals` places, halves to even. The derivative is 0.

    A negative number of places rounds to tens, hundreds ...
    """
    refuse_out("round", out)
    x = array(a, "round")
    decimals = integer("round", "decimals", decimals)
    if abs(decimals) >= 2**31:
        raise ParameterError(f"round: {decimals} decimals are too many")
    if x.dtype.kind == "b":
        if decimals:
            raise DtypeError(f"round: {describe(x)} to {decimals} decimals")
        return convert(x, np.dtype(np.float16))
    if x.dtype.kind in "iu":
        if decimals >= 0:
            return x
        rounded = convert(round(convert(x, FLOAT), decimals), INT)
        return convert(rounded, x.dtype)
    if decimals == 0:
        return ufuncs.rint(x)
    with np.errstate(over="ignore"):
        factor = x.dtype.type(10.0 ** abs(decimals) if abs(decimals) <= 308 else np.inf)
    if decimals > 0:
        return ufuncs.divide(ufuncs.rint(ufuncs.multiply(x, factor)), factor)
    return ufuncs.multiply(ufuncs.rint(ufuncs.divide(x, factor)), factor)


around = round


@public(np.fix)
def fix(x: Any, out: None = None) -> Any:
    """Rounded toward zero. The derivative is 0."""
    refuse_out("fix", out)
    return ufuncs.trunc(x)


@public(np.modf)
def modf(x: Any, /) -> tuple[Any, Any]:
    """The fractional and the integral part, both with the sign of `x`."""
    x = _floating("modf", x)
    whole = ufuncs.trunc(x)
    rest = where(ufuncs.isinf(x), full_like(x, 0), ufuncs.subtract(x, whole))
    return ufuncs.copysign(rest, x), whole


@public(np.divmod)
def divmod(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """``(x1 // x2, x1 % x2)``."""
    return ufuncs.floor_divide(x1, x2), ufuncs.remainder(x1, x2)


# -- small elementwise functions


def _floating(name: str, x: Any) -> Any:
    """`x` in the floating dtype that NumPy's loops take it to."""
    x = array(x, name)
    return x if is_inexact(x.dtype) else convert(x, least_float(x.dtype))


def least_float(dtype: Dtype) -> Dtype:
    """The smallest floating dtype that holds the integers of `dtype`."""
    return promote(dtype, np.dtype(np.float16))


@public(np.positive)
def positive(x: Any, /) -> Any:
    """``+x``; not defined for bool."""
    x = array(x, "positive")
    if x.dtype == BOOL:
        raise DtypeError("positive: not defined for bool")
    return x


@public(np.fabs)
def fabs(x: Any, /) -> Any:
    """The absolute value, as a floating number. The derivative at 0 is 0."""
    return ufuncs.absolute(_floating("fabs", x))


@public(np.float_power)
def float_power(x1: Any, x2: Any, /) -> Any:
    """x1 ** x2, at least in float64."""
    x, y = array(x1, "float_power"), array(x2, "float_power")
    kind = promote(x.dtype, y.dtype, FLOAT)
    return ufuncs.power(convert(x, kind), convert(y, kind))


@public(np.conjugate)
def conjugate(x: Any, /) -> Any:
    """The complex conjugate; real numbers as they are."""
    x = array(x, "conjugate")
    if x.dtype.kind != "c":
        return convert(x, np.dtype(np.int8)) if x.dtype == BOOL else x
    raise UnsupportedError(f"conjugate: not yet defined for {describe(x)}")


@public(np.real)
def real(val: Any) -> Any:
    """The real part; real numbers as they are."""
    x = array(val, "real")
    return convert(x, np.dtype(f"f{x.dtype.itemsize // 2}")) if x.dtype.kind == "c" else x


@public(np.imag)
def imag(val: Any) -> Any:
    """The imaginary part; 0 for real numbers."""
    x = array(val, "imag")
    if x.dtype.kind != "c":
        return full_like(x, 0)
    raise UnsupportedError(f"imag: not yet defined for {describe(x)}")


@public(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    """The angle of the number in the complex plane: 0 or pi for real numbers, in degrees if `deg`."""
    x, deg = array(z, "angle"), flag("angle", "deg", deg)
    if x.dtype.kind == "c":
        raise UnsupportedError(f"angle: not yet defined for {describe(x)}")
    x = _floating("angle", x) if x.dtype != BOOL else convert(x, FLOAT)
    out = ufuncs.arctan2(full_like(x, 0), x)
    return ufuncs.multiply(out, 180 / pi) if deg else out
