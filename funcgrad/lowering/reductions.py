"""Reductions as accumulators: how each starts, takes a value in, joins two partial results, and ends.

A sum of floats adds a short block of values plainly, then adds the sum of the block and carries the rounding error of
that along (Neumaier 1974, Knuth's two-sum). So its error does not grow with its length; `block` keeps it below that of
NumPy's pairwise summation at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.lowering.builder import Builder, Value, make_type

Carries = list[Value]
LONGEST = 16


def block(count: int, lanes: int) -> int:
    """How many of its `count` values each of `lanes` accumulators adds before it settles them: a power of two.

    NumPy adds n numbers, up to 128, with n // 8 + 2 roundings at least on the way of each (n − 1 below 8 numbers), and
    more numbers with more. Here it is one less than the number of values in a block, and one at the end if there are
    several blocks.
    """
    n = count * lanes
    roundings = n - 1 if n < 8 else min(n // 8 + 2, LONGEST)
    return LONGEST if count <= min(roundings + 1, LONGEST) else 1 << roundings.bit_length() - 1


@dataclass(frozen=True, slots=True)
class Reduction:
    """An accumulator: how it starts, takes a value in, folds its lanes, and ends.

    Attributes
    ----------
    start
        The constants that its carries start with.
    take
        The first of its carries with one more value.
    settle
        The carries after a block of values; None if there are no blocks.
    join
        Two sets of carries, both settled, as one.
    finish
        The result, of settled carries.
    """

    start: tuple[float, ...]
    take: Callable[[Builder, Dtype, Value, Value], Value]
    settle: Callable[[Builder, Carries], Carries] | None
    join: Callable[[Builder, Dtype, Carries, Carries], Carries]
    finish: Callable[[Builder, Carries], Value]


def _two_sum(b: Builder, s: Value, c: Value, x: Value) -> Carries:
    t = b.add(s, x)
    z = b.sub(t, s)
    error = b.add(b.sub(s, b.sub(t, z)), b.sub(x, z))  # Knuth: exactly s + x - t
    return [t, b.add(c, error)]


def _settle_sum(b: Builder, acc: Carries) -> Carries:
    return [b.constant(acc[0].type, 0.0), *_two_sum(b, acc[1], acc[2], acc[0])]


def _join_sums(b: Builder, dtype: Dtype, acc: Carries, other: Carries) -> Carries:
    s, c = _two_sum(b, acc[1], acc[2], other[1])
    return [acc[0], s, b.add(c, other[2])]


def _finish_sum(b: Builder, acc: Carries) -> Value:
    total = b.add(acc[1], acc[2])
    return b.select(b.isnan(total), acc[1], total)  # beyond the finite the error is NaN, the sum is right


Combine = Callable[[Builder, Dtype, Value, Value], Value]


def _simple(identity: float, combine: Combine) -> Reduction:
    return Reduction(
        (identity,),
        combine,
        None,
        lambda b, dtype, acc, other: [combine(b, dtype, acc[0], other[0])],
        lambda b, acc: acc[0],
    )


def _larger(b: Builder, dtype: Dtype, acc: Value, x: Value) -> Value:
    if dtype.kind == "f":
        return b.select(b.or_(b.gt(x, acc), b.isnan(x)), x, acc)
    return _pick(b, dtype, "gt", acc, x)


def _smaller(b: Builder, dtype: Dtype, acc: Value, x: Value) -> Value:
    if dtype.kind == "f":
        return b.select(b.or_(b.lt(x, acc), b.isnan(x)), x, acc)
    return _pick(b, dtype, "lt", acc, x)


def _pick(b: Builder, dtype: Dtype, how: str, acc: Value, x: Value) -> Value:
    sign = "u" if dtype.kind in "bu" else "s"
    t = x.type
    return b.select(b.emit(t.with_element("i1"), f"icmp {sign}{how} {t.text} {x.text}, {acc.text}"), x, acc)


def _product(b: Builder, dtype: Dtype, acc: Value, x: Value) -> Value:
    return b.mul(acc, x) if dtype.kind == "f" else b.imul(acc, x)


def fold(b: Builder, kind: Reduction, dtype: Dtype, acc: Carries) -> Carries:
    """Join the lanes by halves."""
    lanes = acc[0].type.lanes
    while lanes > 1:
        half = lanes // 2
        low, high = [], []
        for v in acc:
            t, h = v.type, make_type(v.type.element, half)
            for offset, part in ((0, low), (half, high)):
                if half == 1:
                    part.append(b.emit(h, f"extractelement {t.text} {v.text}, i64 {offset}"))
                else:
                    ids = f"<{half} x i32> <" + ", ".join([f"i32 {k + offset}" for k in range(half)]) + ">"
                    part.append(b.emit(h, f"shufflevector {t.text} {v.text}, {t.text} poison, {ids}"))
        acc = kind.join(b, dtype, low, high)
        lanes = half
    return acc


# carries: the sum of the block, the sum of all blocks before, the rounding errors of that
FLOAT_SUM = Reduction((0, 0, 0), lambda b, dtype, acc, x: b.add(acc, x), _settle_sum, _join_sums, _finish_sum)
INTEGER_SUM = _simple(0, lambda b, dtype, acc, x: b.iadd(acc, x))
REDUCTIONS: dict[str, Callable[[Dtype], Reduction]] = {
    "reduce_sum": lambda dtype: FLOAT_SUM if dtype.kind == "f" else INTEGER_SUM,
    "reduce_prod": lambda dtype: _simple(1, _product),
    "reduce_max": lambda dtype: _simple(_lowest(dtype), _larger),
    "reduce_min": lambda dtype: _simple(_highest(dtype), _smaller),
    "reduce_any": lambda dtype: _simple(0, lambda b, d, acc, x: b.or_(acc, x)),
    "reduce_all": lambda dtype: _simple(1, lambda b, d, acc, x: b.and_(acc, x)),
}


def _lowest(dtype: Dtype) -> float:
    return -np.inf if dtype.kind == "f" else 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _highest(dtype: Dtype) -> float:
    return np.inf if dtype.kind == "f" else 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)
