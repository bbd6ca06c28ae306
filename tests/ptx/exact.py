"""Arithmetic on NumPy arrays that is exact as IEEE 754 and PTX define it, where NumPy has no such function."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any
f64, f32 = np.float64, np.float32


def fma32(x: Array, y: Array, z: Array) -> Array:
    """x · y + z in float32 with one rounding: the product is exact in float64, the sum is rounded to odd there."""
    product, z = x.astype(f64) * y.astype(f64), np.asarray(z, f64)
    total, error = two_sum(product, z)
    return round_to_odd(total, error).astype(f32)


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y, and its rounding error."""
    total = x + y
    t = total - x
    return total, (x - (total - t)) + (y - t)


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """x · y, and its rounding error, by halves of 26 bits (Dekker 1971)."""
    product = x * y
    c = 134217729.0 * x
    xh = c - (c - x)
    c = 134217729.0 * y
    yh = c - (c - y)
    xl, yl = x - xh, y - yh
    return product, ((xh * yh - product) + xh * yl + xl * yh) + xl * yl


def round_to_odd(total: Array, error: Array) -> Array:
    """The float64 next to total + error with an odd last bit, or `total` where the error is 0 (or not finite)."""
    bits = np.atleast_1d(total).view(np.int64)
    error = np.atleast_1d(error)
    toward_zero = (error < 0) != (bits < 0)
    step = np.where(toward_zero, -1, 1)
    moved = ((bits & 1) == 0) & (error != 0) & np.isfinite(error) & np.isfinite(total)
    return np.where(moved, bits + step, bits).view(f64).reshape(np.shape(total))


def fma64(x: Array, y: Array, z: Array) -> Array:
    """x · y + z in float64 with one rounding.

    The usual exponents take the sum of error-free parts (Boldo and Melquiond 2008, "Emulation of FMA and correctly
    rounded sums"); the others are computed with fractions.
    """
    x, y, z = np.broadcast_arrays(x, y, z)
    x, y, z = (np.atleast_1d(v) for v in (x, y, z))
    product, low = two_product(x, y)
    th, tl = two_sum(z, low)
    vh, vl = two_sum(product, th)
    result = vh + round_to_odd(*two_sum(tl, vl))
    size = np.abs(product)
    usual = (size > 1e-200) & (size < 1e200) & (np.abs(x) < 1e200) & (np.abs(y) < 1e200) & (np.abs(z) < 1e200)
    usual &= (np.abs(z) > 1e-200) | (z == 0)
    if usual.all():
        return result
    rare = np.flatnonzero(~usual)
    result[rare] = _rare(x[rare], y[rare], z[rare])
    return result


def _rare(x: Array, y: Array, z: Array) -> Array:
    result = np.where(np.isfinite(x) & np.isfinite(y) & ~np.isfinite(z), z, x * y + z)  # x · y may overflow
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z) & (x != 0) & (y != 0)
    for i in np.flatnonzero(finite):
        exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i]))
        result[i] = nearest(exact) if exact else 0.0
    return result


def nearest(x: Fraction) -> float:
    """The float64 nearest to x, ties to even."""
    try:
        return float(x)  # a division of integers, which is rounded correctly
    except OverflowError:
        return np.inf if x > 0 else -np.inf


def round_down32(x: Array, direction: str) -> Array:
    """float64 to float32: toward zero (z), −∞ (m) or +∞ (p)."""
    near = x.astype(f32)
    wide = near.astype(f64)
    over = np.where(x < 0, wide < x, wide > x) if direction == "z" else wide > x if direction == "m" else wide < x
    target = f32(0) if direction == "z" else f32(-np.inf) if direction == "m" else f32(np.inf)
    return np.where(over & np.isfinite(x), np.nextafter(near, target), near)


def to_integer(round_float: Callable[[Array], Array], to: np.dtype) -> Callable[[Array], Array]:
    """Floats rounded by `round_float` and clamped to an integer type; NaN as PTX defines it."""
    info = np.iinfo(to)
    low, high = float(info.min), float(info.max)  # the highest of 64 bits becomes 2^63 or 2^64

    def convert(x: Array) -> Array:
        nan = info.min if info.min else 1 << (info.bits - 1)
        if x.dtype == f32 and info.bits < 64:
            nan = 0
        y = round_float(x.astype(f64))
        inside = (y >= low) & (y < high)
        out = np.where(inside, y, 0).astype(to)
        out = np.where(y >= high, to.type(info.max), np.where(y < low, to.type(info.min), out))
        return np.where(np.isnan(x), to.type(nan), out)

    return convert


def extremum(of_numbers: Any, join: Any, keep_nan: bool) -> Callable[[Array, Array], Array]:
    """min or max of floats, where −0 < +0; of a NaN and a number the number, or with `keep_nan` NaN."""

    def combine(x: Array, y: Array) -> Array:
        word = f"u{x.dtype.itemsize}"
        same = join(x.view(word), y.view(word)).view(x.dtype)  # of two zeros, those bits that both, or one, have
        out = np.where((x == y) & (x == 0), same, of_numbers(x, y))
        return np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), out) if keep_nan else out

    return combine


