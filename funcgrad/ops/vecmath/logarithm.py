"""Logarithms.

    x = 2^k m, √½ ≤ m < √2;   f = m − 1, s = f / (2 + f);   log m = 2 artanh s = f − (f²/2 − s (f²/2 + R(s²)))

The last form (Ng, fdlibm's e_log.c) keeps f, which is exact, apart from the small rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    INF,
    NAN,
    Builder,
    Pair,
    Value,
    fast_two_sum,
    format_of,
    pair_constant,
    polynomial,
    two_product,
)
from funcgrad.ops.vecmath.exponential import exp

Table = dict[str, Sequence[float]]


def decompose(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(k, m, biased) with x = 2^k m, √½ ≤ m < √2, for 0 < x < inf; k as a float; `biased` = k + bias, an integer.

    (Subnormal numbers are scaled up first: for them `biased` is that of the scaled number.)
    """
    f = format_of(x)
    up = 2.0**f.digits
    small = b.lt(x, f.tiny)
    bits = b.bits(b.select(small, b.mul(x, up), x))
    moved = b.iadd(bits, f.one - c.SQRT_HALF_BITS[f.name])  # now the exponent steps at √½
    biased = b.lshr(moved, f.shift)
    m = b.from_bits(b.iadd(b.and_(moved, f.fraction), c.SQRT_HALF_BITS[f.name]))
    # an integer below 2^shift in the low bits of 2^shift is that float
    base = 2.0**f.shift
    number = b.from_bits(b.or_(biased, (f.bias + f.shift) << f.shift))
    zero = b.constant(x.type, base + f.bias)
    k = b.sub(number, b.select(small, base + f.bias + f.digits, zero))
    return k, m, biased


def log_ends(b: Builder, x: Value, y: Value) -> Value:
    """y where 0 < x < inf; else what a logarithm is there: −inf at 0, inf at inf, NaN below 0 and at NaN."""
    below = b.select(b.eq(x, 0.0), b.constant(x.type, -INF), NAN)
    return b.select(b.gt(x, 0.0), b.select(b.lt(x, INF), y, x), below)


def log_rest(b: Builder, m: Value) -> tuple[Value, Value, Value]:
    """(f, h, r) with log m = f − (h − r), h = f² / 2."""
    f = b.sub(m, 1.0)  # exact
    return f, *_log_rest(b, f, b.add(m, 1.0), c.LOG)


def _log_rest(b: Builder, f: Value, sum: Value, coefficients: Table) -> Pair:
    s = b.div(f, sum)
    z = b.mul(s, s)
    h = b.mul(b.mul(f, 0.5), f)
    return h, b.mul(s, b.fma(z, polynomial(b, z, coefficients[format_of(f).name]), h))


def log(b: Builder, x: Value) -> Value:
    """Natural logarithm: 1 ulp."""
    return log_ends(b, x, log_inside(b, x))


def log_inside(b: Builder, x: Value) -> Value:
    """The logarithm where 0 < x < inf, anything elsewhere."""
    p, f, q = log_parts(b, x)
    return b.sub(p, b.sub(q, f))


def log_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(p, f, q) with log x = p + f − q, p = 0 or |p| > |f|, and |f| > |q|: it lacks but the last two roundings."""
    k, m, _ = decompose(b, x)
    f, h, r = log_rest(b, m)
    L1, L2 = c.LN2[format_of(x).name]
    return b.mul(k, L1), f, b.sub(h, b.fma(k, L2, r))


def join(b: Builder, p: Value, f: Value, q: Value) -> Pair:
    """p + f − q of such parts, and what its two roundings lost."""
    s, e = fast_two_sum(b, f, b.neg(q))
    y, rest = fast_two_sum(b, p, s)
    return y, b.add(rest, e)


def log_and_rest(b: Builder, x: Value) -> Pair:
    """The logarithm, and what its last roundings lost (anything where it is not finite)."""
    y, rest = join(b, *log_parts(b, x))
    return log_ends(b, x, y), rest


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x): 1 ulp."""
    return log1p_pair(b, (x, 0.0))


def log1p_and_rest(b: Builder, x: Value) -> Pair:
    """log(1 + x), and what its last roundings lost (anything where it is not finite)."""
    u, *parts = _log1p_parts(b, (x, 0.0), None)
    y, rest = join(b, *parts)
    return log_ends(b, u, y), rest


def log1p_pair(b: Builder, x: Pair, extra: Value | None = None) -> Value:
    """log(1 + x), plus ln 2 where `extra` holds."""
    u, p, f, q = _log1p_parts(b, x, extra)
    return log_ends(b, u, b.add(p, b.sub(f, q)))


