"""Powers and roots."""

from __future__ import annotations

from math import inf, log as log_of, nan
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.ops import scalar, vecmath
from funcgrad.ops.arithmetic import add, div, mul, neg, select, sub
from funcgrad.ops.comparison import eq, ge, isfinite, logical_and, logical_not
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.exponential import log
from funcgrad.ops.op import INEXACT, NUMERIC, REAL, SMOOTH, Domain, Operand, apply, literal_of, zeros_of

# -- square


def square(x: Operand) -> Any:
    """x * x, elementwise. Integers wrap.

    Notes
    -----
    The derivative is 2 x.
    """
    return apply(square_p, x)


square_p = elementwise(square, numpy=np.square, dtypes=NUMERIC, exact=True, domain=SMOOTH)
square_p.emit = lambda b, dtype, x: scalar.mul(b, dtype, x, x)
square_p.def_jvp(lambda x_dot, y, x: mul(x_dot, add(x, x)))  # d x² = 2 x dx


def one_minus_square(x: Operand) -> Any:
    """1 - x², elementwise, as (1 - x)(1 + x): without cancellation where abs(x) is near 1.

    Notes
    -----
    The derivative is -2 x. As a primitive, because the product rule would add 0 · inf to the second derivatives
    of arcsin and arctanh at ±1.
    """
    return apply(one_minus_square_p, x)


one_minus_square_p = elementwise(
    one_minus_square, numpy=None, dtypes=INEXACT, exact=True, evaluate=lambda x: (1 - x) * (1 + x), domain=SMOOTH
)
one_minus_square_p.flops = 3
one_minus_square_p.emit = lambda b, dtype, x: b.mul(b.sub(1.0, x), b.add(1.0, x))
one_minus_square_p.def_jvp(lambda x_dot, y, x: neg(mul(x_dot, add(x, x))))  # d(1 - x²) = -2 x dx

# -- roots


def sqrt(x: Operand) -> Any:
    """The square root that is not negative, elementwise; correctly rounded.

    Parameters
    ----------
    x
        Array of real or complex numbers. Of complex roots the one with a real part that is not negative.

    Returns
    -------
    Array in [0, inf]. NaN where x is real and negative.

    Notes
    -----
    The derivative is 1 / (2 sqrt(x)): inf at 0. ``where(x > 0, sqrt(x), 0)`` has the derivative 0 there.
    """
    return apply(sqrt_p, x)


sqrt_p = elementwise(
    sqrt, numpy=np.sqrt, dtypes=INEXACT, exact=True, domain=Domain(0.2, 4.0, at={(0.0,): ((inf,), (-inf,))})
)
sqrt_p.emit = scalar.instruction("sqrt")
sqrt_p.def_jvp(lambda x_dot, y, x: div(mul(x_dot, 0.5), y))  # d √x = dx / (2 √x)


def cbrt(x: Operand) -> Any:
    """The real cube root, elementwise; negative where x is.

    Notes
    -----
    The derivative is 1 / (3 cbrt(x)²): inf at 0. The second is -inf at 0.0 and inf at -0.0, its limits there.
    """
    return apply(cbrt_p, x)


cbrt_p = elementwise(cbrt, numpy=np.cbrt, dtypes=REAL, domain=Domain(0.2, 4.0, at={(0.0,): ((inf,), (-inf,))}))
cbrt_p.emit = scalar.of_floats(vecmath.cbrt)
cbrt_p.def_jvp(
    # d ∛x = dx / (3 ∛x) / ∛x: at 0 a second derivative through (∛x)² would be 0 · inf
    lambda x_dot, y, x: div(div(x_dot, mul(y, 3.0)), y)
)

# -- reciprocal


def reciprocal(x: Operand) -> Any:
    """1 / x, elementwise; correctly rounded for real numbers.

    Returns
    -------
    Array. ±inf where x is ±0. Integers are rounded toward zero, and give 0 where x is 0.

    Notes
    -----
    The derivative is -1 / x²: -inf at 0.
    """
    return apply(reciprocal_p, x)


