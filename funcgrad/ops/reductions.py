"""Reductions written as instructions: how each starts, takes a value in, joins two partial results, and ends.

A sum of floats adds a short block of values plainly, then adds the sum of the block and carries the rounding error of
that along (Neumaier 1974, Knuth's two-sum). So its error does not grow with its length; `block` keeps it below that of
NumPy's pairwise summation at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from funcgrad.base.dtypes import INT, Dtype, highest, lowest

LONGEST = 16


def block(count: int, lanes: int) -> int:
    """How many of its `count` values each of `lanes` accumulators adds before it settles them: a power of two.

    NumPy adds n numbers, up to 128, with n // 8 + 2 roundings at least on the way of each (n − 1 below 8 numbers), and
    more numbers with more. Here it is one less than the number of values in a block, and one at the end if there are
    several blocks.
    """
    roundings = _pairwise(count * lanes)
    return LONGEST if count <= min(roundings + 1, LONGEST) else 1 << roundings.bit_length() - 1


def few(count: int, lanes: int) -> bool:
    """Whether `lanes` accumulators of `count` values each can be added up plainly, by halves."""
    return count - 1 + (lanes - 1).bit_length() <= _pairwise(count * lanes)


def _pairwise(n: int) -> int:
    """Roundings of a sum of n numbers that NumPy's meets as well."""
    return n - 1 if n < 8 else min(n // 8 + 2, LONGEST)


@dataclass(frozen=True, slots=True)
class Reduction:
    """An accumulator: how it starts, takes a value in, folds its lanes, and ends.

    Attributes
    ----------
    start
        Its carries: a dtype (None: that of the operand) and a constant for each.
    take
        ``(builder, dtype, carries, value[, its position]) -> carries``.
    join
        Two sets of carries, both settled, as one.
    finish
        The result, of settled carries.
    settle
        The carries after a block of values; None if there are no blocks.
    """

    start: tuple[tuple[Dtype | None, float], ...]
    take: Callable[..., list[Any]]
    join: Callable[[Any, Dtype, list[Any], list[Any]], list[Any]]
    finish: Callable[[Any, Dtype, list[Any]], Any]
    settle: Callable[[Any, list[Any]], list[Any]] | None = None

    @property
    def width(self) -> int:
        """How many carries there are."""
        return len(self.start)


def _two_sum(b: Any, s: Any, c: Any, x: Any) -> list[Any]:
    t = b.add(s, x)
    z = b.sub(t, s)
    error = b.add(b.sub(s, b.sub(t, z)), b.sub(x, z))  # Knuth: exactly s + x - t
    return [t, b.add(c, error)]


def _settle_sum(b: Any, acc: list[Any]) -> list[Any]:
    return [b.constant(acc[0].type, 0.0), *_two_sum(b, acc[1], acc[2], acc[0])]


def _join_sums(b: Any, dtype: Dtype, acc: list[Any], other: list[Any]) -> list[Any]:
    s, c = _two_sum(b, acc[1], acc[2], other[1])
    return [acc[0], s, b.add(c, other[2])]


def _finish_sum(b: Any, dtype: Dtype, acc: list[Any]) -> Any:
    found = b.add(acc[1], acc[2])
    return b.select(b.isnan(found), acc[1], found)  # beyond the finite the error is NaN, the sum is right


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


_FLOAT_SUM = Reduction(  # carries: the sum of the block, the sum of all blocks before, the rounding errors of that
    ((None, 0), (None, 0), (None, 0)),
    lambda b, dtype, acc, x: [b.add(acc[0], x), *acc[1:]],
    _join_sums,
    _finish_sum,
    _settle_sum,
)
_INTEGER_SUM = _simple(0, lambda b, dtype, acc, x: b.iadd(acc, x))


def total(dtype: Dtype) -> Reduction:
    """The sum."""
    return _FLOAT_SUM if dtype.kind == "f" else _INTEGER_SUM


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