def _log1p_parts(b: Builder, x: Pair, extra: Value | None) -> tuple[Value, Value, Value, Value]:
    """(u, p, f, q): 1 + x, rounded, and the parts of log(1 + x), as those of `log_parts`.

    1 + x = 2^k m, ¾ ≤ m < 3/2, where f = m − 1 = 2^-k x − (1 − 2^-k) is exact: both terms are, and neither is more
    than twice the other. So f is x where k = 0. The second part of x is far smaller, and enters as 2^-k x' / m.
    """
    F = format_of(x[0])
    u = b.add(x[0], 1.0)
    moved = b.iadd(b.bits(u), F.one - c.THREE_QUARTERS_BITS[F.name])  # its exponent is k
    power = b.isub(b.and_(moved, ~F.fraction), F.one)  # k at the place of the exponent
    scale = b.isub(F.one, power)
    scale = b.from_bits(b.select(b.gt(scale, 0), scale, 0))  # 2^-k; rounded to 0 at the end of the range
    f = b.sub(b.from_bits(b.isub(b.bits(x[0]), power)), b.sub(1.0, scale))
    # an integer below 2^shift in the low bits of 2^shift is that float; −k keeps the sign of a zero in k L1 + …
    base = 2.0**F.shift
    number = b.from_bits(b.or_(b.lshr(moved, F.shift), (F.bias + F.shift) << F.shift))
    n = b.sub(base + F.bias, number)
    if extra is not None:
        n = b.select(extra, b.sub(n, 1.0), n)
    h, r = _log_rest(b, f, b.add(f, 2.0), c.LOG1P)
    if x[1] != 0.0:
        r = b.add(r, b.mul(b.mul(x[1], scale), b.fma(f, b.sub(f, 1.0), 1.0)))  # 1 / m: where x' matters, f is small
    L1, L2 = c.LN2[F.name]
    return u, b.mul(n, -L1), f, b.sub(h, b.fma(n, -L2, r))  # n L1 is exact


def log_scaled(b: Builder, x: Value, factor: Pair, unit: Pair) -> Value:
    """log(x) · factor, where factor · ln 2 = unit and k · unit[0] is exact: 1 ulp."""
    k, m, _ = decompose(b, x)
    f, h, r = log_rest(b, m)
    hi = b.sub(f, h)
    lo = b.add(b.sub(b.sub(f, hi), h), r)
    p, e = two_product(b, hi, b.constant(x.type, factor[0]))
    e = b.add(e, b.fma(hi, factor[1], b.mul(lo, factor[0])))
    s, d = fast_two_sum(b, b.mul(k, unit[0]), p)
    return log_ends(b, x, b.add(s, b.add(d, b.fma(k, unit[1], e))))


def log2(b: Builder, x: Value) -> Value:
    """Logarithm to base 2: 1 ulp; exact for powers of 2."""
    return log_scaled(b, x, c.LOG2_E[format_of(x).name], (1.0, 0.0))


def log10(b: Builder, x: Value) -> Value:
    """Logarithm to base 10: 1 ulp."""
    name = format_of(x).name
    return log_scaled(b, x, c.LOG10_E[name], c.LOG10_2[name])


def log_pair(b: Builder, x: Value) -> Pair:
    """log(x) as a pair with a relative error of about 2^−65, for f64 x, 0 < x < inf.

    2 artanh s = 2s + s z (2/3 + z (2/5 + …)), z = s²: s, z, the sum that begins with 2/3, and the products are pairs,
    whose second parts may be a few ulps of the first.
    """
    k, m, _ = decompose(b, x)
    f = b.sub(m, 1.0)
    d, d_lo = fast_two_sum(b, b.constant(x.type, 1.0), m)  # also for m > 1: their exponents are equal
    r = b.div(1.0, d)
    s = b.mul(f, r)
    p, e = two_product(b, s, d)
    s_lo = b.mul(b.sub(b.sub(b.sub(f, p), e), b.mul(s, d_lo)), r)
    s2 = b.add(s, s)
    z, e = two_product(b, s, s)
    z_lo = b.fma(s2, s_lo, e)
    third, third_lo = pair_constant(b, x, c.TWO_THIRDS)
    q = polynomial(b, z, c.LOG_PAIR)
    w, e = fast_two_sum(b, third, b.mul(z, q))
    w_lo = b.add(b.fma(z_lo, q, e), third_lo)
    t, e = two_product(b, z, w)
    t_lo = b.fma(z, w_lo, b.fma(z_lo, w, e))
    v, e = two_product(b, s, t)
    v_lo = b.fma(s, t_lo, b.fma(s_lo, t, e))
    y, e = fast_two_sum(b, s2, v)
    y_lo = b.add(b.fma(s_lo, 2.0, e), v_lo)
    L1, L2 = c.LN2["f64"]
    hi, e = fast_two_sum(b, b.mul(k, L1), y)
    return hi, b.add(e, b.fma(k, L2, y_lo))


def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) = max + log1p(exp(−|x − y|)): 2 ulp of the larger of |max(x, y)| and log 2.

    Near its zeros the two terms cancel. Of equal infinities it is that infinity.
    """
    top = b.select(b.gt(x, y), x, y)
    gap = b.neg(b.abs(b.sub(x, y)))
    gap = b.select(b.eq(x, y), 0.0, gap)
    return b.add(top, log1p(b, exp(b, gap)))
