"""exp, exp2, expm1 and the logistic function.

    x = k ln 2 + r, |r| ≤ ln 2 / 2;   exp x = 2^k (1 + r + r² P(r))

ln 2 is split so that k L1 is exact; the last sum is carried with its error. 2^k is applied in two steps, so results
that are subnormal are rounded once more and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

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
)


def reduce_exp(
    b: Builder, x: Value, tail: Value | None = None, coefficients: Sequence[float] = ()
) -> tuple[Value, Value, Value]:
    """(t, hi, lo) with exp(x + tail) = 2^k (1 + hi + lo); the low bits of t hold k + 2 bias.

    x must be within the range of exp, which keeps k L1 exact; the tail is far smaller than 1.
    """
    f = format_of(x)
    rounder = f.rounder + 2 * f.bias
    L1, L2 = c.LN2[f.name]
    t = b.fma(x, 1 / c.LN2_EXACT, rounder)
    k = b.sub(t, rounder)
    r1 = b.fma(k, -L1, x)  # exact
    r = b.fma(k, -L2, r1)
    if tail is not None:
        r = b.add(r, tail)
    half, *rest = coefficients or c.EXP[f.name]
    P = b.fma(r, polynomial(b, r, rest), half)  # the half apart: what is rounded before is small
    u = b.fma(b.mul(r, r), P, b.mul(k, -L2))
    return t, r1, u if tail is None else b.add(u, tail)


def powers_of_two(b: Builder, t: Value) -> Pair:
    """Two powers of two whose product is 2^k, for the t of `reduce_exp`: neither overflows nor underflows."""
    f = format_of(t)
    bits = b.bits(t)  # the low bits are k + 2 bias: halves of it are biased exponents
    half = b.lshr(bits, 1)
    rest = b.isub(bits, half)
    return b.from_bits(b.shl(half, f.shift)), b.from_bits(b.shl(rest, f.shift))


def scaled(b: Builder, y: Value, t: Value) -> Value:
    """2^k y, rounded once, for the t of `reduce_exp` and y in (½, 4): one instruction of AVX-512."""
    type, f = y.type, format_of(y)
    if type.lanes * type.bits != 512 or b.target.vector_bytes < 64:
        p, q = powers_of_two(b, t)
        return b.mul(b.mul(y, p), q)
    k = b.sub(t, f.rounder + 2 * f.bias)
    name = f"@llvm.x86.avx512.mask.scalef.p{'d' if type.bits == 64 else 's'}.512"
    mask = f"i{type.lanes}"
    b.shared.declares[f"declare {type} {name}({type}, {type}, {type}, {mask}, i32)"] = None
    return b.emit(type, f"call {type} {name}({type} {y.text}, {type} {k.text}, {type} {y.text}, {mask} -1, i32 4)")


def power_of_two(b: Builder, t: Value, down: int = 0) -> Value:
    """2^(k − down), for the t of `reduce_exp`; the result must be normal."""
    f = format_of(t)
    return b.from_bits(b.shl(b.isub(b.bits(t), f.bias + down), f.shift))


def finish_exp(b: Builder, t: Value, hi: Value, lo: Value) -> Value:
    """2^k (1 + hi + lo)."""
    s, e = fast_two_sum(b, b.constant(hi.type, 1.0), hi)
    y = b.add(s, b.add(e, lo))
    return scaled(b, y, t)


def clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    """x within [low, high]; NaN stays."""
    return b.max(low, b.min(high, x))


def exp(b: Builder, x: Value) -> Value:
    """e to the power x: 1 ulp."""
    name = format_of(x).name
    t, hi, lo = reduce_exp(b, clamp(b, x, *c.EXP_RANGE[name]), coefficients=c.EXP_SHORT[name])
    return scaled(b, b.add(b.add(hi, lo), 1.0), t)


def exp2(b: Builder, x: Value) -> Value:
    """2 to the power x: 1 ulp; exact for integers."""
    f = format_of(x)
    rounder = f.rounder + 2 * f.bias
    x = clamp(b, x, *c.EXP2_RANGE[f.name])
    t = b.add(x, rounder)
    k = b.sub(t, rounder)
    g = b.sub(x, k)  # exact
    L, L_lo = c.LN2_PAIR[f.name]
    r, e = two_product(b, g, b.constant(x.type, L))
    e = b.fma(g, L_lo, e)
    u = b.fma(b.mul(r, r), polynomial(b, r, c.EXP[f.name]), e)
    return finish_exp(b, t, r, u)


def expm1_pair(b: Builder, x: Value, down: int) -> tuple[Pair, Value]:
    """(exp(x) − 1) / 2^down as a pair, and 2^(k − down); x within the range of exp, and not below −60."""
    t, hi, lo = reduce_exp(b, x)
    p, p_lo = fast_two_sum(b, hi, lo)
    s = power_of_two(b, t, down)
    y, e = fast_two_sum(b, b.sub(s, 0.5**down), b.mul(s, p))
    return fast_two_sum(b, y, b.fma(s, p_lo, e)), s


def keep_small(b: Builder, x: Value, y: Value) -> Value:
    """x where it is so small that f(x) = x + O(x²) rounds to x: keeps −0 and subnormal numbers; else y."""
    return b.select(b.lt(b.abs(x), 0.5 ** format_of(x).digits), x, y)


def expm1(b: Builder, x: Value) -> Value:
    """exp(x) − 1 without cancellation: 2 ulp."""
    _, high = c.EXP_RANGE[format_of(x).name]
    (y, _), _ = expm1_pair(b, clamp(b, x, -50.0, high), 1)
    return keep_small(b, x, b.add(y, y))


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(−x)): 2 ulp, also in the tail of negative x."""
    z = exp(b, b.neg(b.abs(x)))
    one = b.constant(x.type, 1.0)
    top = b.select(b.lt(x, 0.0), z, one)
    return quotient(b, (top, b.constant(x.type, 0.0)), fast_two_sum(b, one, z))
