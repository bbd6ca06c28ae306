"""x log y, x log(1 + y), and log2(2^x + 2^y)."""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.ops.vecmath import coefficients as c
from funcgrad.ops.vecmath.arithmetic import INF, Builder, Pair, Value, format_of
from funcgrad.ops.vecmath.exponential import exp2
from funcgrad.ops.vecmath.logarithm import log1p, log1p_and_rest, log_and_rest


def _times(b: Builder, x: Value, y: Value, logarithm: Callable[[Builder, Value], Pair]) -> Value:
    vanishes = b.and_(b.eq(x, 0.0), b.not_(b.isnan(y)))
    log, rest = logarithm(b, y)
    rough = b.mul(x, log)
    exact = b.fma(x, log, b.mul(x, rest))
    regular = b.and_(b.lt(b.abs(rough), INF), b.ne(rough, 0.0))
    return b.select(vanishes, 0.0, b.select(regular, exact, rough))


def xlogy(b: Builder, x: Value, y: Value) -> Value:
    """x log y, and 0 where x is 0 and y is a number: 2 ulp."""
    return _times(b, x, y, log_and_rest)


def xlog1py(b: Builder, x: Value, y: Value) -> Value:
    """x log(1 + y), and 0 where x is 0 and y is a number: 2 ulp."""
    return _times(b, x, y, log1p_and_rest)


def logaddexp2(b: Builder, x: Value, y: Value) -> Value:
    """log2(2^x + 2^y) = max + log1p(2^(−|x − y|)) / ln 2: 2 ulp of the larger of |max(x, y)| and 1.

    Near its zeros the two terms cancel. Of equal infinities it is that infinity.
    """
    top = b.select(b.gt(x, y), x, y)
    gap = b.select(b.eq(x, y), 0.0, b.neg(b.abs(b.sub(x, y))))
    return b.add(top, b.mul(log1p(b, exp2(b, gap)), c.LOG2_E[format_of(x).name][0]))
