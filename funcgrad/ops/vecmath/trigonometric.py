"""sin, cos, tan of every angle.

On |r| ≤ π/4, with z = r² and the error lo of r:
    sin(r + lo) = r + (r z S(z) + lo cos r),   cos(r + lo) = w + (((1 − w) − z/2) + (z² C(z) − r lo)), w = 1 − z/2
(Ng, fdlibm's k_sin.c and k_cos.c). The quadrant chooses between them and the sign.
"""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import Builder, Pair, Value, format_of, polynomial
from funcgrad.ops.vecmath.reduction import reduce_angle


def sin_cos(b: Builder, angle: Pair) -> Pair:
    """(sin, cos) of a reduced angle."""
    r, lo = angle
    name = format_of(r).name
    z = b.mul(r, r)
    h = b.mul(z, 0.5)
    s = b.fma(b.mul(z, r), polynomial(b, z, c.SIN[name]), b.sub(lo, b.mul(h, lo)))
    w = b.sub(1.0, h)
    e = b.fma(b.mul(z, z), polynomial(b, z, c.COS[name]), b.mul(b.neg(r), lo))
    return b.add(r, s), b.add(w, b.add(b.sub(b.sub(1.0, w), h), e))


def turned(b: Builder, q: Value, even: Value, odd: Value) -> Value:
    """`even` in quadrants 0 and 2, `odd` in 1 and 3, negated in 2 and 3."""
    f = format_of(even)
    y = b.select(b.eq(b.and_(q, 1), 0), even, odd)
    sign = b.and_(b.shl(q, even.type.bits - 2), f.sign)
    return b.from_bits(b.xor(b.bits(y), sign))


def sin(b: Builder, x: Value) -> Value:
    """Sine: 1 ulp."""
    r, q = reduce_angle(b, x)
    s, c = sin_cos(b, r)
    return b.select(b.eq(x, 0.0), x, turned(b, q, s, c))  # keeps −0


def cos(b: Builder, x: Value) -> Value:
    """Cosine: 1 ulp."""
    r, q = reduce_angle(b, x)
    s, c = sin_cos(b, r)
    return turned(b, b.iadd(q, 1), s, c)


def tan(b: Builder, x: Value) -> Value:
    """Tangent: 2 ulp. sin / cos, or −cos / sin in odd quadrants."""
    r, q = reduce_angle(b, x)
    s, c = sin_cos(b, r)
    even = b.eq(b.and_(q, 1), 0)
    y = b.div(b.select(even, s, b.neg(c)), b.select(even, c, s))
    return b.select(b.eq(x, 0.0), x, y)
