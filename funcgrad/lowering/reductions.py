"""Reductions as accumulators: how each starts, takes a value in, joins two partial results, and ends.

A sum of floats carries the error of every addition along (Neumaier 1974, Knuth's two-sum), so that its error does not
grow with its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.lowering.builder import Builder, Value


@dataclass(slots=True)
class Reduction:
    """An accumulator of some carries: how it starts, takes a value in, folds its lanes, and ends."""

    width: int
    identity: float
    take: Callable[[Builder, Dtype, list[Value], Value], list[Value]]
    join: Callable[[Builder, Dtype, list[Value], list[Value]], list[Value]]
    finish: Callable[[Builder, Dtype, list[Value]], Value]


def _two_sum(b: Builder, s: Value, c: Value, x: Value) -> list[Value]:
    t = b.add(s, x)
    z = b.sub(t, s)
    error = b.add(b.sub(s, b.sub(t, z)), b.sub(x, z))  # Knuth: exactly s + x - t
    return [t, b.add(c, error)]


def _sum_take(b: Builder, dtype: Dtype, acc: list[Value], x: Value) -> list[Value]:
    return _two_sum(b, acc[0], acc[1], x) if dtype.kind == "f" else [b.iadd(acc[0], x), acc[1]]


def _sum_join(b: Builder, dtype: Dtype, acc: list[Value], other: list[Value]) -> list[Value]:
    if dtype.kind != "f":
        return [b.iadd(acc[0], other[0]), acc[1]]
    s, c = _two_sum(b, acc[0], acc[1], other[0])
    return [s, b.add(c, other[1])]


def _sum_finish(b: Builder, dtype: Dtype, acc: list[Value]) -> Value:
    if dtype.kind != "f":
        return acc[0]
    total = b.add(acc[0], acc[1])
    return b.select(b.isnan(total), acc[0], total)  # beyond the finite the error is NaN, the sum is right


def _simple(identity: float, combine: Callable[[Builder, Dtype, Value, Value], Value]) -> Reduction:
    return Reduction(
        1,
        identity,
        lambda b, dtype, acc, x: [combine(b, dtype, acc[0], x)],
        lambda b, dtype, acc, other: [combine(b, dtype, acc[0], other[0])],
        lambda b, dtype, acc: acc[0],
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


SUM = Reduction(2, 0, _sum_take, _sum_join, _sum_finish)
REDUCTIONS: dict[str, Callable[[Dtype], Reduction]] = {
    "reduce_sum": lambda dtype: SUM,
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
