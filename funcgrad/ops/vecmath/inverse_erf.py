"""The inverse of the error function.

As a function of w = −log(1 − x²) it is smooth also where x is near 1 (Giles 2010): x (√π/2 + w Q(w)) for w ≤ 3, beyond
it v + H(1 / (v + 2)) with v = √w, where H is small.
"""

from __future__ import annotations

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import INF, NAN, Builder, Value, polynomial, two_product
from funcgrad.ops.vecmath.logarithm import join, log_parts


def erfinv(b: Builder, x: Value) -> Value:
    """The y with erf(y) = x: 2 ulp; ±inf at ±1, NaN outside [−1, 1]. f32 is computed in f64."""
    wide = b.convert(x, b.f64)
    a = b.abs(wide)
    w, w_lo = [b.neg(v) for v in join(b, *log_parts(b, b.mul(b.sub(1.0, a), b.add(a, 1.0))))]
    h, h_lo = c.HALF_ROOT_PI
    q = polynomial(b, b.fma(w, 2 / 3, -1.0), c.ERFINV)
    inner = b.fma(a, h, b.mul(a, b.fma(w, q, b.fma(w_lo, q, h_lo))))  # Q is about the slope, too
    v = b.sqrt(w)
    p, e = two_product(b, v, v)
    v_lo = b.div(b.add(b.sub(b.sub(w, p), e), w_lo), b.add(v, v))
    S, T = c.ERFINV_MAP
    t = b.sub(b.div(S, b.add(v, 2.0)), T)
    outer = b.add(v, b.add(polynomial(b, t, c.ERFINV_TAIL), v_lo))
    y = b.select(b.lt(w, 3.0), inner, outer)
    y = b.select(b.lt(a, 1.0), y, b.select(b.eq(a, 1.0), INF, b.constant(b.f64, NAN)))
    return b.convert(b.copysign(y, wide), x.type)
