"""Comparison, logic and bits: everything whose result is a truth value or an integer.

None of these has a derivative: the results are piecewise constant.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, Dtype
from funcgrad.ops import scalar
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import ALL, BITS, INTEGER, Domain, Operand, apply

PIECEWISE = Domain(smooth="no derivative")
TRUTH = "a truth value has no derivative"
WHOLE = "an integer has no derivative"
UINT = np.dtype(np.uint64)

# -- order


def eq(x: Operand, y: Operand) -> Any:
    """x == y, elementwise. NaN equals nothing, 0.0 equals -0.0; complex numbers are equal in both parts."""
    return apply(eq_p, x, y)


eq_p = elementwise(eq, numpy=np.equal, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
eq_p.emit = scalar.compare("eq")
eq_p.def_no_derivative(TRUTH)


def ne(x: Operand, y: Operand) -> Any:
    """x != y, elementwise. True where either is NaN."""
    return apply(ne_p, x, y)


ne_p = elementwise(ne, numpy=np.not_equal, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
ne_p.emit = scalar.compare("ne")
ne_p.def_no_derivative(TRUTH)


def lt(x: Operand, y: Operand) -> Any:
    """x < y, elementwise. False where either is NaN; complex numbers by real, then imaginary part."""
    return apply(lt_p, x, y)


lt_p = elementwise(lt, numpy=np.less, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
lt_p.emit = scalar.compare("lt")
lt_p.def_no_derivative(TRUTH)


def le(x: Operand, y: Operand) -> Any:
    """x <= y, elementwise. False where either is NaN; complex numbers by real, then imaginary part."""
    return apply(le_p, x, y)


le_p = elementwise(le, numpy=np.less_equal, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
le_p.emit = scalar.compare("le")
le_p.def_no_derivative(TRUTH)


def gt(x: Operand, y: Operand) -> Any:
    """x > y, elementwise. False where either is NaN; complex numbers by real, then imaginary part."""
    return apply(gt_p, x, y)


gt_p = elementwise(gt, numpy=np.greater, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
gt_p.emit = scalar.compare("gt")
gt_p.def_no_derivative(TRUTH)


def ge(x: Operand, y: Operand) -> Any:
    """x >= y, elementwise. False where either is NaN; complex numbers by real, then imaginary part."""
    return apply(ge_p, x, y)


ge_p = elementwise(ge, numpy=np.greater_equal, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
ge_p.emit = scalar.compare("ge")
ge_p.def_no_derivative(TRUTH)

# -- kinds of numbers


def isnan(x: Operand) -> Any:
    """Whether each element is NaN; for complex, whether either part is."""
    return apply(isnan_p, x)


isnan_p = elementwise(isnan, numpy=np.isnan, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
isnan_p.emit = scalar.float_test(lambda b, x: b.isnan(x), False)
isnan_p.def_no_derivative(TRUTH)


def isinf(x: Operand) -> Any:
    """Whether each element is +inf or -inf; for complex, whether either part is."""
    return apply(isinf_p, x)


isinf_p = elementwise(isinf, numpy=np.isinf, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
isinf_p.emit = scalar.float_test(lambda b, x: b.eq(b.abs(x), inf), False)
isinf_p.def_no_derivative(TRUTH)


def isfinite(x: Operand) -> Any:
    """Whether each element is neither infinite nor NaN; for complex, whether both parts are."""
    return apply(isfinite_p, x)


isfinite_p = elementwise(isfinite, numpy=np.isfinite, dtypes=ALL, result=BOOL, exact=True, domain=PIECEWISE)
isfinite_p.emit = scalar.float_test(lambda b, x: b.lt(b.abs(x), inf), True)
isfinite_p.def_no_derivative(TRUTH)

# -- logic


def logical_and(x: Operand, y: Operand) -> Any:
    """x and y, elementwise; operands of other dtypes count as true where they are not 0 (NaN is true)."""
    return apply(logical_and_p, x, y)


logical_and_p = elementwise(logical_and, numpy=np.logical_and, dtypes="b", exact=True, domain=PIECEWISE)
logical_and_p.emit = scalar.instruction("and_")
logical_and_p.def_no_derivative(TRUTH)


def logical_or(x: Operand, y: Operand) -> Any:
    """x or y, elementwise; operands of other dtypes count as true where they are not 0 (NaN is true)."""
    return apply(logical_or_p, x, y)


logical_or_p = elementwise(logical_or, numpy=np.logical_or, dtypes="b", exact=True, domain=PIECEWISE)
logical_or_p.emit = scalar.instruction("or_")
logical_or_p.def_no_derivative(TRUTH)


def logical_xor(x: Operand, y: Operand) -> Any:
    """Either x or y but not both, elementwise; other dtypes count as true where they are not 0."""
    return apply(logical_xor_p, x, y)


logical_xor_p = elementwise(logical_xor, numpy=np.logical_xor, dtypes="b", exact=True, domain=PIECEWISE)
logical_xor_p.emit = scalar.instruction("xor")
logical_xor_p.def_no_derivative(TRUTH)


def logical_not(x: Operand) -> Any:
    """Not x, elementwise; operands of other dtypes count as true where they are not 0."""
    return apply(logical_not_p, x)


logical_not_p = elementwise(logical_not, numpy=np.logical_not, dtypes="b", exact=True, domain=PIECEWISE)
logical_not_p.emit = scalar.instruction("not_")
logical_not_p.def_no_derivative(TRUTH)

# -- bits


def bitwise_and(x: Operand, y: Operand) -> Any:
    """Bitwise and, elementwise, in two's complement; for bool it is ``logical_and``."""
    return apply(bitwise_and_p, x, y)


