"""sin and cos of multiples of π: the angle is reduced before it is multiplied, without error."""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import Builder, Pair, Value, format_of, two_product
from funcgrad.ops.vecmath.trigonometric import sin_cos, turned


def times_pi(b: Builder, x: Value) -> Pair:
    """πx as a pair."""
    P, P_lo = c.PI[format_of(x).name]
    p, e = two_product(b, x, b.constant(x.type, P))
    return p, b.fma(x, P_lo, e)


def sin_cos_pi(b: Builder, x: Value) -> Pair:
    """(sin πx, cos πx), 1 ulp each; 0 where it is 0."""
    f = format_of(x)
    x = b.sub(x, b.mul(b.rint(b.mul(x, 0.5)), 2.0))  # exact: in [−1, 1]
    t = b.add(b.add(x, x), f.rounder)
    r = b.sub(x, b.mul(b.sub(t, f.rounder), 0.5))  # exact: in [−1/4, 1/4]
    q = b.bits(t)
    s, w = sin_cos(b, times_pi(b, r))
    return turned(b, q, s, w), turned(b, b.iadd(q, 1), s, w)
