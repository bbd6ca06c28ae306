"""Exponentials and logarithms."""

from __future__ import annotations

from math import inf, log as log_of
from typing import Any

import numpy as np

from funcgrad.ops import scalar, vecmath
from funcgrad.ops.arithmetic import add, div, mul, neg, select, sub
from funcgrad.ops.comparison import eq, isinf, logical_and
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import INEXACT, REAL, SMOOTH, Domain, Operand, apply

LN2 = log_of(2.0)
LN10 = log_of(10.0)

# -- exp


def exp(x: Operand) -> Any:
    """e to the power x, elementwise.

    Parameters
    ----------
    x
        Array of real or complex numbers. Float64 above 709.78 gives inf, below -745.14 gives 0.

    Returns
    -------
    Array in [0, inf].

    Notes
    -----
    The derivative is exp(x).
    """
    return apply(exp_p, x)


exp_p = elementwise(exp, numpy=np.exp, dtypes=INEXACT, domain=SMOOTH)
exp_p.emit = scalar.of_floats(vecmath.exp)
exp_p.def_jvp(lambda x_dot, y, x: mul(x_dot, y))  # d exp x = exp x dx


def exp2(x: Operand) -> Any:
    """2 to the power x, elementwise.

    Parameters
    ----------
    x
        Array of real or complex numbers.

    Returns
    -------
    Array in [0, inf].

    Notes
    -----
    The derivative is ln 2 · 2**x.
    """
    return apply(exp2_p, x)


exp2_p = elementwise(exp2, numpy=np.exp2, dtypes=INEXACT, domain=SMOOTH)
exp2_p.emit = scalar.of_floats(vecmath.exp2)
exp2_p.def_jvp(lambda x_dot, y, x: mul(x_dot, mul(y, LN2)))  # d 2^x = ln 2 2^x dx


def expm1(x: Operand) -> Any:
    """exp(x) - 1, elementwise, without the cancellation near x = 0.

    Parameters
    ----------
    x
        Array of real or complex numbers.

    Returns
    -------
    Array in [-1, inf].

    Notes
    -----
    The derivative is exp(x).
    """
    return apply(expm1_p, x)


expm1_p = elementwise(expm1, numpy=np.expm1, dtypes=INEXACT, domain=SMOOTH)
expm1_p.emit = scalar.of_floats(vecmath.expm1)
expm1_p.def_jvp(lambda x_dot, y, x: mul(x_dot, exp(x)))  # d (exp x - 1) = exp x dx; y + 1 would cancel

# -- log


def log(x: Operand) -> Any:
    """Natural logarithm, elementwise: log(exp(x)) = x.

    Parameters
    ----------
    x
        Array of real or complex numbers. Of complex logarithms the one with imaginary part in [-pi, pi].

    Returns
    -------
    Array. -inf where x is 0; NaN where x is real and negative.

    Notes
    -----
    The derivative is 1 / x: inf at 0.
    """
    return apply(log_p, x)


log_p = elementwise(log, numpy=np.log, dtypes=INEXACT, domain=Domain(0.2, 4.0, at={(0.0,): ((inf,), (-inf,))}))
log_p.emit = scalar.of_floats(vecmath.log)
log_p.def_jvp(lambda x_dot, y, x: div(x_dot, x))  # d log x = dx / x


def log2(x: Operand) -> Any:
    """Logarithm to base 2, elementwise: log2(2**x) = x.

    Parameters
    ----------
    x
        Array of real or complex numbers.

    Returns
    -------
    Array. -inf where x is 0; NaN where x is real and negative.

    Notes
    -----
    The derivative is 1 / (x ln 2): inf at 0.
    """
    return apply(log2_p, x)


log2_p = elementwise(log2, numpy=np.log2, dtypes=INEXACT, domain=Domain(0.2, 4.0, at={(0.0,): ((inf,), (-inf,))}))
log2_p.emit = scalar.of_floats(vecmath.log2)
log2_p.def_jvp(lambda x_dot, y, x: div(mul(x_dot, 1 / LN2), x))  # d log2 x = dx / (x ln 2)


def log10(x: Operand) -> Any:
    """Logarithm to base 10, elementwise: log10(10**x) = x.

    Parameters
    ----------
    x
        Array of real or complex numbers.

    Returns
    -------
    Array. -inf where x is 0; NaN where x is real and negative.

    Notes
    -----
    The derivative is 1 / (x ln 10): inf at 0.
    """
    return apply(log10_p, x)


log10_p = elementwise(log10, numpy=np.log10, dtypes=INEXACT, domain=Domain(0.2, 4.0, at={(0.0,): ((inf,), (-inf,))}))
log10_p.emit = scalar.of_floats(vecmath.log10)
log10_p.def_jvp(lambda x_dot, y, x: div(mul(x_dot, 1 / LN10), x))  # d log10 x = dx / (x ln 10)


