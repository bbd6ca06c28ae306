"""Rounding, sign, remainders, and the neighbours of a floating-point number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, Dtype
from funcgrad.ops import scalar
from funcgrad.ops.arithmetic import div, mul, neg, select, sub
from funcgrad.ops.comparison import PIECEWISE, TRUTH, eq
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import INEXACT, INTEGER, ORDERED, REAL, Domain, Operand, apply

STEPS = "it is piecewise constant: the derivative is 0 wherever there is one"
NUMBERS = INTEGER + REAL

# -- to integers


def floor(x: Operand) -> Any:
    """The largest integer not above x, elementwise, in the dtype of x. Integers and bool stay as they are.

    Notes
    -----
    The derivative is 0, also at the steps.
    """
    return apply(floor_p, x)


floor_p = elementwise(floor, numpy=np.floor, dtypes=ORDERED, exact=True, domain=PIECEWISE)
floor_p.emit = scalar.to_integer(lambda b, x: b.floor(x))
floor_p.def_no_derivative(STEPS)


def ceil(x: Operand) -> Any:
    """The smallest integer not below x, elementwise, in the dtype of x. Integers and bool stay as they are.

    Notes
    -----
    The derivative is 0, also at the steps.
    """
    return apply(ceil_p, x)


ceil_p = elementwise(ceil, numpy=np.ceil, dtypes=ORDERED, exact=True, domain=PIECEWISE)
ceil_p.emit = scalar.to_integer(lambda b, x: b.neg(b.floor(b.neg(x))))
ceil_p.def_no_derivative(STEPS)


def trunc(x: Operand) -> Any:
    """x rounded to an integer toward zero, elementwise, in the dtype of x. Integers, bool stay as they are.

    Notes
    -----
    The derivative is 0, also at the steps.
    """
    return apply(trunc_p, x)


trunc_p = elementwise(trunc, numpy=np.trunc, dtypes=ORDERED, exact=True, domain=PIECEWISE)
trunc_p.emit = scalar.to_integer(lambda b, x: b.copysign(b.floor(b.abs(x)), x))
trunc_p.def_no_derivative(STEPS)


def rint(x: Operand) -> Any:
    """x rounded to the nearest integer, halves to the even one, elementwise, in the dtype of x.

    Notes
    -----
    The derivative is 0, also at the steps.
    """
    return apply(rint_p, x)


rint_p = elementwise(rint, numpy=np.rint, dtypes=INEXACT, exact=True, domain=PIECEWISE)
rint_p.emit = scalar.instruction("rint")
rint_p.def_no_derivative(STEPS)

# -- sign


def sign(x: Operand) -> Any:
    """-1, 0 or 1 as x is negative, zero or positive, elementwise; NaN stays NaN.

    Notes
    -----
    The derivative is 0, also at 0.
    """
    return apply(sign_p, x)


def _sign(b: Any, dtype: Dtype, x: Any) -> Any:
    if dtype.kind == "f":
        return b.select(b.gt(x, 0.0), 1.0, b.select(b.lt(x, 0.0), -1.0, b.select(b.eq(x, 0.0), 0.0, x)))
    one = b.constant(x.type, 1)
    negative = one if scalar.is_unsigned(dtype) else b.constant(x.type, -1)
    return b.select(b.eq(x, 0), 0, b.select(b.lt(x, 0), negative, one))


sign_p = elementwise(sign, numpy=np.sign, dtypes=NUMBERS, exact=True, domain=PIECEWISE)
sign_p.emit = _sign
sign_p.def_no_derivative(STEPS)


def signbit(x: Operand) -> Any:
    """Whether the sign bit of x is set, elementwise: true for negative numbers and for -0.0."""
    return apply(signbit_p, x)


signbit_p = elementwise(signbit, numpy=np.signbit, dtypes=REAL, result=BOOL, exact=True, domain=PIECEWISE)
signbit_p.emit = lambda b, dtype, x: b.lt(b.bits(x), 0)
signbit_p.def_no_derivative(TRUTH)


def absolute(x: Operand) -> Any:
    """The absolute value of x, elementwise, for real numbers. The smallest integer of a dtype stays negative.

    Returns
    -------
    Array in [0, inf]; 0.0 for -0.0.

    Notes
    -----
    The derivative is the sign of x, and 0 at 0: the middle of the subdifferential [-1, 1].
    """
    return apply(abs_p, x)


abs_p = elementwise(
    absolute, name="abs", numpy=np.absolute, dtypes=ORDERED, exact=True,
    domain=Domain(at={(0.0,): ((0.0,), (0.0,)), (-1.0,): ((-1.0,), (0.0,)), (1.0,): ((1.0,), (0.0,))}),
)  # fmt: skip
abs_p.emit = scalar.absolute
abs_p.def_jvp(
    lambda x_dot, y, x: select(eq(x, 0.0), 0.0, mul(x_dot, sign(x)))  # d|x| = sign(x) dx, and 0 at 0
)


def copysign(x: Operand, y: Operand) -> Any:
    """The absolute value of x with the sign bit of y, elementwise.

    Notes
    -----
    The derivative in x is 1 where the sign bits of x and y agree, else -1, also where x is 0; in y it is 0.
    """
    return apply(copysign_p, x, y)


copysign_p = elementwise(
    copysign, numpy=np.copysign, dtypes=REAL, exact=True,
    domain=Domain(at={(0.0, 1.0): ((1.0, 0.0), (0.0, 0.0)), (0.0, -1.0): ((-1.0, 0.0), (0.0, 0.0))}),
)  # fmt: skip
copysign_p.emit = scalar.instruction("copysign")
copysign_p.def_jvp(
    # dz = dx if the signs agree, else -dx
    lambda x_dot, z, x, y: select(eq(signbit(x), signbit(y)), x_dot, neg(x_dot)),
    None,
)

# -- remainders: as instructions, after NumPy's npy_remainder and npy_floor_divide


def _fmod(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    if dtype.kind == "f":
        return b.emit(x.type, f"frem {x.type.text} {x.text}, {y.text}") if b.target.libm else _long_division(b, x, y)
    _, rest, zero = scalar.divide(b, dtype, x, y)
    return b.select(zero, b.constant(rest.type, 0), rest)


def _long_division(b: Any, x: Any, y: Any) -> Any:
    """The remainder of floats toward zero, exactly: of mantissas, as many bits in a step as a word has to spare."""
    digits, word = (23, x.type.with_element("i32")) if x.type.bits == 32 else (52, x.type.with_element("i64"))
    spare = word.bits - digits - 1
    implied, sign = 1 << digits, -(1 << word.bits - 1)

    def parts(z: Any) -> tuple[Any, Any]:  # |z| = mantissa · 2^(exponent − c), for subnormal numbers too
        word_of_z = b.and_(b.bits(z), ~sign)
        exponent, fraction = b.lshr(word_of_z, digits), b.and_(word_of_z, implied - 1)
        normal = b.gt(exponent, 0)
        return b.or_(fraction, b.select(normal, b.constant(word, implied), 0)), b.select(normal, exponent, 1)

    def step(inner: Any, rest: Any, left: Any, divisor: Any, inverse: Any) -> tuple[tuple[Any, ...], Any]:
        by = inner.select(inner.lt(left, spare), left, spare)
        by = inner.select(inner.lt(by, 0), 0, by)
        moved = inner.shl(rest, by)
        # the quotient is below 2^spare: its product with the rounded inverse is off by one at most
        near = inner.mul(inner.emit(x.type, f"uitofp {word.text} {moved.text} to {x.type.text}"), inverse)
        quotient = inner.emit(word, f"fptoui {x.type.text} {near.text} to {word.text}")
        rest = inner.isub(moved, inner.imul(quotient, divisor))
        rest = inner.select(inner.lt(rest, 0), inner.iadd(rest, divisor), rest)
        rest = inner.select(inner.ge(rest, divisor), inner.isub(rest, divisor), rest)
        left = inner.isub(left, by)
        return (rest, left, divisor, inverse), inner.gt(left, 0)

    (mx, ex), (my, ey) = parts(x), parts(y)
    left = b.isub(ex, ey)
    divisor = b.select(b.eq(my, 0), 1, my)
    first = b.emit(word, f"urem {word.text} {mx.text}, {divisor.text}")
    inverse = b.div(1.0, b.emit(x.type, f"uitofp {word.text} {divisor.text} to {x.type.text}"))
    rest = scalar.iterate(b, "remainder", step, (first, left, divisor, inverse))
    number = b.bits(b.emit(x.type, f"uitofp {word.text} {rest.text} to {x.type.text}"))
    places = b.isub(ey, 1)  # rest · 2^places units of the smallest subnormal number
    exponent = b.iadd(b.lshr(number, digits), b.isub(places, (1 << word.bits - digits - 2) - 2 + digits))
    small = b.shl(rest, b.select(b.lt(places, digits), places, digits))
    large = b.or_(b.and_(number, implied - 1), b.shl(exponent, digits))
    found = b.select(b.eq(rest, 0), 0, b.select(b.gt(exponent, 0), large, small))
    found = b.from_bits(b.or_(found, b.and_(b.bits(x), sign)))
    bad = b.or_(b.unordered(x, y), b.or_(b.eq(y, 0.0), b.eq(b.abs(x), math.inf)))
    return b.select(bad, math.nan, b.select(b.lt(left, 0), x, found))


def _turns(b: Any, dtype: Dtype, rest: Any, y: Any) -> Any:
    """Where rounding down differs from rounding toward zero: the remainder is not 0 and its sign is not that of y."""
    if dtype.kind == "f":
        return b.and_(b.ne(rest, 0.0), b.xor(b.lt(y, 0.0), b.lt(rest, 0.0)))
    return b.and_(b.ne(rest, 0), b.lt(b.xor(rest, y), 0))


def _remainder(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    rest = _fmod(b, dtype, x, y)
    if scalar.is_unsigned(dtype):
        return rest
    turned = b.select(_turns(b, dtype, rest, y), scalar.add(b, dtype, rest, y), rest)
    if dtype.kind == "i":
        return b.select(b.eq(y, 0), 0, turned)
    return b.select(b.and_(b.eq(rest, 0.0), b.ne(y, 0.0)), b.copysign(0.0, y), turned)


def _floor_divide(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    if dtype.kind != "f":
        q, rest, zero = scalar.divide(b, dtype, x, y)
        if not scalar.is_unsigned(dtype):
            q = b.select(_turns(b, dtype, rest, y), b.isub(q, 1), q)
        return b.select(zero, b.constant(q.type, 0), q)
    rest, plain = _fmod(b, dtype, x, y), b.div(x, y)
    q = b.div(b.sub(x, rest), y)
    q = b.select(_turns(b, dtype, rest, y), b.sub(q, 1.0), q)
    down = b.floor(q)
    down = b.select(b.gt(b.sub(q, down), 0.5), b.add(down, 1.0), down)
    return b.select(b.eq(y, 0.0), plain, b.select(b.ne(q, 0.0), down, b.copysign(0.0, plain)))


def _minus_whole(y_dot: Any, z: Any, x: Any, y: Any) -> Any:
    n = rint(div(sub(x, z), y))  # z = x - n y; trunc(x / y) may be off by one, where x / y rounds to an integer
    return select(eq(n, 0.0), 0.0, neg(mul(y_dot, n)))


def fmod(x: Operand, y: Operand) -> Any:
    """The remainder of x / y rounded toward zero, elementwise: x - trunc(x / y) y, computed exactly.

    Returns
    -------
    Array with the sign of x. NaN (integers: 0) where y is 0.

    Notes
    -----
    The derivative in x is 1, in y -trunc(x / y), also where x is a multiple of y and fmod jumps.
    """
    return apply(fmod_p, x, y)


fmod_p = elementwise(
    fmod, numpy=np.fmod, dtypes=NUMBERS, exact=True,
    domain=Domain((2.2, 1.0), (2.9, 1.05), at={  # between two jumps
        (2.0, 1.0): ((1.0, -2.0), (0.0, 0.0)),
        (-2.5, 1.0): ((1.0, 2.0), (0.0, 0.0)),
        (0.5, 2.0): ((1.0, 0.0), (0.0, 0.0)),
        (-7.0, 3.0): ((1.0, 2.0), (0.0, 0.0)),
    }),
)  # fmt: skip
fmod_p.emit = _fmod
fmod_p.def_jvp(lambda x_dot, z, x, y: x_dot, _minus_whole)  # dz = dx - trunc(x / y) dy


def remainder(x: Operand, y: Operand) -> Any:
    """The remainder of x / y rounded down, elementwise: x - floor(x / y) y; Python's ``%``.

    Returns
    -------
    Array with the sign of y. NaN (integers: 0) where y is 0.

    Notes
    -----
    The derivative in x is 1, in y -floor(x / y), also where x is a multiple of y and the remainder jumps.
    """
    return apply(remainder_p, x, y)


remainder_p = elementwise(
    remainder, numpy=np.remainder, dtypes=NUMBERS, exact=True,
    domain=Domain((2.2, 1.0), (2.9, 1.05), at={  # between two jumps
        (2.0, 1.0): ((1.0, -2.0), (0.0, 0.0)),
        (-7.0, 3.0): ((1.0, 3.0), (0.0, 0.0)),
        (-2.5, 1.0): ((1.0, 3.0), (0.0, 0.0)),
        (0.5, 2.0): ((1.0, 0.0), (0.0, 0.0)),
    }),
)  # fmt: skip
remainder_p.emit = _remainder
remainder_p.def_jvp(lambda x_dot, z, x, y: x_dot, _minus_whole)  # dz = dx - floor(x / y) dy


def floor_divide(x: Operand, y: Operand) -> Any:
    """x / y rounded down, elementwise, in the dtype of the operands; Python's ``//``.

    Notes
    -----
    Integers give 0 where y is 0, and the smallest integer divided by -1 wraps to itself, as in NumPy.
    The derivative is 0, also at the steps.
    """
    return apply(floor_divide_p, x, y)


floor_divide_p = elementwise(floor_divide, numpy=np.floor_divide, dtypes=NUMBERS, exact=True, domain=PIECEWISE)
floor_divide_p.emit = _floor_divide
floor_divide_p.def_no_derivative(STEPS)

# -- steps


def heaviside(x: Operand, y: Operand) -> Any:
    """The step function, elementwise: 0 where x < 0, y where x is 0, 1 where x > 0; NaN where x is NaN.

    Notes
    -----
    The derivative in x is 0, also at 0; in y it is 1 where x is 0, else 0.
    """
    return apply(heaviside_p, x, y)


def _heaviside(b: Any, dtype: Dtype, x: Any, h: Any) -> Any:
    above = b.select(b.gt(x, 0.0), b.constant(x.type, 1.0), x)
    return b.select(b.lt(x, 0.0), 0.0, b.select(b.eq(x, 0.0), h, above))


heaviside_p = elementwise(
    heaviside, numpy=np.heaviside, dtypes=REAL, exact=True,
    domain=Domain(at={(0.0, 0.5): ((0.0, 1.0), (0.0, 0.0)), (2.0, 0.5): ((0.0, 0.0), (0.0, 0.0))}),
)  # fmt: skip
heaviside_p.emit = _heaviside
heaviside_p.def_jvp(None, lambda y_dot, z, x, y: select(eq(x, 0.0), y_dot, 0.0))  # dz = dy where x is 0

# -- neighbours


def nextafter(x: Operand, y: Operand) -> Any:
    """The floating-point number next to x in the direction of y, elementwise; y itself where they are equal.

    Notes
    -----
    It acts on the representation of a number, not on its value: the derivative is 0.
    """
    return apply(nextafter_p, x, y)


def _nextafter(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    inward = b.xor(b.gt(y, x), b.gt(x, 0.0))
    bits = b.bits(x)
    moved = b.from_bits(b.select(inward, b.isub(bits, 1), b.iadd(bits, 1)))
    smallest = b.constant(x.type, float(np.finfo(dtype).smallest_subnormal))
    moved = b.select(b.eq(x, 0.0), b.copysign(smallest, y), moved)
    return b.select(b.unordered(x, y), b.add(x, y), b.select(b.eq(x, y), y, moved))


nextafter_p = elementwise(nextafter, numpy=np.nextafter, dtypes=REAL, exact=True, domain=PIECEWISE)
nextafter_p.emit = _nextafter
nextafter_p.def_no_derivative("it acts on the representation of a number, not on its value")


def spacing(x: Operand) -> Any:
    """The distance from x to the next floating-point number away from zero, with the sign of x, elementwise.

    Notes
    -----
    The derivative is 0: it is constant between powers of 2.
    """
    return apply(spacing_p, x)


def _spacing(b: Any, dtype: Dtype, x: Any) -> Any:
    x = b.add(x, 0.0)  # -0.0 counts as 0.0
    return b.sub(b.from_bits(b.iadd(b.bits(x), 1)), x)


spacing_p = elementwise(spacing, numpy=np.spacing, dtypes=REAL, exact=True, domain=PIECEWISE)
spacing_p.emit = _spacing
spacing_p.def_no_derivative(STEPS)
