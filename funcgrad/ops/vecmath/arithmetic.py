"""Formats, constants and arithmetic in twice the precision, for the emitters of this package.

Every function takes a builder `b` (see `funcgrad.lowering.builder`) and values of one floating type; Python numbers
stand for constants. A pair (hi, lo) stands for the unevaluated sum hi + lo with |lo| about half an ulp of hi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

Builder = Any  # funcgrad.lowering.builder.Builder: a higher layer, not imported here
Value = Any  # a value of the builder, or a number
Pair = tuple[Value, Value]

INF = inf
NAN = nan


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating format: numbers that the algorithms need of it.

    Parameters
    ----------
    name
        ``"f64"`` or ``"f32"``: the key of tables of coefficients.
    digits
        Bits of the significand with the leading one: 53 or 24.
    bias
        Exponent bias: 1023 or 127.
    splitter
        2^s + 1, which splits a number into halves of at most `digits` / 2 bits (Veltkamp).
    """

    name: str
    digits: int
    bias: int
    splitter: float

    @property
    def shift(self) -> int:
        """Where the exponent begins: bits of the stored fraction."""
        return self.digits - 1

    @property
    def sign(self) -> int:
        """The sign bit, as a signed integer of the width."""
        return -(1 << (63 if self.digits == 53 else 31))

    @property
    def fraction(self) -> int:
        """The bits of the stored fraction."""
        return (1 << self.shift) - 1

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.shift

    @property
    def rounder(self) -> float:
        """Adding 1.5 · 2^shift rounds to an integer, which then stands in the low bits."""
        return 1.5 * 2.0**self.shift

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


F64 = Format("f64", 53, 1023, 2.0**27 + 1)
F32 = Format("f32", 24, 127, 2.0**12 + 1)


def format_of(x: Value) -> Format:
    """The format of a value."""
    return F64 if x.type.bits == 64 else F32


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x² + …: (c0 + c1 x) + x² ((c2 + c3 x) + x² …).

    A single Horner chain is so long that even a loop over many vectors waits for it. This one is half as long: the
    pairs wait for nothing but x.
    """
    if len(coefficients) < 5:
        return _horner(b, x, coefficients)
    z = b.once("square", x, lambda: b.mul(x, x))
    *heads, p = [_horner(b, x, coefficients[k : k + 2]) for k in range(0, len(coefficients), 2)]
    for head in reversed(heads):
        p = b.fma(z, p, head)
    return p


def _horner(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    p: Value = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        p = b.fma(x, p, c)
    return p


# -- error-free transformations


def fast_two_sum(b: Builder, x: Value, y: Value) -> Pair:
    """x + y exactly, if |x| ≥ |y| or x = 0."""
    s = b.add(x, y)
    return s, b.sub(y, b.sub(s, x))


def two_sum(b: Builder, x: Value, y: Value) -> Pair:
    """x + y exactly (Knuth)."""
    s = b.add(x, y)
    t = b.sub(s, x)
    return s, b.add(b.sub(x, b.sub(s, t)), b.sub(y, t))


def split(b: Builder, x: Value) -> Pair:
    """x as a sum of two halves whose products are exact (Veltkamp); |x| must be far below overflow."""
    t = b.mul(x, format_of(x).splitter)
    hi = b.sub(t, b.sub(t, x))
    return hi, b.sub(x, hi)


def two_product(b: Builder, x: Value, y: Value) -> Pair:
    """x · y exactly, barring underflow: one fma, or Dekker's seventeen operations."""
    p = b.mul(x, y)
    if b.target.fma:
        return p, b.fma(x, y, b.neg(p))
    x1, x2 = split(b, x)
    if y is x:
        cross = b.mul(x1, x2)
        e = b.add(b.sub(b.mul(x1, x1), p), b.add(cross, cross))
        return p, b.add(e, b.mul(x2, x2))
    y1, y2 = split(b, y)
    e = b.add(b.add(b.sub(b.mul(x1, y1), p), b.mul(x1, y2)), b.mul(x2, y1))
    return p, b.add(e, b.mul(x2, y2))


def product_minus(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x · y − z exactly, if z is close to the product."""
    if b.target.fma:
        return b.fma(x, y, b.neg(z))
    p, e = two_product(b, x, y)
    return b.add(b.sub(p, z), e)


# -- pairs


def pair_constant(b: Builder, like: Value, value: tuple[float, float]) -> Pair:
    """A constant pair of the type of `like`."""
    return b.constant(like.type, value[0]), b.constant(like.type, value[1])


def quotient(b: Builder, x: Pair, y: Pair, reciprocal: Value | None = None) -> Value:
    """x / y, rounded once and little more, with one division. Not for huge or tiny y: 1 / y[0] must be normal."""
    r = b.div(1.0, y[0]) if reciprocal is None else reciprocal
    q = b.mul(x[0], r)
    rest = b.neg(product_minus(b, q, y[0], x[0]))
    rest = b.sub(b.add(rest, x[1]), b.mul(q, y[1]))
    return b.fma(rest, r, q)