def log1p(x: Operand) -> Any:
    """log(1 + x), elementwise, accurate also near x = 0.

    Parameters
    ----------
    x
        Array of real or complex numbers.

    Returns
    -------
    Array. -inf where x is -1; NaN where x is real and less than -1.

    Notes
    -----
    The derivative is 1 / (1 + x): inf at -1.
    """
    return apply(log1p_p, x)


log1p_p = elementwise(log1p, numpy=np.log1p, dtypes=INEXACT, domain=Domain(-0.8, 3.0, at={(-1.0,): ((inf,), (-inf,))}))
log1p_p.emit = scalar.of_floats(vecmath.log1p)
log1p_p.def_jvp(lambda x_dot, y, x: div(x_dot, add(x, 1.0)))  # d log(1 + x) = dx / (1 + x)

# -- sigmoid


def sigmoid(x: Operand) -> Any:
    """The logistic function 1 / (1 + exp(-x)), elementwise.

    Parameters
    ----------
    x
        Array of real or complex numbers.

    Returns
    -------
    Array in [0, 1], with full relative accuracy in both tails: exp(x) where x is very negative.

    Notes
    -----
    The derivative is sigmoid(x) sigmoid(-x): it does not cancel in the tails, as y (1 - y) would.
    """
    return apply(sigmoid_p, x)


def _sigmoid(x: Any) -> Any:
    left = x.real < 0
    e = np.exp(np.where(left, x, -x))  # never overflows
    one = x.dtype.type(1)
    return (np.where(left, e, one) / (one + e))[()]


sigmoid_p = elementwise(
    sigmoid, numpy=None, dtypes=INEXACT, evaluate=_sigmoid,
    domain=Domain(-4.0, 4.0, at={
        (-800.0,): ((0.0,), (0.0,)),
        (800.0,): ((0.0,), (0.0,)),
        (-inf,): ((0.0,), (0.0,)),
        (inf,): ((0.0,), (0.0,)),
    }),
)  # fmt: skip
sigmoid_p.emit = scalar.of_floats(vecmath.sigmoid)
sigmoid_p.def_jvp(lambda x_dot, y, x: mul(x_dot, mul(y, sigmoid(neg(x)))))  # d s(x) = s(x) s(-x) dx

# -- logaddexp


def _gap(x: Any, y: Any) -> Any:
    # x - y, and 0 where both are the same infinity; not where they are merely equal: that would be a constant
    return select(logical_and(eq(x, y), isinf(x)), 0.0, sub(x, y))


def logaddexp(x: Operand, y: Operand) -> Any:
    """log(exp(x) + exp(y)), elementwise, without overflow.

    Parameters
    ----------
    x, y
        Arrays of real numbers: logarithms of what is added.

    Returns
    -------
    Array, at least as large as the larger of x and y; -inf only where both are.

    Notes
    -----
    The derivative in x is sigmoid(x - y), in y sigmoid(y - x): 1/2 each where they are equal, also where both
    are the same infinity.
    """
    return apply(logaddexp_p, x, y)


def _shares(second: float) -> Domain:
    return Domain(-3.0, 3.0, at={
        (1.0, 1.0): ((0.5, 0.5), (second, second)),
        (-inf, -inf): ((0.5, 0.5), (0.0, 0.0)),
        (inf, inf): ((0.5, 0.5), (0.0, 0.0)),
        (-inf, 1.0): ((0.0, 1.0), (0.0, 0.0)),
        (1.0, inf): ((0.0, 1.0), (0.0, 0.0)),
    })  # fmt: skip


logaddexp_p = elementwise(logaddexp, numpy=np.logaddexp, dtypes=REAL, domain=_shares(0.25))
logaddexp_p.emit = scalar.of_floats(vecmath.logaddexp)
logaddexp_p.def_jvp(
    lambda x_dot, z, x, y: mul(x_dot, sigmoid(_gap(x, y))),  # dz = s(x - y) dx + s(y - x) dy
    lambda y_dot, z, x, y: mul(y_dot, sigmoid(_gap(y, x))),
)


def logaddexp2(x: Operand, y: Operand) -> Any:
    """log2(2**x + 2**y), elementwise, without overflow.

    Parameters
    ----------
    x, y
        Arrays of real numbers: logarithms to base 2 of what is added.

    Returns
    -------
    Array, at least as large as the larger of x and y; -inf only where both are.

    Notes
    -----
    The derivative in x is 2**x / (2**x + 2**y) = sigmoid(ln 2 · (x - y)); see `logaddexp`.
    """
    return apply(logaddexp2_p, x, y)


logaddexp2_p = elementwise(logaddexp2, numpy=np.logaddexp2, dtypes=REAL, domain=_shares(LN2 / 4))
logaddexp2_p.emit = scalar.of_floats(vecmath.logaddexp2)
logaddexp2_p.def_jvp(
    # dz = s(ln2 (x - y)) dx + s(ln2 (y - x)) dy
    lambda x_dot, z, x, y: mul(x_dot, sigmoid(mul(_gap(x, y), LN2))),
    lambda y_dot, z, x, y: mul(y_dot, sigmoid(mul(_gap(y, x), LN2))),
)