bitwise_and_p = elementwise(bitwise_and, numpy=np.bitwise_and, dtypes=BITS, exact=True, domain=PIECEWISE)
bitwise_and_p.emit = scalar.instruction("and_")
bitwise_and_p.def_no_derivative(WHOLE)


def bitwise_or(x: Operand, y: Operand) -> Any:
    """Bitwise or, elementwise, in two's complement; for bool it is ``logical_or``."""
    return apply(bitwise_or_p, x, y)


bitwise_or_p = elementwise(bitwise_or, numpy=np.bitwise_or, dtypes=BITS, exact=True, domain=PIECEWISE)
bitwise_or_p.emit = scalar.instruction("or_")
bitwise_or_p.def_no_derivative(WHOLE)


def bitwise_xor(x: Operand, y: Operand) -> Any:
    """Bitwise exclusive or, elementwise, in two's complement; for bool it is ``logical_xor``."""
    return apply(bitwise_xor_p, x, y)


bitwise_xor_p = elementwise(bitwise_xor, numpy=np.bitwise_xor, dtypes=BITS, exact=True, domain=PIECEWISE)
bitwise_xor_p.emit = scalar.instruction("xor")
bitwise_xor_p.def_no_derivative(WHOLE)


def invert(x: Operand) -> Any:
    """All bits turned over, elementwise: -x - 1 for signed integers; for bool it is ``logical_not``."""
    return apply(invert_p, x)


invert_p = elementwise(invert, numpy=np.invert, dtypes=BITS, exact=True, domain=PIECEWISE)
invert_p.emit = scalar.instruction("not_")
invert_p.def_no_derivative(WHOLE)


def left_shift(x: Operand, y: Operand) -> Any:
    """The bits of x moved y places to the left, elementwise: x * 2**y, wrapped.

    Notes
    -----
    A shift by the width of the dtype or more, or by a negative number, gives 0, as in NumPy.
    """
    return apply(left_shift_p, x, y)


def _in_width(b: Any, x: Any, y: Any) -> Any:
    t = x.type
    return b.emit(t.with_element("i1"), f"icmp ult {t.text} {y.text}, {b.constant(t, t.bits).text}")


