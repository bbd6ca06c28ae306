"""Inverse circular functions.

Each is base + v + v z P(z) with z = v², |v| ≤ base, and a base among 0, π/4, π/2, 3π/4 and π that is carried as a pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    INF,
    Builder,
    Pair,
    Value,
    fast_two_sum,
    format_of,
    pair_constant,
    polynomial,
    product_minus,
    two_sum,
)

TAN_1 = 0.41421356237309503  # tan π/8
TAN_3 = 2.414213562373095  # tan 3π/8
ZERO = (0.0, 0.0)


def arc(b: Builder, base: Pair, v: Value, z: Value, coefficients: Sequence[float]) -> Value:
    """base + v + v z P(z)."""
    s, e = fast_two_sum(b, base[0], v)
    return b.add(s, b.add(b.fma(b.mul(v, z), polynomial(b, z, coefficients), base[1]), e))


def ratio(b: Builder, top: Pair, bottom: Pair, corrected: Value) -> Pair:
    """top / bottom; its second part, which the roundings of all three lost, only where `corrected` holds."""
    v = b.div(top[0], bottom[0])
    rest = b.sub(b.sub(top[1], product_minus(b, v, bottom[0], top[0])), b.mul(v, bottom[1]))
    return v, b.select(corrected, b.div(rest, bottom[0]), 0.0)


def choose(b: Builder, condition: Value, x: Pair, y: Pair) -> Pair:
    """The pair x where the condition holds, else y."""
    return b.select(condition, x[0], y[0]), b.select(condition, x[1], y[1])


def half_angle(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(big, v, z): where |x| > ½, z = (1 − |x|) / 2 and v = √z, the sine of half the arc cosine; else x² and |x|."""
    a = b.abs(x)
    big = b.gt(a, 0.5)
    z = b.select(big, b.mul(b.sub(1.0, a), 0.5), b.mul(a, a))
    return big, b.select(big, b.sqrt(z), a), z


def asin(b: Builder, x: Value) -> Value:
    """Inverse sine: 2 ulp; NaN outside [−1, 1]. Beyond ½: π/2 − 2 asin √((1 − a) / 2)."""
    name = format_of(x).name
    big, s, z = half_angle(b, x)
    base = choose(b, big, c.HALF_PI[name], pair_constant(b, x, ZERO))
    v = b.select(big, b.mul(s, -2.0), s)
    return b.copysign(arc(b, base, v, z, c.ASIN[name]), x)


def acos(b: Builder, x: Value) -> Value:
    """Inverse cosine: 2 ulp; NaN outside [−1, 1]. π/2 − asin x; beyond ½: 2 asin √((1 − a) / 2), or π minus that."""
    name = format_of(x).name
    big, s, z = half_angle(b, x)
    left = b.lt(x, 0.0)
    base = choose(b, left, c.PI[name], pair_constant(b, x, ZERO))
    base = choose(b, big, base, c.HALF_PI[name])
    v = b.select(big, b.mul(s, 2.0), b.neg(s))
    v = b.select(left, b.neg(v), v)
    return arc(b, base, v, z, c.ASIN[name])


def atan(b: Builder, x: Value) -> Value:
    """Inverse tangent: 2 ulp. Beyond tan π/8: π/4 + atan((a − 1) / (a + 1)); beyond tan 3π/8: π/2 − atan(1 / a)."""
    name = format_of(x).name
    one = b.constant(x.type, 1.0)
    a = b.abs(x)
    middle, far = b.gt(a, TAN_1), b.gt(a, TAN_3)
    less, more = fast_two_sum(b, b.constant(x.type, -1.0), a), fast_two_sum(b, one, a)  # exact up to 2 and more
    top = b.select(far, -1.0, b.select(middle, less[0], a))
    bottom = b.select(far, a, b.select(middle, more[0], one))
    base = choose(b, middle, c.QUARTER_PI[name], pair_constant(b, x, ZERO))
    base = choose(b, far, c.HALF_PI[name], base)
    v, v_lo = ratio(b, (top, less[1]), (bottom, more[1]), b.and_(middle, b.not_(far)))
    return b.copysign(arc(b, (base[0], b.add(base[1], v_lo)), v, b.mul(v, v), c.ATAN[name]), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), in [−π, π]: 2 ulp; zeros and infinities as in C99."""
    F = format_of(x)
    name = F.name
    u, w = b.abs(y), b.abs(x)
    both = b.and_(b.eq(u, INF), b.eq(w, INF))  # infinite: the diagonal
    u, w = b.select(both, 1.0, u), b.select(both, 1.0, w)
    top, up = b.max(u, w), 2.0 ** (3 * F.digits)  # what `ratio` multiplies must neither overflow nor lose digits
    scale = b.select(b.lt(top, F.tiny * up), up, b.constant(x.type, 1.0))
    scale = b.select(b.gt(top, 2.0 ** (F.bias - 30)), 2.0**-32, scale)
    u, w = b.mul(u, scale), b.mul(w, scale)
    middle, far = b.gt(u, b.mul(w, TAN_1)), b.gt(u, b.mul(w, TAN_3))
    less, more = two_sum(b, u, b.neg(w)), two_sum(b, u, w)
    top = b.select(far, b.neg(w), b.select(middle, less[0], u))
    bottom = b.select(far, u, b.select(middle, more[0], w))
    v, v_lo = ratio(b, (top, less[1]), (bottom, more[1]), b.and_(middle, b.not_(far)))
    v = b.select(b.eq(more[0], 0.0), 0.0, v)
    left = b.lt(b.copysign(1.0, x), 0.0)  # −0 is on the left
    v, v_lo = choose(b, left, (b.neg(v), b.neg(v_lo)), (v, v_lo))
    quarter, half, pi = c.QUARTER_PI[name], c.HALF_PI[name], c.PI[name]
    three = choose(b, left, (3 * quarter[0], c.THREE_QUARTER_PI_LOW[name]), pair_constant(b, x, quarter))
    base = choose(b, middle, three, choose(b, left, pi, pair_constant(b, x, ZERO)))
    base = choose(b, far, half, base)
    return b.copysign(arc(b, (base[0], b.add(base[1], v_lo)), v, b.mul(v, v), c.ATAN[name]), y)
