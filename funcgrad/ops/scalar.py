"""What the emitters of elementwise ops share.

An emitter is ``(b, dtype, *values, **params) -> value``: `b` is a builder (`lowering.builder`), `dtype` that of the
last operand, and the values are registers of any lane count (bool is i1). It stands in the `emit` slot, in the block
that defines the op. Nothing here imports a compiler, and an exact op gives the bits that its `evaluate` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype

Emitter = Callable[..., Any]

ELEMENTS = {np.dtype(name): element for name, element in {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64", "float32": "float", "float64": "double",
}.items()}  # fmt: skip
"""Register element type by dtype; what is missing here is not compiled."""


def element_of(dtype: Dtype) -> str:
    """The element type of values of `dtype` in registers."""
    return ELEMENTS[dtype]


def is_unsigned(dtype: Dtype) -> bool:
    """Whether registers of `dtype` hold unsigned integers, or bools."""
    return dtype.kind in "bu"


# -- emitters made from others


def instruction(floats: str, integers: str = "", bools: str = "") -> Emitter:
    """The builder's operation of this name, or another one for integers, or for bools."""
    integers = integers or floats
    names = {"f": floats, "i": integers, "u": integers, "b": bools or integers}
    return lambda b, dtype, *values: getattr(b, names[dtype.kind])(*values)


add = instruction("add", "iadd", "or_")
mul = instruction("mul", "imul", "and_")


def of_floats(emit: Callable[..., Any]) -> Emitter:
    """A function of `vecmath`, ``(b, *values) -> value``: it knows its format by the registers."""
    return lambda b, dtype, *values: emit(b, *values)


def to_integer(round_float: Callable[..., Any]) -> Emitter:
    """Floats rounded by ``round_float(b, x)``; integers and bools stay."""
    return lambda b, dtype, x: round_float(b, x) if dtype.kind == "f" else x


def float_test(test: Callable[..., Any], otherwise: bool) -> Emitter:
    """A truth value: ``test(b, x)`` of floats, `otherwise` for integers and bools."""

    def emit(b: Any, dtype: Dtype, x: Any) -> Any:
        return test(b, x) if dtype.kind == "f" else b.constant(x.type.with_element("i1"), otherwise)

    return emit


def compare(name: str) -> Emitter:
    """A comparison; of unsigned integers and bools as unsigned."""

    def emit(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
        if is_unsigned(dtype) and name not in ("eq", "ne"):
            t = x.type
            return b.emit(t.with_element("i1"), f"icmp u{name} {t.text} {x.text}, {y.text}")
        return b.compare(name, x, y)

    return emit


# -- integers


def absolute(b: Any, dtype: Dtype, x: Any) -> Any:
    """|x|."""
    if dtype.kind == "f":
        return b.abs(x)
    return x if is_unsigned(dtype) else b.select(b.lt(x, 0), b.isub(0, x), x)


def divide(b: Any, dtype: Dtype, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Quotient of integers toward zero, remainder, and where y is 0; never traps."""
    t = x.type
    zero = b.eq(y, 0)
    unsafe = zero
    if not is_unsigned(dtype):
        lowest = b.constant(t, -(1 << (t.bits - 1)))
        unsafe = b.or_(zero, b.and_(b.eq(x, lowest), b.eq(y, -1)))
    safe = b.select(unsafe, b.constant(t, 1), y)
    quotient = b.emit(t, f"{'udiv' if is_unsigned(dtype) else 'sdiv'} {t.text} {x.text}, {safe.text}")
    return quotient, b.isub(x, b.imul(quotient, safe)), zero


def iterate(b: Any, name: str, step: Callable[..., Any], start: tuple[Any, ...]) -> Any:
    """The first of the values `start`, after ``values, more = step(b, *values)`` as long as `more` holds in any lane.

    It is a function of the module, called here: loops inside straight-line code would be compiled at every use.
    """
    types = [v.type for v in start]
    result = types[0]
    name = f"scalar.{name}.{result.suffix}"

    def text() -> str:
        inner = b.inner(result.lanes)
        values, more = step(inner, *[inner.value(f"%x{i}", t) for i, t in enumerate(types)])
        again = inner.any(more)
        phis = [
            f"  %x{i} = phi {t.text} [ %start{i}, %entry ], [ {v.text}, %loop ]"
            for i, (t, v) in enumerate(zip(types, values, strict=True))
        ]
        params = ", ".join([f"{t.text} %start{i}" for i, t in enumerate(types)])
        return "\n".join([
            f"define internal {result.text} @{name}({params}) noinline nounwind {{",
            "entry:", "  br label %loop", "loop:", *phis, *inner.lines,
            f"  br i1 {again.text}, label %loop, label %done", "done:", f"  ret {result.text} {values[0].text}", "}",
        ])  # fmt: skip

    b.need_function(name, types, [result], text)
    return b.call(name, *start)[0]


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
    if dtype.kind == "f" and is_unsigned(source):
        return b.emit(to, f"uitofp {t.text} {x.text} to {to.text}")
    if dtype.kind in "iu" and is_unsigned(source) and to.bits > t.bits:
        return b.emit(to, f"zext {t.text} {x.text} to {to.text}")
    return b.convert(x, to)
