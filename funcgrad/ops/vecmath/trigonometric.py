"""sin, cos, tan of every angle.

On |r| ≤ π/4, with z = r² and the error lo of r:
    sin(r + lo) = r + (r z S(z) + w lo),   cos(r + lo) = w + (((1 − w) − z/2 − r lo) + z² C(z)),   w = 1 − z/2
(Ng, fdlibm's k_sin.c and k_cos.c). The quadrant chooses between them and the sign. The polynomials are ready last:
all else is added before.
"""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients
from funcgrad.ops.vecmath.arithmetic import Builder, Pair, Value, fast_two_sum, format_of, polynomial, quotient
from funcgrad.ops.vecmath.reduction import reduce_angle


def sin_cos(b: Builder, angle: Pair) -> tuple[Pair, Pair]:
    """(sin, cos) of a reduced angle, each as a sum not yet rounded."""
    r, lo = angle
    name = format_of(r).name
    z = b.mul(r, r)
    h = b.mul(z, 0.5)
    w = b.sub(1.0, h)
    s = b.fma(b.mul(z, r), polynomial(b, z, coefficients.SIN[name]), b.mul(lo, w))
    rest = b.sub(b.sub(b.sub(1.0, w), h), b.mul(r, lo))
    e = b.fma(b.once("square", z, lambda: b.mul(z, z)), polynomial(b, z, coefficients.COS[name]), rest)
    return (r, s), (w, e)


def turns(b: Builder, x: Value) -> tuple[Pair, Pair, Value]:
    """(sin, cos) of what is left of `x` after quarter turns, and the quarter turns."""

    def make() -> tuple[Pair, Pair, Value]:
        r, q = reduce_angle(b, x)
        return (*sin_cos(b, r), q)

    return b.once("turns", x, make)


def pick(b: Builder, q: Value, even: Pair, odd: Pair) -> Pair:
    """`even` in quadrants 0 and 2, `odd` in 1 and 3."""
    is_even = b.eq(b.and_(q, 1), 0)
    return b.select(is_even, even[0], odd[0]), b.select(is_even, even[1], odd[1])


def turned(b: Builder, q: Value, even: Pair, odd: Pair) -> Value:
    """The sum of `even` in quadrants 0 and 2, of `odd` in 1 and 3, negated in 2 and 3."""
    y = b.add(*pick(b, q, even, odd))
    sign = b.and_(b.shl(q, y.type.bits - 2), format_of(y).sign)
    return b.from_bits(b.xor(b.bits(y), sign))


def sin(b: Builder, x: Value) -> Value:
    """Sine: 1 ulp."""
    s, c, q = turns(b, x)
    return b.select(b.eq(x, 0.0), x, turned(b, q, s, c))  # keeps −0


def cos(b: Builder, x: Value) -> Value:
    """Cosine: 1 ulp."""
    s, c, q = turns(b, x)
    return turned(b, b.iadd(q, 1), s, c)


def tan(b: Builder, x: Value) -> Value:
    """Tangent: 2 ulp. sin / cos, or −cos / sin in odd quadrants."""
    *pairs, q = turns(b, x)
    s, c = (fast_two_sum(b, *p) for p in pairs)
    sign = b.and_(b.shl(q, x.type.bits - 1), format_of(x).sign)
    y = quotient(b, pick(b, q, s, c), pick(b, q, c, s))
    return b.select(b.eq(x, 0.0), x, b.from_bits(b.xor(b.bits(y), sign)))
