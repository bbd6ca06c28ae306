"""Checks of values: operations that hand on their operand, or raise."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT, Dtype, short
from funcgrad.base.errors import IntegerOverflowError
from funcgrad.core.ir import make_aval
from funcgrad.core.primitive import Traits
from funcgrad.core.trace import bind1
from funcgrad.ops.elementwise import batch_elementwise
from funcgrad.ops.op import SMOOTH, Op, Operand


def check_fits(x: Operand, dtype: Dtype) -> Any:
    """`x`, whose values must fit an integer dtype: what NumPy asks of a Python integer that meets an array.

    Parameters
    ----------
    x
        int64.
    dtype
        An integer dtype.

    Raises
    ------
    IntegerOverflowError
        A value is outside the range of `dtype`.
    """
    info = np.iinfo(dtype)
    low, high = max(int(info.min), -(2**63)), min(int(info.max), 2**63 - 1)
    return bind1(check_fits_p, x, low=low, high=high, target=short(dtype))


def _evaluate(x: Any, *, low: int, high: int, target: str) -> tuple[Any]:
    outside = (x < low) | (x > high)
    if np.any(outside):
        raise _fault(int(np.asarray(x)[outside].flat[0]), low=low, high=high, target=target)
    return (x,)


def _fault(value: int, *, low: int, high: int, target: str) -> IntegerOverflowError:
    return IntegerOverflowError(f"the Python integer {value} does not fit {target}")


check_fits_p = Op(check_fits, Traits(exact=True, may_raise=True, kind="check"), dtypes="i", domain=SMOOTH)
check_fits_p.abstract = lambda x, **params: (make_aval(x.shape, INT),)
check_fits_p.evaluate = _evaluate
check_fits_p.batch = batch_elementwise(check_fits_p)
check_fits_p.def_no_derivative("its result is an integer")
check_fits_p.fault = _fault
check_fits_p.check = lambda b, dtype, x, *, low, high, target: (x, b.or_(b.lt(x, low), b.gt(x, high)))
