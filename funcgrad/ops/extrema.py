"""The larger and the smaller of two, elementwise.

Equal operands share the derivative evenly, to every order: the derivative of ``maximum(x, x)`` is that of x.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.ops.arithmetic import mul, select
from funcgrad.ops.comparison import eq, gt, isnan, logical_or, lt
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import ALL, Domain, Operand, apply
from funcgrad.ops.scalar import Emitter, compare


def _kinks(at_nan: tuple[float, float]) -> Domain:
    return Domain(at={
        (1.0, 1.0): ((0.5, 0.5), (0.0, 0.0)),
        (2.0, 2.0): ((0.5, 0.5), (0.0, 0.0)),
        (0.0, 0.0): ((0.5, 0.5), (0.0, 0.0)),
        (nan, 1.0): (at_nan, (0.0, 0.0)),
        (1.0, nan): (at_nan[::-1], (0.0, 0.0)),
    })  # fmt: skip


NAN_WINS = _kinks((1.0, 1.0))
NAN_LOSES = _kinks((0.0, 1.0))


def _choose(numpy: Any) -> Callable[[Any, Any], Any]:
    # NumPy's loops differ in which of 0.0 and -0.0 they return; here it is the second, always
    def evaluate(x: Any, y: Any) -> Any:
        out = numpy(x, y)
        if x.dtype.kind != "f":
            return out
        ties = x == y
        return np.where(ties, y, out)[()] if np.any(ties) else out

    return evaluate


def _pick(how: str, nan: int) -> Emitter:
    """x where it compares so with y, or where operand number `nan` is NaN; else y."""
    compared = compare(how)

    def emit(b: Any, dtype: Dtype, *values: Any) -> Any:
        takes = compared(b, dtype, *values)
        return b.select(b.or_(takes, b.isnan(values[nan])) if dtype.kind == "f" else takes, *values)

    return emit


def _half(x_dot: Any) -> Any:
    return mul(x_dot, 0.5)


# -- maximum, minimum: NaN wins


def maximum(x: Operand, y: Operand) -> Any:
    """The larger of x and y, elementwise; NaN where either is NaN.

    Parameters
    ----------
    x, y
        Arrays of real or complex numbers or bool. Complex numbers are compared by real, then imaginary part.

    Returns
    -------
    x where x > y, else y: of 0.0 and -0.0 the second.

    Notes
    -----
    The derivative is that of the larger operand, and half of each where they are equal. Where an operand is
    NaN, both derivatives pass, so that a result that is NaN never looks stationary.
    """
    return apply(maximum_p, x, y)


def _larger(dot: Any, x: Any, y: Any) -> Any:
    return select(eq(x, y), _half(dot), select(lt(x, y), 0.0, dot))


maximum_p = elementwise(
    maximum, numpy=np.maximum, dtypes=ALL, exact=True, domain=NAN_WINS,
    evaluate=_choose(np.maximum),
)  # fmt: skip
maximum_p.emit = _pick("gt", nan=0)
maximum_p.def_jvp(
    lambda x_dot, z, x, y: _larger(x_dot, x, y),  # d max(x, y) = dx if x > y, dx / 2 if x = y, else 0
    lambda y_dot, z, x, y: _larger(y_dot, y, x),
)


def minimum(x: Operand, y: Operand) -> Any:
    """The smaller of x and y, elementwise; NaN where either is NaN.

    Parameters
    ----------
    x, y
        Arrays of real or complex numbers or bool. Complex numbers are compared by real, then imaginary part.

    Returns
    -------
    x where x < y, else y: of 0.0 and -0.0 the second.

    Notes
    -----
    The derivative is that of the smaller operand, and half of each where they are equal. Where an operand is
    NaN, both derivatives pass, so that a result that is NaN never looks stationary.
    """
    return apply(minimum_p, x, y)


def _smaller(dot: Any, x: Any, y: Any) -> Any:
    return select(eq(x, y), _half(dot), select(gt(x, y), 0.0, dot))


minimum_p = elementwise(
    minimum, numpy=np.minimum, dtypes=ALL, exact=True, domain=NAN_WINS,
    evaluate=_choose(np.minimum),
)  # fmt: skip
minimum_p.emit = _pick("lt", nan=0)
minimum_p.def_jvp(
    lambda x_dot, z, x, y: _smaller(x_dot, x, y),  # d min(x, y) = dx if x < y, dx / 2 if x = y, else 0
    lambda y_dot, z, x, y: _smaller(y_dot, y, x),
)

# -- fmax, fmin: NaN loses


def fmax(x: Operand, y: Operand) -> Any:
    """The larger of x and y, elementwise; where one is NaN, the other.

    Parameters
    ----------
    x, y
        Arrays of real or complex numbers or bool. Complex numbers are compared by real, then imaginary part.

    Returns
    -------
    x where x > y or y is NaN, else y: of 0.0 and -0.0 the second.

    Notes
    -----
    The derivative is that of the operand returned, and half of each where they are equal.
    """
    return apply(fmax_p, x, y)


def _larger_number(dot: Any, x: Any, y: Any) -> Any:
    return select(eq(x, y), _half(dot), select(logical_or(gt(x, y), isnan(y)), dot, 0.0))


fmax_p = elementwise(
    fmax, numpy=np.fmax, dtypes=ALL, exact=True, domain=NAN_LOSES,
    evaluate=_choose(np.fmax),
)  # fmt: skip
fmax_p.emit = _pick("gt", nan=1)
fmax_p.def_jvp(
    lambda x_dot, z, x, y: _larger_number(x_dot, x, y),  # as maximum, but NaN has no share
    lambda y_dot, z, x, y: _larger_number(y_dot, y, x),
)


def fmin(x: Operand, y: Operand) -> Any:
    """The smaller of x and y, elementwise; where one is NaN, the other.

    Parameters
    ----------
    x, y
        Arrays of real or complex numbers or bool. Complex numbers are compared by real, then imaginary part.

    Returns
    -------
    x where x < y or y is NaN, else y: of 0.0 and -0.0 the second.

    Notes
    -----
    The derivative is that of the operand returned, and half of each where they are equal.
    """
    return apply(fmin_p, x, y)


def _smaller_number(dot: Any, x: Any, y: Any) -> Any:
    return select(eq(x, y), _half(dot), select(logical_or(lt(x, y), isnan(y)), dot, 0.0))


fmin_p = elementwise(
    fmin, numpy=np.fmin, dtypes=ALL, exact=True, domain=NAN_LOSES,
    evaluate=_choose(np.fmin),
)  # fmt: skip
fmin_p.emit = _pick("lt", nan=1)
fmin_p.def_jvp(
    lambda x_dot, z, x, y: _smaller_number(x_dot, x, y),  # as minimum, but NaN has no share
    lambda y_dot, z, x, y: _smaller_number(y_dot, y, x),
)

# -- clip


def clip(x: Operand, low: Operand, high: Operand) -> Any:
    """`x` held between `low` and `high`, elementwise: min(max(x, low), high), hence `high` where low > high.

    Notes
    -----
    The derivative passes inside, is 0 outside, and is shared evenly between x and a bound that it equals.
    """
    return minimum(maximum(x, low), high)