def _left_shift(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    fits = _in_width(b, x, y)
    return b.select(fits, b.shl(x, b.select(fits, y, 0)), b.constant(x.type, 0))


left_shift_p = elementwise(left_shift, numpy=np.left_shift, dtypes=INTEGER, exact=True, domain=PIECEWISE)
left_shift_p.emit = _left_shift
left_shift_p.def_no_derivative(WHOLE)


def right_shift(x: Operand, y: Operand) -> Any:
    """The bits of x moved y places to the right, elementwise: floor(x / 2**y).

    Notes
    -----
    A shift by the width of the dtype or more, or by a negative number, gives the sign of x: -1 where x is
    negative, else 0, as in NumPy.
    """
    return apply(right_shift_p, x, y)


def _right_shift(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    fits = _in_width(b, x, y)
    if scalar.is_unsigned(dtype):
        return b.select(fits, b.lshr(x, b.select(fits, y, 0)), b.constant(x.type, 0))
    return b.ashr(x, b.select(fits, y, b.constant(x.type, x.type.bits - 1)))


right_shift_p = elementwise(right_shift, numpy=np.right_shift, dtypes=INTEGER, exact=True, domain=PIECEWISE)
right_shift_p.emit = _right_shift
right_shift_p.def_no_derivative(WHOLE)


def bitwise_count(x: Operand) -> Any:
    """The number of ones among the bits of abs(x), elementwise, as uint8."""
    return apply(bitwise_count_p, x)


def _bitwise_count(b: Any, dtype: Dtype, x: Any) -> Any:
    return b.convert(b.intrinsic("ctpop", scalar.absolute(b, dtype, x)), x.type.with_element("i8"))


bitwise_count_p = elementwise(
    bitwise_count,
    numpy=np.bitwise_count,
    dtypes=INTEGER,
    result=np.dtype(np.uint8),
    exact=True,
    domain=PIECEWISE,
)
bitwise_count_p.emit = _bitwise_count
bitwise_count_p.def_no_derivative(WHOLE)

# -- divisors


def gcd(x: Operand, y: Operand) -> Any:
    """The greatest common divisor of abs(x) and abs(y), elementwise; gcd(0, y) is abs(y)."""
    return apply(gcd_p, x, y)


def _trailing(b: Any, x: Any) -> Any:
    """The zeros below the lowest one of x; below the width for x = 0."""
    x = b.or_(x, 1 << (x.type.bits - 1))
    return b.intrinsic("ctpop", b.and_(b.not_(x), b.isub(x, 1)))


def _gcd_step(b: Any, x: Any, y: Any) -> Any:
    live = b.ne(y, 0)
    y = b.lshr(y, _trailing(b, y))
    low, high = b.intrinsic("umin", x, y), b.intrinsic("umax", x, y)
    y = b.select(live, b.isub(high, low), 0)
    return (b.select(live, low, x), y), b.ne(y, 0)


def _gcd(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    # Stein 1967: x is odd; y is made odd and replaced by the difference, which is even. No divisions.
    x, y = scalar.absolute(b, dtype, x), scalar.absolute(b, dtype, y)
    twos = _trailing(b, b.or_(x, y))
    x = b.select(b.eq(x, 0), y, x)
    return b.shl(scalar.iterate(b, "gcd", _gcd_step, (b.lshr(x, _trailing(b, x)), y)), twos)


gcd_p = elementwise(gcd, numpy=np.gcd, dtypes=INTEGER, exact=True, domain=PIECEWISE)
gcd_p.emit = _gcd
gcd_p.def_no_derivative(WHOLE)


def lcm(x: Operand, y: Operand) -> Any:
    """The least common multiple of abs(x) and abs(y), elementwise, wrapped; 0 where either is 0."""
    return apply(lcm_p, x, y)


def _lcm(b: Any, dtype: Dtype, x: Any, y: Any) -> Any:
    whole, _, _ = scalar.divide(b, UINT, scalar.absolute(b, dtype, x), _gcd(b, dtype, x, y))
    return b.imul(whole, scalar.absolute(b, dtype, y))


lcm_p = elementwise(lcm, numpy=np.lcm, dtypes=INTEGER, exact=True, domain=PIECEWISE)
lcm_p.emit = _lcm
lcm_p.def_no_derivative(WHOLE)
