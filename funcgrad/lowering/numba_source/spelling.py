"""Elementwise ops as Numba expressions: one line for each, by name of the primitive.

A spelling is a text with ``{x}``, ``{y}``, ``{z}`` for the operands (names, literals or elements, so no parentheses
are needed), or a function ``(dtype, *operands, **params) -> text`` where it depends on the dtype. A call of a name in
`helpers` brings that helper into the preamble.

Numba's integers grow: int32 + int32 is int64 there, and uint64 + int64 a float. So results narrower than 64 bits
are converted back, and every constant is written in its dtype; float64, int64 and bool need neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.base.errors import UnsupportedError
from funcgrad.core.ir import Equation, Literal
from funcgrad.lowering.numba_source.helpers import called, helper, sinc_name

Spelling = str | Callable[..., str]

ELEMENTS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
"""Names of the dtypes that this lowering takes."""

PLAIN = ("bool", "int64", "float64")  # their constants and results need no conversion


def formless(e: Equation, what: str = "") -> UnsupportedError:
    """The error for an equation that Numba code cannot say."""
    return UnsupportedError(
        f"{what or e.primitive.name} has no Numba form yet",
        hint="leave it out of this function, and call the parts around it; plain jit (no lowering=) compiles all of it",
        source=e.source,
    )


def dtype_text(dtype: Dtype) -> str:
    """A dtype as an expression."""
    return "np.bool_" if dtype.kind == "b" else f"np.{dtype.name}"


def constant(dtype: Dtype, value: Any) -> str:
    """A number as an expression of exactly this value and dtype."""
    if dtype.kind == "b":
        return str(bool(value))
    if dtype.kind in "iu":
        return str(int(value)) if dtype.name in PLAIN else f"{dtype_text(dtype)}({int(value)})"
    x = float(value)
    text = "np.nan" if np.isnan(x) else ("np.inf" if x > 0 else "-np.inf") if np.isinf(x) else _shortest(dtype, x)
    return text if dtype.name in PLAIN else f"{dtype_text(dtype)}({text})"


def _shortest(dtype: Dtype, x: float) -> str:
    """Digits that give back this number: of a float32 those that do after rounding to float32."""
    short = str(dtype.type(x))
    return short if dtype.type(float(short)) == x else repr(x)


def literal(a: Literal) -> str:
    """A constant of the Program."""
    return constant(a.aval.dtype, a.value)


def expression(e: Equation, operands: list[str]) -> str:
    """The right side of an elementwise equation."""
    spelling = SPELLINGS[e.primitive.name]
    source, target = e.inputs[-1].aval.dtype, e.outputs[0].aval.dtype
    if e.primitive.name == "convert":
        return _convert(source, target, operands[0])
    return narrow(target, spelled(spelling, source, operands, e.params))


def spelled(spelling: Spelling, dtype: Dtype, operands: list[str], params: dict[str, Any]) -> str:
    """An op of operands of this dtype, in whatever type Numba gives it."""
    if isinstance(spelling, str):
        return spelling.format(**dict(zip("xyz", operands, strict=False)))
    return spelling(dtype, *operands, **params)


def narrow(dtype: Dtype, text: str) -> str:
    """`text` as a value of `dtype`, where Numba could have made a wider one."""
    helped = any([helper(name) is not None for name in called(text)])
    wide = (dtype.kind in "iu" and (dtype.itemsize < 8 or helped)) or (dtype.name == "float32" and helped)
    return f"{dtype_text(dtype)}({text})" if wide and not re.fullmatch(r"\w+", text) else text


def by_kind(floats: str, integers: str = "", bools: str = "", unsigned: str = "") -> Spelling:
    """Spellings by kind of dtype; an empty one is that of the kind before it."""
    integers = integers or floats
    texts = {"f": floats, "i": integers, "u": unsigned or integers, "b": bools or unsigned or integers}
    return lambda dtype, *operands, **params: spelled(texts[dtype.kind], dtype, list(operands), params)


# -- where the dtype matters


def _convert(source: Dtype, target: Dtype, x: str) -> str:
    """x as `target`: floats to integers saturate, NaN gives 0; anything to bool is x != 0."""
    if source == target:
        return x
    if target.kind == "b":
        return f"{x} != 0"
    if source.kind == "f" and target.kind in "iu":
        return f"to_{target.name}({x})"
    return f"{dtype_text(target)}({x})"


def _zero_unless(condition: str, text: str) -> Spelling:
    return lambda dtype, x, y: f"{text} if {condition} else {constant(dtype, 0)}".format(
        x=x, y=y, width=8 * dtype.itemsize
    )


def _left_shift(dtype: Dtype, x: str, y: str) -> str:
    fits = "{y} < {width}" if dtype.kind == "u" else "0 <= {y} < {width}"
    return _zero_unless(fits, "{x} << {y}")(dtype, x, y)  # type: ignore[operator]


def _right_shift(dtype: Dtype, x: str, y: str) -> str:
    width = 8 * dtype.itemsize
    if dtype.kind == "u":
        return _zero_unless("{y} < {width}", "{x} >> {y}")(dtype, x, y)  # type: ignore[operator]
    return f"{x} >> ({y} if 0 <= {y} < {width} else {width - 1})"


def _magnitude(dtype: Dtype, x: str) -> str:
    return f"np.uint64(abs(np.int64({x})))" if dtype.kind == "i" else f"np.uint64({x})"


def _of_magnitudes(name: str) -> Spelling:
    return lambda dtype, *operands: f"{name}({', '.join([_magnitude(dtype, v) for v in operands])})"


def _reciprocal(dtype: Dtype, x: str) -> str:
    if dtype.kind == "f":
        return f"{constant(dtype, 1)} / {x}"
    kept = f"{x} == 1" if dtype.kind == "u" else f"{x} == 1 or {x} == -1"
    return f"{x} if {kept} else {constant(dtype, 0)}"


def _sign(dtype: Dtype, x: str) -> str:
    if dtype.kind == "f":
        return f"sign({x})"
    one, zero = constant(dtype, 1), constant(dtype, 0)
    return f"{one} if {x} > 0 else {zero}" if dtype.kind == "u" else f"1 if {x} > 0 else -1 if {x} < 0 else 0"


def _heaviside(dtype: Dtype, x: str, y: str) -> str:
    one, zero = constant(dtype, 1), constant(dtype, 0)
    return f"{zero} if {x} < 0 else {y} if {x} == 0 else {one} if {x} > 0 else {x}"


def _one_minus_square(dtype: Dtype, x: str) -> str:
    one = constant(dtype, 1)
    return f"({one} - {x}) * ({one} + {x})"


def _scaled(factor: float) -> Spelling:
    return lambda dtype, x: f"{x} * {constant(dtype, dtype.type(factor))}"


SPELLINGS: dict[str, Spelling] = {
    "add": by_kind("{x} + {y}", bools="{x} | {y}"),
    "sub": "{x} - {y}",
    "mul": by_kind("{x} * {y}", bools="{x} & {y}"),
    "neg": "-{x}",
    "div": "{x} / {y}",
    "select": "{y} if {x} else {z}",
    "mask_mul": "{x} if {x} == 0 else {x} * {y}",
    "mask_both": "{x} if {x} == 0 else {y} if {y} == 0 else {x} * {y}",
    "mask_div": "{x} if {x} == 0 else {x} / {y}",
    "stop_gradient": "{x}",
    "convert": "{x}",  # see `expression`
    "eq": "{x} == {y}",
    "ne": "{x} != {y}",
    "lt": "{x} < {y}",
    "le": "{x} <= {y}",
    "gt": "{x} > {y}",
    "ge": "{x} >= {y}",
    "isnan": by_kind("np.isnan({x})", "False"),
    "isinf": by_kind("np.isinf({x})", "False"),
    "isfinite": by_kind("np.isfinite({x})", "True"),
    "logical_and": "{x} and {y}",
    "logical_or": "{x} or {y}",
    "logical_xor": "{x} != {y}",
    "logical_not": "not {x}",
    "bitwise_and": "{x} & {y}",
    "bitwise_or": "{x} | {y}",
    "bitwise_xor": "{x} ^ {y}",
    "invert": by_kind("", "~{x}", bools="not {x}"),
    "left_shift": _left_shift,
    "right_shift": _right_shift,
    "bitwise_count": _of_magnitudes("count_ones"),
    "gcd": _of_magnitudes("gcd"),
    "lcm": _of_magnitudes("lcm"),
    "maximum": by_kind("{x} if {x} > {y} or np.isnan({x}) else {y}", "{x} if {x} > {y} else {y}"),
    "minimum": by_kind("{x} if {x} < {y} or np.isnan({x}) else {y}", "{x} if {x} < {y} else {y}"),
    "fmax": by_kind("{x} if {x} > {y} or np.isnan({y}) else {y}", "{x} if {x} > {y} else {y}"),
    "fmin": by_kind("{x} if {x} < {y} or np.isnan({y}) else {y}", "{x} if {x} < {y} else {y}"),
    "square": "{x} * {x}",
    "one_minus_square": _one_minus_square,
    "sqrt": "np.sqrt({x})",
    "cbrt": "np.cbrt({x})",
    "reciprocal": _reciprocal,
    "pow": by_kind("{x} ** {y}", "integer_power({x}, {y})", unsigned="unsigned_power(np.uint64({x}), np.uint64({y}))"),
    "hypot": "np.hypot({x}, {y})",
    "floor": by_kind("np.floor({x})", "{x}"),
    "ceil": by_kind("np.ceil({x})", "{x}"),
    "trunc": by_kind("np.trunc({x})", "{x}"),
    "rint": "np.rint({x})",
    "sign": _sign,
    "signbit": "np.signbit({x})",
    "abs": by_kind("np.abs({x})", "-{x} if {x} < 0 else {x}", unsigned="{x}"),
    "copysign": "np.copysign({x}, {y})",
    "fmod": by_kind("np.fmod({x}, {y})", "integer_fmod({x}, {y})", unsigned="{x} % {y} if {y} != 0 else {y}"),
    "remainder": by_kind("remainder({x}, {y})", "integer_remainder({x}, {y})",
                         unsigned="{x} % {y} if {y} != 0 else {y}"),
    "floor_divide": by_kind("floor_divide({x}, {y})", "integer_divide({x}, {y})",
                            unsigned="{x} // {y} if {y} != 0 else {y}"),
    "heaviside": _heaviside,
    "nextafter": "np.nextafter({x}, {y})",
    "spacing": lambda dtype, x: f"np.spacing({x} + {constant(dtype, 0)})",  # of -0.0 as of 0.0
    "deg2rad": _scaled(pi / 180),
    "rad2deg": _scaled(180 / pi),
    "exp": "np.exp({x})",
    "exp2": "np.exp2({x})",
    "expm1": "np.expm1({x})",
    "log": "np.log({x})",
    "log2": "np.log2({x})",
    "log10": "np.log10({x})",
    "log1p": "np.log1p({x})",
    "logaddexp": "np.logaddexp({x}, {y})",
    "logaddexp2": "np.logaddexp2({x}, {y})",
    "sigmoid": "sigmoid({x})",
    "sin": "np.sin({x})",
    "cos": "np.cos({x})",
    "tan": "np.tan({x})",
    "arcsin": "np.arcsin({x})",
    "arccos": "np.arccos({x})",
    "arctan": "np.arctan({x})",
    "arctan2": "np.arctan2({x}, {y})",
    "sinh": "np.sinh({x})",
    "cosh": "np.cosh({x})",
    "tanh": "np.tanh({x})",
    "arcsinh": "np.arcsinh({x})",
    "arccosh": "np.arccosh({x})",
    "arctanh": "np.arctanh({x})",
    "erf": "math.erf({x})",
    "erfc": "math.erfc({x})",
    "erfinv": "erfinv({x})",
    "xlogy": "xlogy({x}, {y})",
    "xlog1py": "xlog1py({x}, {y})",
    "sinc": lambda dtype, x, order=0: f"{sinc_name(order)}({x})",
}  # fmt: skip
"""The Numba spelling of every elementwise op. A new op needs one line here."""

CHECKS: dict[str, tuple[str, str]] = {
    "check_index": ("{x} + {length} if {x} < 0 else {x}", "not 0 <= {out} <= {last}"),
    "check_fits": ("{x}", "not {low} <= {out} <= {high}"),
}
"""For each check what it hands on, and the condition, of that, under which it fails."""


def check_texts(e: Equation, x: str, out: str) -> tuple[str, str]:
    """What a check hands on, and its condition."""
    p = dict(e.params)
    last = p.get("length", 0) - p.get("window", 0)
    counted, outside = CHECKS[e.primitive.name]
    return counted.format(x=x, **p), outside.format(x=x, out=out, last=last, **p)
