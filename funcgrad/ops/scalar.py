"""Elementwise ops written as instructions: what a kernel emits for each.

An emitter is ``(b, dtype, *values, **params) -> value``: `b` is a builder (`lowering.builder`), `dtype` that of the
operands, and the values are registers of any lane count (bool is i1). Nothing here imports a compiler, and an exact
op gives the bits that its `evaluate` gives. `Op.emit` holds the emitter; an op without one is evaluated with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

from funcgrad.base.dtypes import Dtype
from funcgrad.core.primitive import registry
from funcgrad.ops import vecmath

Emitter = Callable[..., Any]

ELEMENTS = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64", "float32": "float", "float64": "double",
}  # fmt: skip
"""Register element type by dtype name; what is missing here is not compiled."""


def element_of(dtype: Dtype) -> str:
    """The element type of values of `dtype` in registers."""
    return ELEMENTS[dtype.name]


def _unsigned(dtype: Dtype) -> bool:
    return dtype.kind in "bu"


# -- arithmetic


def add(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x + y; `or` of bools."""
    return b.add(x, y) if dtype.kind == "f" else b.or_(x, y) if dtype.kind == "b" else b.iadd(x, y)


def sub(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x - y."""
    return b.sub(x, y) if dtype.kind == "f" else b.isub(x, y)


def mul(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x * y; `and` of bools."""
    return b.mul(x, y) if dtype.kind == "f" else b.and_(x, y) if dtype.kind == "b" else b.imul(x, y)


def neg(b: Any, dtype: Dtype, x: Any) -> Any:
    """-x."""
    return b.neg(x) if dtype.kind == "f" else b.isub(0, x)


def compare(name: str) -> Emitter:
    """A comparison; of unsigned integers and bools as unsigned."""

    def emit(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
        if _unsigned(dtype) and name not in ("eq", "ne"):
            t = x.type
            return b.emit(t.with_element("i1"), f"icmp u{name} {t.text} {x.text}, {y.text}")
        return b.compare(name, x, y)

    return emit


def _false(b: Any, x: Any) -> Any:
    return b.constant(x.type.with_element("i1"), 0)


def isnan(b: Any, dtype: Dtype, x: Any) -> Any:
    """x is NaN."""
    return b.isnan(x) if dtype.kind == "f" else _false(b, x)


def isinf(b: Any, dtype: Dtype, x: Any) -> Any:
    """|x| is infinite."""
    return b.eq(b.abs(x), float("inf")) if dtype.kind == "f" else _false(b, x)


def isfinite(b: Any, dtype: Dtype, x: Any) -> Any:
    """|x| is finite."""
    return b.lt(b.abs(x), float("inf")) if dtype.kind == "f" else b.not_(_false(b, x))


def maximum(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x where x > y or x is NaN, else y."""
    takes = compare("gt")(b, dtype, x, y)
    return b.select(b.or_(takes, b.isnan(x)) if dtype.kind == "f" else takes, x, y)


def minimum(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x where x < y or x is NaN, else y."""
    takes = compare("lt")(b, dtype, x, y)
    return b.select(b.or_(takes, b.isnan(x)) if dtype.kind == "f" else takes, x, y)


def fmax(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x where x > y or y is NaN, else y."""
    takes = compare("gt")(b, dtype, x, y)
    return b.select(b.or_(takes, b.isnan(y)) if dtype.kind == "f" else takes, x, y)


def fmin(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x where x < y or y is NaN, else y."""
    takes = compare("lt")(b, dtype, x, y)
    return b.select(b.or_(takes, b.isnan(y)) if dtype.kind == "f" else takes, x, y)


# -- rounding and sign


def floor(b: Any, dtype: Dtype, x: Any) -> Any:
    """The largest integer not above x."""
    return b.floor(x) if dtype.kind == "f" else x


def ceil(b: Any, dtype: Dtype, x: Any) -> Any:
    """The smallest integer not below x."""
    return b.neg(b.floor(b.neg(x))) if dtype.kind == "f" else x


def trunc(b: Any, dtype: Dtype, x: Any) -> Any:
    """x without its fraction."""
    return b.copysign(b.floor(b.abs(x)), x) if dtype.kind == "f" else x


def absolute(b: Any, dtype: Dtype, x: Any) -> Any:
    """|x|."""
    if dtype.kind == "f":
        return b.abs(x)
    return x if _unsigned(dtype) else b.select(b.lt(x, 0), b.isub(0, x), x)


def sign(b: Any, dtype: Dtype, x: Any) -> Any:
    """-1, 0 or 1; NaN stays."""
    if dtype.kind == "f":
        return b.select(b.gt(x, 0.0), 1.0, b.select(b.lt(x, 0.0), -1.0, b.select(b.eq(x, 0.0), 0.0, x)))
    if _unsigned(dtype):
        return b.select(b.ne(x, 0), b.constant(x.type, 1), 0)
    return b.select(b.gt(x, 0), b.constant(x.type, 1), b.select(b.lt(x, 0), b.constant(x.type, -1), 0))


def heaviside(b: Any, dtype: Dtype, x: Any, h: Any) -> Any:
    """0 below 0, h at 0, 1 above; NaN stays."""
    above = b.select(b.gt(x, 0.0), b.constant(x.type, 1.0), x)
    return b.select(b.lt(x, 0.0), 0.0, b.select(b.eq(x, 0.0), h, above))


# -- integers


def _divide(b: Any, dtype: Dtype, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Quotient toward zero, remainder, and where y is 0; never traps."""
    t = x.type
    zero = b.eq(y, 0)
    unsafe = zero
    if not _unsigned(dtype):
        lowest = b.constant(t, -(1 << (t.bits - 1)))
        unsafe = b.or_(zero, b.and_(b.eq(x, lowest), b.eq(y, -1)))
    safe = b.select(unsafe, b.constant(t, 1), y)
    quotient = b.emit(t, f"{'udiv' if _unsigned(dtype) else 'sdiv'} {t.text} {x.text}, {safe.text}")
    return quotient, b.isub(x, b.imul(quotient, safe)), zero


def _floor_adjust(b: Any, dtype: Dtype, rest: Any, y: Any) -> Any:
    """Where the floor differs from the truncation: the remainder is not 0 and its sign is not that of y."""
    return b.and_(b.ne(rest, 0), b.lt(b.xor(rest, y), 0))


def floor_divide(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """The floor of x / y; 0 where y is 0."""
    if dtype.kind == "f":
        return _float_floor_divide(b, x, y)
    q, rest, zero = _divide(b, dtype, x, y)
    if not _unsigned(dtype):
        q = b.select(_floor_adjust(b, dtype, rest, y), b.isub(q, 1), q)
    return b.select(zero, b.constant(q.type, 0), q)


def remainder(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x - y * floor(x / y); 0 where an integer y is 0."""
    if dtype.kind == "f":
        return _float_remainder(b, x, y)
    _, rest, zero = _divide(b, dtype, x, y)
    if not _unsigned(dtype):
        rest = b.select(_floor_adjust(b, dtype, rest, y), b.iadd(rest, y), rest)
    return b.select(zero, b.constant(rest.type, 0), rest)


def fmod(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """The remainder with the sign of x; 0 where an integer y is 0."""
    if dtype.kind == "f":
        return _frem(b, x, y)
    _, rest, zero = _divide(b, dtype, x, y)
    return b.select(zero, b.constant(rest.type, 0), rest)


def _frem(b: Any, x: Any, y: Any) -> Any:
    return b.emit(x.type, f"frem {x.type.text} {x.text}, {y.text}")


def _float_remainder(b: Any, x: Any, y: Any) -> Any:
    mod = _frem(b, x, y)  # NumPy's npy_remainder
    differ = b.xor(b.lt(y, 0.0), b.lt(mod, 0.0))
    adjusted = b.select(b.ne(mod, 0.0), b.select(differ, b.add(mod, y), mod), b.copysign(0.0, y))
    return b.select(b.eq(y, 0.0), mod, adjusted)


def _float_floor_divide(b: Any, x: Any, y: Any) -> Any:
    mod = _frem(b, x, y)  # NumPy's npy_floor_divide
    plain = b.div(x, y)
    div = b.div(b.sub(x, mod), y)
    differ = b.xor(b.lt(y, 0.0), b.lt(mod, 0.0))
    div = b.select(b.and_(b.ne(mod, 0.0), differ), b.sub(div, 1.0), div)
    down = b.floor(div)
    down = b.select(b.gt(b.sub(div, down), 0.5), b.add(down, 1.0), down)
    result = b.select(b.ne(div, 0.0), down, b.copysign(0.0, plain))
    return b.select(b.eq(y, 0.0), plain, result)


def _in_width(b: Any, x: Any, y: Any) -> Any:
    t = x.type
    return b.emit(t.with_element("i1"), f"icmp ult {t.text} {y.text}, {b.constant(t, t.bits).text}")


def left_shift(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """x * 2^y, wrapping; 0 for y at or beyond the width."""
    fits = _in_width(b, x, y)
    return b.select(fits, b.shl(x, b.select(fits, y, 0)), b.constant(x.type, 0))


def right_shift(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    """The floor of x / 2^y; 0 or the sign for y at or beyond the width."""
    fits = _in_width(b, x, y)
    if _unsigned(dtype):
        return b.select(fits, b.lshr(x, b.select(fits, y, 0)), b.constant(x.type, 0))
    return b.ashr(x, b.select(fits, y, b.constant(x.type, x.type.bits - 1)))


def bitwise_count(b: Any, dtype: Dtype, x: Any) -> Any:
    """The number of bits set in |x|, as uint8."""
    return b.convert(b.intrinsic("ctpop", absolute(b, dtype, x)), x.type.with_element("i8"))


def reciprocal(b: Any, dtype: Dtype, x: Any) -> Any:
    """1 / x; of integers truncated, 0 at 0."""
    if dtype.kind == "f":
        return b.div(1.0, x)
    kept = b.eq(x, 1) if _unsigned(dtype) else b.or_(b.eq(x, 1), b.eq(x, -1))
    return b.select(kept, x, b.constant(x.type, 0))


def check_index(b: Any, dtype: Dtype, index: Any, *, axis: int, length: int, window: int, of: str) -> tuple[Any, Any]:
    """Positions counted from the start, and where they are outside."""
    counted = b.select(b.lt(index, 0), b.iadd(index, length), index)
    return counted, b.or_(b.lt(counted, 0), b.gt(counted, length - window))


def check_fits(b: Any, dtype: Dtype, x: Any, *, low: int, high: int, target: str) -> tuple[Any, Any]:
    """The values, and where they are outside a range."""
    return x, b.or_(b.lt(x, low), b.gt(x, high))


# -- conversion


def convert(b: Any, source: Dtype, x: Any, *, dtype: Dtype, weak: bool) -> Any:
    """x as `dtype`: floats to integers saturate, NaN gives 0; anything to bool is x != 0."""
    t = x.type
    to = t.with_element(element_of(dtype))
    if dtype.kind == "b":
        return x if source.kind == "b" else b.ne(x, 0.0 if source.kind == "f" else 0)
    if source.kind == "f" and dtype.kind in "iu":
        name = f"llvm.fpto{'u' if dtype.kind == 'u' else 's'}i.sat.{to.suffix}.{t.suffix}"
        b.shared.declares[f"declare {to.text} @{name}({t.text})"] = None
        return b.emit(to, f"call {to.text} @{name}({t.text} {x.text})")
    if dtype.kind == "f" and _unsigned(source):
        return b.emit(to, f"uitofp {t.text} {x.text} to {to.text}")
    if dtype.kind in "iu" and _unsigned(source) and to.bits > t.bits:
        return b.emit(to, f"zext {t.text} {x.text} to {to.text}")
    return b.convert(x, to)


def _mask(combine: Emitter) -> Emitter:
    return lambda b, dtype, t, c: b.select(b.eq(t, 0.0), t, combine(b, dtype, t, c))


def _function(emit: Emitter) -> Emitter:
    """An elementary function of `vecmath`, which knows dtypes by the registers."""
    return lambda b, dtype, *values: emit(b, *values)


EMITTERS: dict[str, Emitter] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "neg": neg,
    "div": lambda b, dtype, x, y: b.div(x, y),
    "select": lambda b, dtype, c, x, y: b.select(c, x, y),
    "mask_mul": _mask(mul),
    "mask_both": _mask(lambda b, dtype, t, c: b.select(b.eq(c, 0.0), c, mul(b, dtype, t, c))),
    "mask_div": _mask(lambda b, dtype, x, y: b.div(x, y)),
    "stop_gradient": lambda b, dtype, x: x,
    "convert": convert,
    **{name: compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "isnan": isnan,
    "isinf": isinf,
    "isfinite": isfinite,
    "logical_and": lambda b, dtype, x, y: b.and_(x, y),
    "logical_or": lambda b, dtype, x, y: b.or_(x, y),
    "logical_xor": lambda b, dtype, x, y: b.xor(x, y),
    "logical_not": lambda b, dtype, x: b.not_(x),
    "bitwise_and": lambda b, dtype, x, y: b.and_(x, y),
    "bitwise_or": lambda b, dtype, x, y: b.or_(x, y),
    "bitwise_xor": lambda b, dtype, x, y: b.xor(x, y),
    "invert": lambda b, dtype, x: b.not_(x),
    "left_shift": left_shift,
    "right_shift": right_shift,
    "bitwise_count": bitwise_count,
    "maximum": maximum,
    "minimum": minimum,
    "fmax": fmax,
    "fmin": fmin,
    "square": lambda b, dtype, x: mul(b, dtype, x, x),
    "sqrt": lambda b, dtype, x: b.sqrt(x),
    "reciprocal": reciprocal,
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "rint": lambda b, dtype, x: b.rint(x),
    "sign": sign,
    "signbit": lambda b, dtype, x: b.lt(b.bits(x), 0),
    "abs": absolute,
    "copysign": lambda b, dtype, x, y: b.copysign(x, y),
    "fmod": fmod,
    "remainder": remainder,
    "floor_divide": floor_divide,
    "heaviside": heaviside,
    "one_minus_square": lambda b, dtype, x: b.mul(b.sub(1.0, x), b.add(1.0, x)),
    "deg2rad": lambda b, dtype, x: b.mul(x, float(dtype.type(pi / 180))),
    "rad2deg": lambda b, dtype, x: b.mul(x, float(dtype.type(180 / pi))),
    **{
        name: _function(emit)
        for name, emit in {
            "exp": vecmath.exp,
            "exp2": vecmath.exp2,
            "expm1": vecmath.expm1,
            "log": vecmath.log,
            "log2": vecmath.log2,
            "log10": vecmath.log10,
            "log1p": vecmath.log1p,
            "logaddexp": vecmath.logaddexp,
            "sigmoid": vecmath.sigmoid,
            "sin": vecmath.sin,
            "cos": vecmath.cos,
            "tan": vecmath.tan,
            "arcsin": vecmath.asin,
            "arccos": vecmath.acos,
            "arctan": vecmath.atan,
            "arctan2": vecmath.atan2,
            "sinh": vecmath.sinh,
            "cosh": vecmath.cosh,
            "tanh": vecmath.tanh,
            "arcsinh": vecmath.asinh,
            "arccosh": vecmath.acosh,
            "arctanh": vecmath.atanh,
            "erf": vecmath.erf,
            "erfc": vecmath.erfc,
            "cbrt": vecmath.cbrt,
            "hypot": vecmath.hypot,
            "pow": vecmath.pow,
        }.items()
    },
}


def install() -> None:
    """Fill the `emit` and `check` slots of the ops."""
    for name, emitter in EMITTERS.items():
        registry[name].emit = emitter
    registry["check_index"].check = check_index
    registry["check_fits"].check = check_fits


__all__ = ["ELEMENTS", "EMITTERS", "Emitter", "element_of", "install"]
