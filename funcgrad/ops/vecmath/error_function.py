"""The error function and its complement.

Small |x|: erf x = x + x Q(x²). Large x: erfc x = exp(−x²) P(t) / (x + d) with t = 1 − K (x − ¾) / (x + d).
"""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    Builder,
    Pair,
    Value,
    fast_two_sum,
    format_of,
    polynomial,
    quotient,
    two_product,
    two_sum,
)
from funcgrad.ops.vecmath.exponential import exp, reduce_exp, scaled


def scaled_erfc(b: Builder, a: Value) -> tuple[Pair, Pair, Value]:
    """(p, d, 1/d) with exp(a²) erfc(a) = p / d, for a ≥ ¾; p and d as pairs."""
    name = format_of(a).name
    shift, K = c.ERFC_MAP[name]
    d, d_lo = two_sum(b, a, b.constant(a.type, shift))
    w = b.div(1.0, d)
    s = quotient(b, (b.sub(a, 0.75), b.constant(a.type, 0.0)), (d, d_lo), reciprocal=w)
    t = b.fma(s, -K, 1.0)  # no rounding error where p is steepest, near t = 1
    first, *rest = c.ERFC[name]
    return fast_two_sum(b, b.constant(a.type, first), b.mul(t, polynomial(b, t, rest))), (d, d_lo), w


def erf(b: Builder, x: Value) -> Value:
    """The error function 2/√π ∫₀ˣ exp(−t²) dt: 2 ulp."""
    name = format_of(x).name
    a = b.min(c.ERF_ONE[name], b.abs(x))
    z = b.mul(a, a)
    inner = b.fma(a, polynomial(b, z, c.ERF[name]), a)
    (p, _), _, w = scaled_erfc(b, a)
    outer = b.sub(1.0, b.mul(exp(b, b.neg(z)), b.mul(p, w)))
    return b.copysign(b.select(b.gt(a, 1.0), outer, inner), x)


def erfc(b: Builder, x: Value) -> Value:
    """1 − erf(x) without cancellation: 3 ulp down to the smallest subnormal numbers."""
    name = format_of(x).name
    one = b.constant(x.type, 1.0)
    a = b.min(c.ERFC_ZERO[name], b.abs(x))
    # |x| ≤ ¾: 1 − x − x Q
    s, e = fast_two_sum(b, one, b.neg(x))
    inner = b.add(s, b.sub(e, b.mul(x, polynomial(b, b.mul(x, x), c.ERF[name]))))
    z, z_lo = two_product(b, a, a)
    t, hi, lo = reduce_exp(b, b.neg(z), b.neg(z_lo))
    s, e = fast_two_sum(b, one, hi)
    (p, p_lo), d, w = scaled_erfc(b, a)
    top, top_lo = two_product(b, s, p)
    top_lo = b.fma(s, p_lo, b.fma(b.add(e, lo), p, top_lo))
    y = quotient(b, (top, top_lo), d, reciprocal=w)
    outer = scaled(b, y, t)
    outer = b.select(b.lt(x, 0.0), b.sub(2.0, outer), outer)
    return b.select(b.gt(a, 0.75), outer, inner)
