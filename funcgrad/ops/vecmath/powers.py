"""pow, cube root, hypotenuse."""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    INF,
    NAN,
    Builder,
    Value,
    format_of,
    polynomial,
    two_product,
)
from funcgrad.ops.vecmath.exponential import clamp, exp, finish_exp, reduce_exp
from funcgrad.ops.vecmath.logarithm import decompose, log_inside, log_pair


def pow(b: Builder, x: Value, y: Value) -> Value:
    """x to the power y: 1 ulp; all special cases as in C99.

    |x|^y = exp(y log |x|) with the logarithm and the product as pairs. f32 is computed in f64, where a plain logarithm
    is enough.
    """
    a = b.abs(x)
    # clamped, since p and its error would be inf − inf: the result saturates all the same, log a is 0 or at least 2^-54
    n = clamp(b, y, -(2.0**70), 2.0**70)
    if format_of(x).digits == 24:
        z = b.convert(exp(b, b.mul(b.convert(n, b.f64), log_inside(b, b.convert(a, b.f64)))), x.type)
    else:
        L, L_lo = log_pair(b, a)
        p, e = two_product(b, n, L)
        e = b.select(b.lt(b.abs(p), 1000.0), b.fma(n, L_lo, e), 0.0)
        t, hi, lo = reduce_exp(b, clamp(b, p, *c.EXP_RANGE["f64"]), e)
        z = finish_exp(b, t, hi, lo)
    # |x| = 0 or inf: 0 or inf by the sign of y
    zero, infinite = b.eq(a, 0.0), b.eq(a, INF)
    vanishes = b.xor(zero, b.lt(y, 0.0))
    z = b.select(b.or_(zero, infinite), b.select(vanishes, 0.0, b.constant(x.type, INF)), z)
    # negative x: only integers y have a power, and odd ones keep the sign
    half = b.mul(y, 0.5)
    whole = b.eq(b.rint(y), y)
    odd = b.and_(whole, b.ne(b.rint(half), half))
    z = b.select(odd, b.copysign(z, x), z)
    no_power = b.and_(b.and_(b.lt(x, 0.0), b.not_(whole)), b.not_(infinite))
    z = b.select(b.or_(no_power, b.unordered(x, y)), NAN, z)
    return b.select(b.or_(b.eq(y, 0.0), b.eq(x, 1.0)), 1.0, z)


def cbrt(b: Builder, x: Value) -> Value:
    """Cube root: 1 ulp. x = 2^(3q) a; an approximation t of half the digits, whose square is exact, and one step of
    Halley's method (Kahan and Bindel, as in FreeBSD's s_cbrt.c).
    """
    F = format_of(x)
    w = b.abs(x)
    k, m, _ = decompose(b, w)
    rounder = F.rounder + F.bias
    shifted = b.fma(b.sub(k, 1.0), 1 / 3, rounder)
    q = b.sub(shifted, rounder)  # k = 3q, 3q + 1 or 3q + 2
    rest = b.fma(q, -3.0, k)
    one = b.constant(x.type, 1.0)
    first, second = b.eq(rest, 1.0), b.eq(rest, 2.0)
    a = b.mul(m, b.select(second, 4.0, b.select(first, 2.0, one)))
    root = b.select(second, 2.0 ** (2 / 3), b.select(first, 2.0 ** (1 / 3), one))
    t = b.mul(polynomial(b, m, c.CBRT[F.name]), root)
    cut = 1.5 * 2.0 ** (F.shift - F.digits // 2 + 1)
    t = b.sub(b.add(t, cut), cut)
    r = b.div(a, b.mul(t, t))
    t = b.fma(t, b.div(b.sub(r, t), b.add(b.add(t, t), r)), t)
    scale = b.from_bits(b.shl(b.bits(shifted), F.shift))
    y = b.copysign(b.mul(t, scale), x)
    return b.select(b.and_(b.gt(w, 0.0), b.lt(w, INF)), y, x)


def hypot(b: Builder, x: Value, y: Value) -> Value:
    """√(x² + y²) without overflow or underflow on the way: 2 ulp; inf if either is infinite, even beside NaN."""
    F = format_of(x)
    u, w = b.abs(x), b.abs(y)
    swap = b.lt(u, w)
    big, small = b.select(swap, w, u), b.select(swap, u, w)
    s, low, high = c.HYPOT[F.name]
    up, down = b.lt(big, low), b.gt(big, high)
    one = b.constant(x.type, 1.0)
    scale = b.select(up, s, b.select(down, 1 / s, one))
    back = b.select(up, 1 / s, b.select(down, s, one))
    p, q = b.mul(big, scale), b.mul(small, scale)
    square, e = two_product(b, p, p)
    h = b.sqrt(b.add(square, b.fma(q, q, e)))
    infinite = b.or_(b.eq(u, INF), b.eq(w, INF))
    return b.select(infinite, INF, b.mul(h, back))