def multiply_high(x: Array, y: Array) -> Array:
    """The upper half of the product of two integers of one type."""
    t = x.dtype
    if t.itemsize < 8:
        wide = np.dtype(f"{t.kind}{2 * t.itemsize}")
        return (x.astype(wide) * y.astype(wide) >> wide.type(8 * t.itemsize)).astype(t)
    a, b = x.astype(np.uint64), y.astype(np.uint64)
    s, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    al, ah, bl, bh = a & mask, a >> s, b & mask, b >> s
    middle = (al * bl >> s) + (al * bh & mask) + (ah * bl & mask)
    high = ah * bh + (al * bh >> s) + (ah * bl >> s) + (middle >> s)
    if t.kind == "i":
        high = high - np.where(x < 0, b, np.uint64(0)) - np.where(y < 0, a, np.uint64(0))
    return high.astype(t)


def leading_zeros(x: Array) -> Array:
    """How many of the highest bits are 0, as uint32."""
    x = np.asarray(x)
    bits = 8 * x.dtype.itemsize
    if bits == 64:
        high, low = (x >> np.uint64(32)).astype(np.uint32), x.astype(np.uint32)
        return np.where(high != 0, leading_zeros(high), np.uint32(32) + leading_zeros(low)).astype(np.uint32)
    return (bits - np.frexp(x.astype(f64))[1]).astype(np.uint32)


def reverse_bits(x: Array) -> Array:
    """The bits in the opposite order."""
    bits = 8 * x.dtype.itemsize
    rows = np.unpackbits(np.atleast_1d(x).view(np.uint8).reshape(-1, bits // 8), axis=1, bitorder="little")
    return np.packbits(rows[:, ::-1], axis=1, bitorder="little").view(x.dtype).reshape(np.shape(x))


def permute_bytes(x: Array, y: Array, selector: Array) -> Array:
    """``prmt``: four of the eight bytes of (x, y), or their signs, as four bits each of the selector say."""
    both = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
    out = np.zeros(np.broadcast(both, selector).shape, np.uint32)
    for k in range(4):
        s = selector >> np.uint32(4 * k)
        byte = (both >> ((s & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(np.uint32) & np.uint32(255)
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        out |= np.where(s & np.uint32(8), sign, byte) << np.uint32(8 * k)
    return out


def logic3(table: int) -> Callable[[Array, Array, Array], Array]:
    """``lop3``: the bit of `table` that the bits of three words name."""

    def combine(x: Array, y: Array, z: Array) -> Array:
        out = np.zeros(np.broadcast(x, y, z).shape, x.dtype)
        for k in range(8):
            if table >> k & 1:
                out |= (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
        return out

    return combine


def funnel(left: bool, clamp: bool) -> Callable[[Array, Array, Array], Array]:
    """``shf``: 32 bits of the 64 bits (low, high), after a shift of the amount modulo 32, or at most 32."""

    def shift(low: Array, high: Array, amount: Array) -> Array:
        both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
        n = (np.minimum(amount, 32) if clamp else amount & np.uint32(31)).astype(np.uint64)
        return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return shift


def extract_bits(x: Array, position: Array, length: Array) -> Array:
    """``bfe``: `length` bits of x from `position` on, with zeros or the sign above."""
    bits = 8 * x.dtype.itemsize
    p, n = (np.minimum(v & np.uint32(255), bits).astype(np.int64) for v in (position, length))
    word = x.astype(np.uint64) if x.dtype.kind == "u" else x.astype(np.int64).view(np.uint64)
    if bits == 32:
        word = word & np.uint64(0xFFFFFFFF)
    mask = np.where(n >= 64, np.uint64(2**64 - 1), (np.uint64(1) << n.astype(np.uint64)) - np.uint64(1))
    out = np.where(p >= 64, np.uint64(0), word >> p.astype(np.uint64)) & mask
    if x.dtype.kind == "i":
        top = np.minimum(p + n - 1, bits - 1)
        sign = np.where(n > 0, word >> np.maximum(top, 0).astype(np.uint64) & np.uint64(1), np.uint64(0))
        out = np.where(sign != 0, out | ~np.where(p + n > bits, _low_mask(bits - p), mask), out)
    return out.astype(x.dtype)


def _low_mask(n: Array) -> Array:
    n = np.clip(n, 0, 64)
    return np.where(n >= 64, np.uint64(2**64 - 1), (np.uint64(1) << np.minimum(n, 63).astype(np.uint64)) - np.uint64(1))


def insert_bits(x: Array, into: Array, position: Array, length: Array) -> Array:
    """``bfi``: the lowest `length` bits of x put into `into` at `position`."""
    bits = 8 * x.dtype.itemsize
    p, n = (v & np.uint32(255) for v in (position, length))
    n = np.minimum(n.astype(np.int64), bits)
    mask = _low_mask(n) << np.minimum(p, 63).astype(np.uint64)
    mask = np.where(p >= bits, np.uint64(0), mask)
    moved = x.astype(np.uint64) << np.minimum(p, 63).astype(np.uint64)
    return (into.astype(np.uint64) & ~mask | moved & mask).astype(x.dtype)
