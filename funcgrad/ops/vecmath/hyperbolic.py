"""Hyperbolic functions, from exp(x) − 1, and their inverses, from log(1 + x)."""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    NAN,
    Builder,
    Pair,
    Value,
    fast_two_sum,
    format_of,
    product_minus,
    two_product,
    two_sum,
)
from funcgrad.ops.vecmath.exponential import expm1_pair, keep_small, power_of_two, reduce_exp
from funcgrad.ops.vecmath.logarithm import log1p_pair


def tanh(b: Builder, x: Value) -> Value:
    """Hyperbolic tangent: 1 ulp.

    tanh a = N / (N + 1), N = (exp(2a) − 1) / 2 = C (1 + p) − ½, where exp(2a) = 2C (1 + p), C a power of two.
    N is carried as a pair. A first quotient q is rounded to a multiple of 2^-shift, so that 1 − q is exact, and then
    its error (N − q (N + 1)) / (N + 1) = (N (1 − q) − q) / (N + 1) is added.
    """
    f = format_of(x)
    a = b.min(20.0 if f.digits == 53 else 10.0, b.abs(x))
    t, hi, lo = reduce_exp(b, b.add(a, a))
    C = power_of_two(b, t, 1)
    less = b.sub(C, 0.5)
    N = b.fma(C, b.add(hi, lo), less)
    N_lo = b.fma(C, lo, b.fma(C, hi, b.sub(less, N)))  # exact but for the last bits of C lo
    r = b.div(1.0, b.add(N, 1.0))
    one_and_q = b.fma(N, r, 1.0)
    q, rest = b.sub(one_and_q, 1.0), b.sub(2.0, one_and_q)
    error = b.fma(N_lo, rest, product_minus(b, N, rest, q))
    y = b.fma(error, r, q)
    return b.copysign(b.select(b.lt(a, 0.5 ** (f.digits // 2 + 1)), a, y), x)  # tanh a = a − a³ / 3 + …


def sinh(b: Builder, x: Value) -> Value:
    """Hyperbolic sine: 2 ulp. sinh a = (E + E / (E + 1)) / 2, E = exp(a) − 1."""
    f = format_of(x)
    a = b.min(c.SINH_MAX[f.name], b.abs(x))
    (E, E_lo), _ = expm1_pair(b, a, 2)
    enough = 2.0**60  # from here on E / (E + 1) = 1
    N = b.min(E, enough)
    q = b.div(N, b.fma(N, 4.0, 1.0))
    y = b.add(E, b.add(q, E_lo))
    return keep_small(b, x, b.copysign(b.add(y, y), x))


def cosh(b: Builder, x: Value) -> Value:
    """Hyperbolic cosine: 1 ulp. cosh a = 2 (S + 1 / (16 S)), S = exp(a) / 4."""
    f = format_of(x)
    t, hi, lo = reduce_exp(b, b.min(c.SINH_MAX[f.name], b.abs(x)))
    s, e = fast_two_sum(b, b.constant(x.type, 1.0), hi)
    p = power_of_two(b, t, 2)
    e = b.mul(p, b.add(e, lo))
    s = b.mul(p, s)
    y = b.add(s, b.add(b.div(0.0625, b.add(s, e)), e))
    return b.add(y, y)


def asinh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic sine: 2 ulp. log1p(a + a² / (1 + √(1 + a²))), or log 2a where a is large."""
    a = b.abs(x)
    large = 2.0 ** (format_of(x).digits // 2 + 2)
    n = b.min(large, a)
    square = b.mul(n, n)
    q = b.div(square, b.add(b.sqrt(b.add(square, 1.0)), 1.0))
    return keep_small(b, x, b.copysign(_log_of_double(b, a, large, fast_two_sum(b, n, q)), x))


def acosh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic cosine: 2 ulp; NaN below 1. log1p(t + √(t² + 2t)), t = x − 1, or log 2x where x is large."""
    large = 2.0 ** (format_of(x).digits // 2 + 2)
    t = b.select(b.lt(x, 1.0), NAN, b.sub(b.min(large, x), 1.0))
    root = b.sqrt(b.fma(t, t, b.add(t, t)))
    return _log_of_double(b, x, large, two_sum(b, root, t))


def _log_of_double(b: Builder, x: Value, large: float, small: Pair) -> Value:
    """log(2x) where x > `large`, else log1p of the pair `small`."""
    far = b.gt(x, large)
    u = b.select(far, b.sub(x, 1.0), small[0])  # of which log1p takes x again
    return log1p_pair(b, (u, b.select(far, 0.0, small[1])), extra=far)


def atanh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic tangent: 2 ulp; NaN outside [−1, 1]. log1p(2a / (1 − a)) / 2."""
    a = b.abs(x)
    twice = b.add(a, a)
    d, d_lo = fast_two_sum(b, b.constant(x.type, 1.0), b.neg(a))
    r = b.div(1.0, d)
    q = b.mul(twice, r)
    p, e = two_product(b, q, d)
    q_lo = b.mul(b.sub(b.sub(b.sub(twice, p), e), b.mul(q, d_lo)), r)
    return keep_small(b, x, b.copysign(b.mul(log1p_pair(b, (q, q_lo)), 0.5), x))