def _reciprocal(x: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where((x == 1) | (x == -1), x, x.dtype.type(0))[()]
    return np.reciprocal(x)


def _emit_reciprocal(b: Any, dtype: Dtype, x: Any) -> Any:
    if dtype.kind == "f":
        return b.div(1.0, x)
    kept = b.eq(x, 1) if scalar.is_unsigned(dtype) else b.or_(b.eq(x, 1), b.eq(x, -1))
    return b.select(kept, x, b.constant(x.type, 0))


reciprocal_p = elementwise(
    reciprocal, numpy=np.reciprocal, dtypes=NUMERIC, exact=True, evaluate=_reciprocal,
    domain=Domain(0.2, 3.0, at={(0.0,): ((-inf,), (inf,))}),
)  # fmt: skip
reciprocal_p.emit = _emit_reciprocal
reciprocal_p.def_jvp(lambda x_dot, y, x: neg(mul(x_dot, square(y))))  # d (1 / x) = -dx / x²

# -- power


def power(x: Operand, y: Operand) -> Any:
    """x to the power y, elementwise.

    Parameters
    ----------
    x, y
        Arrays of numbers. Integers wrap.

    Returns
    -------
    Array. 1 where y is 0 or x is 1, also for NaN; NaN where x is real and negative and y is not an integer.
    Integers to a negative power, which an error refuses where the exponent is known, give 1 / x**-y rounded toward
    zero, and 0 where x is 0.

    Notes
    -----
    The derivative in x is y x**(y - 1), and 0 where y is 0, also at x = 0. The derivative in y is x**y log x:
    0 where x is 0 and y >= 0, NaN where x is negative. A constant exponent costs no logarithm.
    """
    return apply(pow_p, x, y)


def _power(x: Any, y: Any) -> Any:
    if y.dtype.kind != "i":
        return np.power(x, y)
    negative = y < 0
    inverse = np.where((x == 1) | (x == -1), np.power(x, y & 1), y.dtype.type(0))
    return np.where(negative, inverse, np.power(x, np.where(negative, y.dtype.type(0), y)))[()]


def _power_in_x(x_dot: Any, z: Any, x: Any, y: Any) -> Any:
    exponent = literal_of(y)
    if exponent is None:
        slope = power(x, sub(y, 1.0))
        # 0 · inf at y = 0 is 0; elsewhere at y = 0 the product stays, for its derivative in y is 1 / x
        constant = logical_and(eq(y, 0.0), logical_not(isfinite(slope)))
        return select(constant, 0.0, mul(x_dot, mul(y, slope)))
    n = exponent.value.item()
    if n == 0:
        return zeros_of(x)
    if n == 1:
        return x_dot
    return mul(x_dot, mul(n, x if n == 2 else power(x, n - 1)))


def _power_in_y(y_dot: Any, z: Any, x: Any, y: Any) -> Any:
    base = literal_of(x)
    if base is not None and base.value.dtype.kind == "f" and base.value > 0:
        return mul(y_dot, mul(z, log_of(base.value)))
    return select(logical_and(eq(x, 0.0), ge(y, 0.0)), 0.0, mul(y_dot, mul(z, log(x))))


def _power_step(b: Any, z: Any, x: Any, n: Any) -> Any:
    rest = b.lshr(n, 1)
    return (b.select(b.ne(b.and_(n, 1), 0), b.imul(z, x), z), b.imul(x, x), rest), b.ne(rest, 0)


def _emit_power(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    if dtype.kind == "f":
        return vecmath.pow(b, x, y)
    one = b.constant(x.type, 1)
    if scalar.is_unsigned(dtype):
        return scalar.iterate(b, "power", _power_step, (one, x, y))
    negative = b.lt(y, 0)
    z = scalar.iterate(b, "power", _power_step, (one, x, b.select(negative, b.and_(y, 1), y)))
    unit = b.or_(b.eq(x, 1), b.eq(x, -1))
    return b.select(b.and_(negative, b.not_(unit)), 0, z)


pow_p = elementwise(
    power, name="pow", numpy=np.power, dtypes=NUMERIC, evaluate=_power,
    domain=Domain((0.2, -2.0), (3.0, 3.0), at={
        (0.0, 0.0): ((0.0, 0.0), (0.0, 0.0)),
        (0.0, 0.5): ((inf, 0.0), (-inf, 0.0)),
        (0.0, 1.0): ((1.0, 0.0), (0.0, 0.0)),
        (0.0, 2.0): ((0.0, 0.0), (2.0, 0.0)),
        (0.0, 3.0): ((0.0, 0.0), (0.0, 0.0)),
        (2.0, 0.0): ((0.0, log_of(2.0)), (0.0, log_of(2.0) ** 2)),
        (-2.0, 0.0): ((0.0, nan), (0.0, nan)),
        (-2.0, 3.0): ((12.0, nan), (-12.0, nan)),
    }),
)  # fmt: skip
pow_p.emit = _emit_power
pow_p.def_jvp(_power_in_x, _power_in_y)  # d x^y = y x^(y - 1) dx + x^y log x dy

# -- hypot


def hypot(x: Operand, y: Operand) -> Any:
    """The hypotenuse sqrt(x² + y²), elementwise, without overflow on the way.

    Parameters
    ----------
    x, y
        Arrays of real numbers.

    Returns
    -------
    Array in [0, inf]; inf where either is infinite, even if the other is NaN.

    Notes
    -----
    The derivative is (x, y) / hypot(x, y), and 0 at the kink where both are 0. The second derivative in x is
    y² / hypot(x, y)³: 0.1768 at (2, 2).
    """
    return apply(hypot_p, x, y)


def _cosine(x_dot: Any, h: Any, x: Any) -> Any:
    return select(eq(h, 0.0), 0.0, mul(x_dot, div(x, h)))


hypot_p = elementwise(
    hypot, numpy=np.hypot, dtypes=REAL,
    domain=Domain(at={
        (0.0, 0.0): ((0.0, 0.0), (0.0, 0.0)),
        (2.0, 2.0): ((0.5**0.5, 0.5**0.5), (2.0**-2.5, 2.0**-2.5)),
        (4.0, 0.0): ((1.0, 0.0), (0.0, 0.25)),
    }),
)  # fmt: skip
hypot_p.emit = scalar.of_floats(vecmath.hypot)
hypot_p.def_jvp(
    lambda x_dot, h, x, y: _cosine(x_dot, h, x),  # dh = (x dx + y dy) / h, and 0 where h = 0
    lambda y_dot, h, x, y: _cosine(y_dot, h, y),
)
