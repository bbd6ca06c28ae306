"""sin(pi x) / (pi x) and its derivatives: one primitive, with the order of the derivative as a parameter.

With t = pi x and S(t) = sin(t) / t, the n-th derivative in x is pi**n S⁽ⁿ⁾(t). Two ways to it:

    t S⁽ⁿ⁾ + n S⁽ⁿ⁻¹⁾ = sin(t + n pi / 2)                      for large t: differentiate t S = sin t n times
    S⁽ⁿ⁾ = sum over k >= n / 2 of (-1)ᵏ t²ᵏ⁻ⁿ / ((2k - n)! (2k + 1))      for small t: the power series of S
"""

from __future__ import annotations

from functools import cache
from math import factorial, pi
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.ops import vecmath
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import REAL, Domain, Operand, apply


def sinc(x: Operand) -> Any:
    """The normalised sinc function sin(pi x) / (pi x), elementwise; 1 at 0.

    Parameters
    ----------
    x
        Array of real numbers; the function is even.

    Returns
    -------
    Array in [-0.2172, 1], exactly 0 at the integers other than 0. NaN where x is infinite.

    Notes
    -----
    Derivatives of every order come from a power series near 0 and a recurrence elsewhere, to an absolute
    error of about 1e-15 pi**n for order n <= 6: 0 and -pi²/3 are the first and second at 0.
    """
    return apply(sinc_p, x)


def small(order: int) -> float:
    """|t| from which on the recurrence is used: its error, about eps n! / tⁿ, is below that of the series."""
    return 1.0 + 0.6 * order


@cache
def series(order: int) -> tuple[float, ...]:
    """Coefficients of the power series of S⁽ⁿ⁾ in t², lowest first; an odd n has another factor t."""
    coefficients: list[float] = []
    t2 = small(order) ** 2
    size = 1.0
    k = (order + 1) // 2
    while size > 1e-19:
        power = 2 * k - order
        coefficients.append((-1.0) ** k / (factorial(power) * (2 * k + 1)))
        size = abs(coefficients[-1]) * t2 ** len(coefficients)
        k += 1
    return tuple(coefficients)


def _sinc(x: Any, *, order: int = 0) -> Any:
    wide = np.asarray(x, np.float64)
    t = wide * pi
    near = np.abs(t) < small(order)

    t2 = np.where(near, t * t, 0.0)
    inner = np.zeros_like(t)
    for c in reversed(series(order)):
        inner = inner * t2 + c
    if order % 2:
        inner = inner * t

    n = np.rint(wide)  # sin(pi x) = (-1)ⁿ sin(pi (x - n)), exactly 0 at integers
    sign = 1.0 - 2.0 * np.fmod(np.abs(n), 2.0)
    s, c = sign * np.sin((wide - n) * pi), sign * np.cos((wide - n) * pi)
    safe = np.where(near, 1.0, t)
    outer = s / safe + 0.0  # a zero has no sign
    for k in range(1, order + 1):
        s, c = c, -s  # sin(t + k pi / 2)
        outer = (s - k * outer) / safe
    return (np.where(near, inner, outer) * pi**order).astype(x.dtype)[()]


def _emit(b: Any, dtype: Dtype, x: Any, *, order: int = 0) -> Any:
    wide = b.convert(x, b.f64) if order else x
    a = b.abs(wide)
    t = b.mul(a, pi)
    t2 = b.mul(t, t)
    first, *rest = series(order)
    inner = b.fma(t2, vecmath.polynomial(b, t2, rest), first)
    if order % 2:
        inner = b.mul(inner, t)
    s, c = vecmath.sin_cos_pi(b, a)
    # 1 / (pi a) must not underflow; s is 0 from 2^53 on
    outer = vecmath.quotient(b, (s, 0.0), vecmath.times_pi(b, vecmath.clamp(b, a, 0.0, 2.0**100)))
    for k in range(1, order + 1):
        s, c = c, b.neg(s)  # sin(t + k pi / 2)
        outer = b.div(b.sub(s, b.mul(outer, float(k))), t)
    y = b.select(b.lt(t, small(order)), inner, outer)
    if order:
        y = b.mul(y, pi**order)
    if order % 2:
        y = b.mul(y, b.copysign(1.0, wide))
    return b.convert(y, x.type)


sinc_p = elementwise(
    sinc, numpy=np.sinc, dtypes=REAL, evaluate=_sinc,
    domain=Domain(-3.0, 3.0, at={
        (0.0,): ((0.0,), (-(pi**2) / 3,)),
        (1.0,): ((-1.0,), (2.0,)),
        (-1.0,): ((1.0,), (2.0,)),
    }),
)  # fmt: skip
sinc_p.emit = _emit
sinc_p.def_jvp(
    lambda x_dot, y, x, order=0: mul(x_dot, apply(sinc_p, x, order=order + 1))  # d S⁽ⁿ⁾ = S⁽ⁿ⁺¹⁾ dx
)
