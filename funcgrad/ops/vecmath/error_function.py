"""The error function and its complement.

    |x| ≤ 1: erf x = x + x Q(x²);   x > 1: erfc x = exp(−x²) P(1 / (x + d)) / (x + d)
"""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    Builder,
    Value,
    fast_two_sum,
    format_of,
    polynomial,
    two_product,
)
from funcgrad.ops.vecmath.exponential import exp, powers_of_two, reduce_exp


def scaled_erfc(b: Builder, a: Value) -> Value:
    """exp(a²) erfc(a), for a ≥ 1."""
    name = format_of(a).name
    d, A, B = c.ERFC_MAP[name]
    w = b.div(1.0, b.add(a, d))
    return b.mul(polynomial(b, b.fma(w, A, B), c.ERFC[name]), w)


def erf(b: Builder, x: Value) -> Value:
    """The error function 2/√π ∫₀ˣ exp(−t²) dt: 1 ulp."""
    name = format_of(x).name
    a = b.min(c.ERF_ONE[name], b.abs(x))
    z = b.mul(a, a)
    inner = b.fma(a, polynomial(b, z, c.ERF[name]), a)
    outer = b.sub(1.0, b.mul(exp(b, b.neg(z)), scaled_erfc(b, a)))
    return b.copysign(b.select(b.gt(a, 1.0), outer, inner), x)


def erfc(b: Builder, x: Value) -> Value:
    """1 − erf(x) without cancellation: 2 ulp down to the smallest subnormal numbers."""
    name = format_of(x).name
    a = b.min(c.ERFC_ZERO[name], b.abs(x))
    # |x| ≤ 1: 1 − x − x Q
    s, e = fast_two_sum(b, b.constant(x.type, 1.0), b.neg(x))
    inner = b.add(s, b.sub(e, b.mul(x, polynomial(b, b.mul(x, x), c.ERF[name]))))
    z, z_lo = two_product(b, a, a)
    t, hi, lo = reduce_exp(b, b.neg(z), b.neg(z_lo))
    p, q = powers_of_two(b, t)
    y = b.mul(b.add(b.add(hi, lo), 1.0), scaled_erfc(b, a))
    outer = b.mul(b.mul(y, p), q)
    outer = b.select(b.lt(x, 0.0), b.sub(2.0, outer), outer)
    return b.select(b.gt(a, 1.0), outer, inner)
