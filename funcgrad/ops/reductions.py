"""Reductions written as instructions: how each starts, takes a value in, joins two partial results, and ends.

A sum of floats carries the error of every addition along (Neumaier 1974, Knuth's two-sum), so that its error does not
grow with its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from funcgrad.base.dtypes import INT, Dtype, highest, lowest


@dataclass(slots=True)
class Reduction:
    """An accumulator of some carries: how it starts, takes a value in, folds its lanes, and ends."""

    start: tuple[tuple[Dtype | None, float], ...]  # the carries: a dtype (None: of the operand) and a constant
    take: Callable[..., list[Any]]  # (builder, dtype, carries, value[, its position]) -> carries
    join: Callable[[Any, Dtype, list[Any], list[Any]], list[Any]]
    finish: Callable[[Any, Dtype, list[Any]], Any]

    @property
    def width(self) -> int:
        """How many carries there are."""
        return len(self.start)


def _two_sum(b: Any, s: Any, c: Any, x: Any) -> list[Any]:
    t = b.add(s, x)
    z = b.sub(t, s)
    error = b.add(b.sub(s, b.sub(t, z)), b.sub(x, z))  # Knuth: exactly s + x - t
    return [t, b.add(c, error)]


def _sum_take(b: Any, dtype: Dtype, acc: list[Any], x: Any) -> list[Any]:
    return _two_sum(b, acc[0], acc[1], x) if dtype.kind == "f" else [b.iadd(acc[0], x), acc[1]]


def _sum_join(b: Any, dtype: Dtype, acc: list[Any], other: list[Any]) -> list[Any]:
    if dtype.kind != "f":
        return [b.iadd(acc[0], other[0]), acc[1]]
    s, c = _two_sum(b, acc[0], acc[1], other[0])
    return [s, b.add(c, other[1])]


def _sum_finish(b: Any, dtype: Dtype, acc: list[Any]) -> Any:
    if dtype.kind != "f":
        return acc[0]
    total = b.add(acc[0], acc[1])
    return b.select(b.isnan(total), acc[0], total)  # beyond the finite the error is NaN, the sum is right


def _simple(identity: float, combine: Callable[[Any, Dtype, Any, Any], Any]) -> Reduction:
    return Reduction(
        ((None, identity),),
        lambda b, dtype, acc, x: [combine(b, dtype, acc[0], x)],
        lambda b, dtype, acc, other: [combine(b, dtype, acc[0], other[0])],
        lambda b, dtype, acc: acc[0],
    )


def _larger(b: Any, dtype: Dtype, acc: Any, x: Any) -> Any:
    if dtype.kind == "f":
        return b.select(b.or_(b.gt(x, acc), b.isnan(x)), x, acc)
    return _pick(b, dtype, "gt", acc, x)


def _smaller(b: Any, dtype: Dtype, acc: Any, x: Any) -> Any:
    if dtype.kind == "f":
        return b.select(b.or_(b.lt(x, acc), b.isnan(x)), x, acc)
    return _pick(b, dtype, "lt", acc, x)


def _pick(b: Any, dtype: Dtype, how: str, acc: Any, x: Any) -> Any:
    return b.select(_compare(b, dtype, how, x, acc), x, acc)


def _compare(b: Any, dtype: Dtype, how: str, x: Any, y: Any) -> Any:
    sign, t = "u" if dtype.kind in "bu" else "s", x.type
    return b.emit(t.with_element("i1"), f"icmp {sign}{how} {t.text} {x.text}, {y.text}")


def _product(b: Any, dtype: Dtype, acc: Any, x: Any) -> Any:
    return b.mul(acc, x) if dtype.kind == "f" else b.imul(acc, x)


def _position(beats: str, identity: Callable[[Dtype], float]) -> Callable[[Dtype], Reduction]:
    """The first position of an extreme: the carries are the best value so far and its position."""

    def better(b: Any, dtype: Dtype, x: Any, best: Any) -> Any:
        if dtype.kind != "f":
            return _compare(b, dtype, beats, x, best)
        loses = b.compare("le" if beats == "gt" else "ge", x, best)
        return b.and_(b.not_(loses), b.not_(b.isnan(best)))  # a NaN does not lose, and the first one is never beaten

    def take(b: Any, dtype: Dtype, acc: list[Any], x: Any, at: Any) -> list[Any]:
        wins = better(b, dtype, x, acc[0])
        return [b.select(wins, x, acc[0]), b.select(wins, at, acc[1])]

    def join(b: Any, dtype: Dtype, acc: list[Any], other: list[Any]) -> list[Any]:
        wins, loses = better(b, dtype, other[0], acc[0]), better(b, dtype, acc[0], other[0])
        wins = b.or_(wins, b.and_(b.not_(loses), b.lt(other[1], acc[1])))
        return [b.select(wins, y, x) for x, y in zip(acc, other, strict=True)]

    # an element equal to the identity does not beat it: then all are equal to it, and the first is at 0
    return lambda dtype: Reduction(((None, identity(dtype)), (INT, 0)), take, join, lambda b, dtype, acc: acc[1])


def total(dtype: Dtype) -> Reduction:
    """The sum."""
    return Reduction(((None, 0), (None, 0)), _sum_take, _sum_join, _sum_finish)


def product(dtype: Dtype) -> Reduction:
    """The product."""
    return _simple(1, _product)


def largest(dtype: Dtype) -> Reduction:
    """The maximum."""
    return _simple(lowest(dtype), _larger)


def smallest(dtype: Dtype) -> Reduction:
    """The minimum."""
    return _simple(highest(dtype), _smaller)


def any_of(dtype: Dtype) -> Reduction:
    """Whether one is true."""
    return _simple(0, lambda b, d, acc, x: b.or_(acc, x))


def all_of(dtype: Dtype) -> Reduction:
    """Whether all are true."""
    return _simple(1, lambda b, d, acc, x: b.and_(acc, x))


first_largest = _position("gt", lowest)
first_smallest = _position("lt", highest)
