"""Reductions as accumulators: how each starts, takes a value in, joins two partial results, and ends.

A sum of floats carries the error of every addition along (Neumaier 1974, Knuth's two-sum), so that its error does not
grow with its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from funcgrad.base.dtypes import INT, Dtype, highest, lowest
from funcgrad.lowering.builder import Builder, Value


@dataclass(slots=True)
class Reduction:
    """An accumulator of some carries: how it starts, takes a value in, folds its lanes, and ends."""

    start: tuple[tuple[Dtype | None, float], ...]  # the carries: a dtype (None: of the operand) and a constant
    take: Callable[..., list[Value]]  # (builder, dtype, carries, value[, its position]) -> carries
    join: Callable[[Builder, Dtype, list[Value], list[Value]], list[Value]]
    finish: Callable[[Builder, Dtype, list[Value]], Value]

    @property
    def width(self) -> int:
        """How many carries there are."""
        return len(self.start)


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
        ((None, identity),),
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
    return b.select(_compare(b, dtype, how, x, acc), x, acc)


def _compare(b: Builder, dtype: Dtype, how: str, x: Value, y: Value) -> Value:
    sign, t = "u" if dtype.kind in "bu" else "s", x.type
    return b.emit(t.with_element("i1"), f"icmp {sign}{how} {t.text} {x.text}, {y.text}")


def _product(b: Builder, dtype: Dtype, acc: Value, x: Value) -> Value:
    return b.mul(acc, x) if dtype.kind == "f" else b.imul(acc, x)


def _position(beats: str, identity: Callable[[Dtype], float]) -> Callable[[Dtype], Reduction]:
    """The first position of an extreme: the carries are the best value so far and its position."""

    def better(b: Builder, dtype: Dtype, x: Value, best: Value) -> Value:
        if dtype.kind != "f":
            return _compare(b, dtype, beats, x, best)
        loses = b.compare("le" if beats == "gt" else "ge", x, best)
        return b.and_(b.not_(loses), b.not_(b.isnan(best)))  # a NaN does not lose, and the first one is never beaten

    def take(b: Builder, dtype: Dtype, acc: list[Value], x: Value, at: Value) -> list[Value]:
        wins = better(b, dtype, x, acc[0])
        return [b.select(wins, x, acc[0]), b.select(wins, at, acc[1])]

    def join(b: Builder, dtype: Dtype, acc: list[Value], other: list[Value]) -> list[Value]:
        wins, loses = better(b, dtype, other[0], acc[0]), better(b, dtype, acc[0], other[0])
        wins = b.or_(wins, b.and_(b.not_(loses), b.lt(other[1], acc[1])))
        return [b.select(wins, y, x) for x, y in zip(acc, other, strict=True)]

    # an element equal to the identity does not beat it: then all are equal to it, and the first is at 0
    return lambda dtype: Reduction(((None, identity(dtype)), (INT, 0)), take, join, lambda b, dtype, acc: acc[1])


SUM = Reduction(((None, 0), (None, 0)), _sum_take, _sum_join, _sum_finish)


REDUCTIONS: dict[str, Callable[[Dtype], Reduction]] = {
    "reduce_sum": lambda dtype: SUM,
    "reduce_prod": lambda dtype: _simple(1, _product),
    "reduce_max": lambda dtype: _simple(lowest(dtype), _larger),
    "reduce_min": lambda dtype: _simple(highest(dtype), _smaller),
    "reduce_any": lambda dtype: _simple(0, lambda b, d, acc, x: b.or_(acc, x)),
    "reduce_all": lambda dtype: _simple(1, lambda b, d, acc, x: b.and_(acc, x)),
    "argmax": _position("gt", lowest),
    "argmin": _position("lt", highest),
}
