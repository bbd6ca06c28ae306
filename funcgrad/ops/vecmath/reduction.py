"""Angles reduced to a quadrant: x = q π/2 + r, |r| ≤ π/4.

Up to some limit (2^30 for f64 with fma, 2^20 without) π/2 is split into parts, whose products with q are exact or
carry their error (Cody and Waite). If any lane is larger, an outlined function replaces the large lanes: it multiplies
the significand by the 192 bits of 2/π that matter for it (Payne and Hanek), so that r is right for every float.
"""

from __future__ import annotations

from typing import Any

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import (
    F64,
    NAN,
    Builder,
    Pair,
    Value,
    fast_two_sum,
    format_of,
    two_product,
    two_sum,
)


def reduce_angle(b: Builder, x: Value) -> tuple[Pair, Value]:
    """(r, q): r as a pair, right to a fraction of an ulp for every x; q as integers, of which two bits count."""
    zero = b.constant(x.type, 0.0), b.constant(x.type.with_element(f"i{x.type.bits}"), 0)
    size = b.abs(x)
    r, lo, q = b.unless(b.lt(size, c.NO_TURN), (x, *zero), lambda: _turned_back(b, x, size))
    return (r, lo), q


def _turned_back(b: Builder, x: Value, size: Value) -> list[Value]:
    """r, its error, and q: (x, 0, 0) for small angles, up to the sign of a zero and to bits of q that do not count."""
    f = format_of(x)
    t = b.fma(x, c.TWO_OVER_PI, f.rounder)
    n = b.sub(f.rounder, t)  # −k
    q = b.bits(t)
    if b.target.fma:
        P1, P2, P3 = c.HALF_PI_WHOLE[f.name]
        limit = c.ANGLE_LIMIT_FMA[f.name]
        r = b.fma(n, P1, x)  # exact: a multiple of ulp(P1), below 1
        p, e = two_product(b, n, b.constant(x.type, P2))
        r, d = two_sum(b, r, p)
        lo = b.add(d, b.fma(n, P3, e))
    else:
        P1, P2, P3, P4 = c.HALF_PI_SPLIT[f.name]
        limit = c.ANGLE_LIMIT[f.name]
        r = b.add(x, b.mul(n, P1))  # the products are exact: n has fewer bits than P1, P2, P3 leave
        r, d = two_sum(b, r, b.mul(n, P2))
        r, e = two_sum(b, r, b.mul(n, P3))
        lo = b.add(b.add(d, e), b.mul(n, P4))
    huge = b.ge(size, limit)
    name = need_large_angles(b, x, q, limit)
    turned: list[Value] = b.detour(huge, name, (x, r, lo, q), (r, lo, q))
    return turned


def need_large_angles(b: Builder, x: Value, q: Value, limit: float) -> str:
    """The helper that replaces r, its error and q in every lane with |x| ≥ limit; its name."""
    vector, words = x.type, q.type
    name = f"vecmath.large_angles.{vector.suffix}{'' if b.target.fma else '.no_fma'}"
    types = (vector, vector, words)

    def text() -> str:
        one_angle = need_large_angle(b)
        lane = b.inner(1)
        single = vector.bits == 32
        x = lane.value("%x", lane.f32 if single else lane.f64)
        is_large = lane.ge(lane.abs(x), limit).text
        test, lane.lines = lane.lines, []
        r, lo, n = lane.call(one_angle, lane.convert(x, lane.f64))
        if single:
            wide, r = r, lane.convert(r, lane.f32)
            lo = lane.convert(lane.sub(wide, lane.convert(r, lane.f64)), lane.f32)
            n = lane.convert(n, lane.i32)
        results = {"r": (vector, r), "lo": (vector, lo), "q": (words, n)}
        return (_over_lanes if vector.lanes > 1 else _of_one)(name, vector, results, test, is_large, lane.lines)

    b.need_function(name, (vector, *types), types, text)
    return name


Results = dict[str, tuple[Any, Value]]


def _of_one(name: str, scalar: Any, results: Results, test: list[str], is_large: str, body: list[str]) -> str:
    """The helper for one lane: it is called only if that is large."""
    (_, r), (_, lo), (word, q) = results.values()
    return "\n".join([
        f"define internal {{ {scalar}, {scalar}, {word} }} @{name}"
        f"({scalar} %x, {scalar} %r0, {scalar} %lo0, {word} %q0) noinline nounwind {{",
        *body, *_return([(scalar, r.text), (scalar, lo.text), (word, q.text)]), "}",
    ])  # fmt: skip


def _over_lanes(name: str, vector: Any, results: Results, test: list[str], is_large: str, body: list[str]) -> str:
    """The helper for a vector: a loop over its lanes, with a branch around those that are not large."""
    params = ", ".join([f"{vector} %xs", *[f"{t} %{v}0" for v, (t, _) in results.items()]])
    return "\n".join([
        f"define internal {{ {vector}, {vector}, {results['q'][0]} }} @{name}({params}) noinline nounwind {{",
        "entry:",
        "  br label %lane",
        "lane:",
        "  %i = phi i32 [ 0, %entry ], [ %next_i, %next ]",
        *[f"  %{v}1 = phi {t} [ %{v}0, %entry ], [ %{v}3, %next ]" for v, (t, _) in results.items()],
        f"  %x = extractelement {vector} %xs, i32 %i",
        *test,
        f"  br i1 {is_large}, label %large, label %next",
        "large:",
        *body,
        *[f"  %{v}2 = insertelement {t} %{v}1, {y.type} {y.text}, i32 %i" for v, (t, y) in results.items()],
        "  br label %next",
        "next:",
        *[f"  %{v}3 = phi {t} [ %{v}1, %lane ], [ %{v}2, %large ]" for v, (t, _) in results.items()],
        "  %next_i = add i32 %i, 1",
        f"  %more = icmp ult i32 %next_i, {vector.lanes}",
        "  br i1 %more, label %lane, label %done",
        "done:",
        *_return([(t, f"%{v}3") for v, (t, _) in results.items()]),
        "}",
    ])  # fmt: skip


def _return(values: list[tuple[Any, str]]) -> list[str]:
    """The lines that return a struct."""
    struct = f"{{ {', '.join([str(t) for t, _ in values])} }}"
    lines, whole = [], "poison"
    for i, (t, text) in enumerate(values):
        lines.append(f"  %s{i} = insertvalue {struct} {whole}, {t} {text}, {i}")
        whole = f"%s{i}"
    return [*lines, f"  ret {struct} {whole}"]


def need_large_angle(b: Builder) -> str:
    """The helper for one f64 x, |x| ≥ 2^10: (r, its error, q); NaN for inf. Its name."""
    name = "vecmath.large_angle" + ("" if b.target.fma else ".no_fma")
    inner = b.inner(1)
    f64, i64 = inner.f64, inner.i64

    def text() -> str:
        r, lo, q = _large_angle(inner, inner.value("%x", f64), name)
        words = [0, *c.TWO_OVER_PI_WORDS]
        return "\n".join([
            f"@{name}.bits = internal constant [{len(words)} x i64] [{', '.join([f'i64 {w}' for w in words])}]",
            f"define internal {{ double, double, i64 }} @{name}(double %x) noinline nounwind {{",
            *inner.lines,
            *_return([(f64, r.text), (f64, lo.text), (i64, q.text)]),
            "}",
        ])  # fmt: skip

    b.need_function(name, (f64,), (f64, f64, i64), text)
    return name


def _large_angle(b: Builder, x: Value, name: str) -> tuple[Value, Value, Value]:
    """x = ± m 2^E. Of m · 2^E · 2/π only the bits below weight 4 matter: those of m times a window of 2/π.

    The window starts at weight 2 for an integer m; its 192 bits leave an error below 2^-137.
    """
    i64, i128 = b.i64, b.i64.with_element("i128")
    bits = b.bits(x)
    biased = b.and_(b.lshr(bits, 52), 0x7FF)
    finite = b.lt(biased, 0x7FF)
    m = b.or_(b.and_(bits, F64.fraction), 1 << 52)
    # E = biased − 1075; bit 64 of the table (which begins with a word of zeros) has weight 1/2
    first = b.select(finite, b.isub(biased, 1075 - 62), 0)
    word, shift = b.lshr(first, 6), b.and_(first, 63)
    a = []
    for i in range(4):
        at = b.emit(i64, f"getelementptr i64, ptr @{name}.bits, i64 {b.iadd(word, i).text}").text
        a.append(b.emit(i64, f"load i64, ptr {at}"))
    w0, w1, w2 = (b.intrinsic("fshl", a[i], a[i + 1], shift) for i in range(3))

    def widen(v: Value) -> Value:
        return b.emit(i128, f"zext i64 {v.text} to i128")

    wide_m = widen(m)
    low = b.lshr(b.imul(wide_m, widen(w2)), 64)
    middle = b.iadd(b.imul(wide_m, widen(w1)), low)  # cannot overflow: m has 53 bits
    product = b.iadd(middle, b.shl(widen(b.imul(m, w0)), 64))  # 2 bits of quadrant, 126 of fraction
    quadrant = b.convert(b.lshr(product, 126), i64)
    fraction = b.shl(product, 2)  # in [0, 1); the nearest quadrant makes it [−1/2, 1/2)
    up = b.lt(fraction, 0)
    quadrant = b.iadd(quadrant, b.emit(i64, f"zext i1 {up.text} to i64"))
    size = b.select(up, b.isub(0, fraction), fraction)
    b.shared.declares["declare i128 @llvm.ctlz.i128(i128, i1)"] = None
    zeros = b.emit(i128, f"call i128 @llvm.ctlz.i128(i128 {size.text}, i1 false)")
    aligned = b.shl(size, zeros)
    hi = b.convert(b.convert(b.lshr(aligned, 75), i64), b.f64)  # 53 bits, then 53 more
    lo = b.convert(b.and_(b.convert(b.lshr(aligned, 22), i64), (1 << 53) - 1), b.f64)
    unit = b.from_bits(b.shl(b.isub(1023 - 53, b.convert(zeros, i64)), 52))
    hi = b.mul(hi, unit)
    lo = b.mul(b.mul(lo, unit), 2.0**-53)
    H, H_lo, _ = c.HALF_PI_WHOLE["f64"]
    p, e = two_product(b, hi, b.constant(b.f64, H))
    r, r_lo = fast_two_sum(b, p, b.add(e, b.fma(hi, H_lo, b.mul(lo, H))))
    # sign: of x, and of the fraction
    negative = b.xor(up, b.lt(bits, 0))
    r, r_lo = (b.select(negative, b.neg(v), v) for v in (r, r_lo))
    quadrant = b.select(b.lt(bits, 0), b.isub(0, quadrant), quadrant)
    return b.select(finite, r, NAN), r_lo, quadrant
