"""The error function and its relatives, and products with a logarithm."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log as log_of, pi, sqrt as sqrt_of
from typing import Any

import numpy as np

from funcgrad.ops import scalar, vecmath
from funcgrad.ops.arithmetic import add, div, mask_mul, mul, neg
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.exponential import exp, log, log1p
from funcgrad.ops.op import INEXACT, REAL, SMOOTH, Domain, Operand, apply
from funcgrad.ops.powers import square


def _scipy(name: str) -> Callable[[Any], Any]:
    def evaluate(x: Any) -> Any:
        from scipy import special  # importing funcgrad does not import scipy

        return getattr(special, name)(x).astype(x.dtype)  # scipy has no loops for float16

    return evaluate


# -- error function


def erf(x: Operand) -> Any:
    """The error function, elementwise: 2 / sqrt(pi) times the integral of exp(-t²) from 0 to x.

    Parameters
    ----------
    x
        Array of real numbers; the function is odd.

    Returns
    -------
    Array in [-1, 1].

    Notes
    -----
    The derivative is 2 / sqrt(pi) exp(-x²).

    References
    ----------
    NIST Digital Library of Mathematical Functions, 7.2.1 and 7.10.1.
    """
    return apply(erf_p, x)


def _bell(x_dot: Any, x: Any) -> Any:
    return mul(x_dot, mul(exp(neg(square(x))), 2.0 / sqrt_of(pi)))


erf_p = elementwise(erf, numpy=None, dtypes=REAL, evaluate=_scipy("erf"), domain=SMOOTH)
erf_p.emit = scalar.of_floats(vecmath.erf)
erf_p.def_jvp(lambda x_dot, y, x: _bell(x_dot, x))  # d erf x = 2/√π exp(-x²) dx


def erfc(x: Operand) -> Any:
    """The complementary error function 1 - erf(x), elementwise, with full relative accuracy for large x.

    Parameters
    ----------
    x
        Array of real numbers.

    Returns
    -------
    Array in [0, 2].

    Notes
    -----
    The derivative is -2 / sqrt(pi) exp(-x²).

    References
    ----------
    NIST Digital Library of Mathematical Functions, 7.2.2 and 7.10.1.
    """
    return apply(erfc_p, x)


erfc_p = elementwise(erfc, numpy=None, dtypes=REAL, evaluate=_scipy("erfc"), domain=SMOOTH)
erfc_p.emit = scalar.of_floats(vecmath.erfc)
erfc_p.def_jvp(lambda x_dot, y, x: neg(_bell(x_dot, x)))  # d erfc x = -2/√π exp(-x²) dx


def erfinv(x: Operand) -> Any:
    """The inverse of the error function, elementwise: erf(erfinv(x)) = x.

    Parameters
    ----------
    x
        Array of numbers in [-1, 1].

    Returns
    -------
    Array. ±inf where x is ±1; NaN outside [-1, 1].

    Notes
    -----
    The derivative is sqrt(pi) / 2 exp(erfinv(x)²): inf at ±1.
    """
    return apply(erfinv_p, x)


_scipy_erfinv = _scipy("erfinv")

erfinv_p = elementwise(
    erfinv, numpy=None, dtypes=REAL,
    evaluate=lambda x: np.copysign(_scipy_erfinv(x), x),  # SciPy's loses the sign of -0.0
    domain=Domain(-0.9, 0.9, at={(1.0,): ((inf,), (inf,)), (-1.0,): ((inf,), (-inf,))}),
)  # fmt: skip
erfinv_p.emit = scalar.of_floats(vecmath.erfinv)
erfinv_p.def_jvp(
    lambda x_dot, y, x: mul(x_dot, mul(exp(square(y)), sqrt_of(pi) / 2.0))  # dy = √π/2 exp(y²) dx
)

# -- products with a logarithm


def xlogy(x: Operand, y: Operand) -> Any:
    """x log(y), elementwise, and 0 where x is 0, unless y is NaN.

    Parameters
    ----------
    x, y
        Arrays of numbers.

    Returns
    -------
    Array.

    Notes
    -----
    The derivative is log(y) in x and x / y in y, and 0 in y where x is 0, also at y = 0.
    """
    return apply(xlogy_p, x, y)


def _xlogy(x: Any, y: Any) -> Any:
    return np.where((x == 0) & ~np.isnan(y), x.dtype.type(0), x * np.log(y))[()]


xlogy_p = elementwise(
    xlogy, numpy=None, dtypes=INEXACT, evaluate=_xlogy,
    domain=Domain((-2.0, 0.2), (2.0, 3.0), at={
        (0.0, 0.0): ((-inf, 0.0), (0.0, 0.0)),
        (0.0, 2.0): ((log_of(2.0), 0.0), (0.0, 0.0)),
        (2.0, 0.0): ((-inf, inf), (0.0, -inf)),
    }),
)  # fmt: skip
xlogy_p.emit = scalar.of_floats(vecmath.xlogy)
xlogy_p.def_jvp(
    lambda x_dot, z, x, y: mul(x_dot, log(y)),  # d(x log y) = log y dx + x / y dy
    # 0 where x = 0, and yet its derivative in x is dy / y there, which a select would make 0
    lambda y_dot, z, x, y: mask_mul(x, div(y_dot, y)),
)


def xlog1py(x: Operand, y: Operand) -> Any:
    """x log(1 + y), elementwise, and 0 where x is 0, unless y is NaN; accurate for small y.

    Parameters
    ----------
    x, y
        Arrays of numbers.

    Returns
    -------
    Array.

    Notes
    -----
    The derivative is log1p(y) in x and x / (1 + y) in y, and 0 in y where x is 0, also at y = -1.
    """
    return apply(xlog1py_p, x, y)


def _xlog1py(x: Any, y: Any) -> Any:
    return np.where((x == 0) & ~np.isnan(y), x.dtype.type(0), x * np.log1p(y))[()]


xlog1py_p = elementwise(
    xlog1py, numpy=None, dtypes=INEXACT, evaluate=_xlog1py,
    domain=Domain((-2.0, -0.8), (2.0, 2.0), at={
        (0.0, -1.0): ((-inf, 0.0), (0.0, 0.0)),
        (0.0, 1.0): ((log_of(2.0), 0.0), (0.0, 0.0)),
        (2.0, -1.0): ((-inf, inf), (0.0, -inf)),
    }),
)  # fmt: skip
xlog1py_p.emit = scalar.of_floats(vecmath.xlog1py)
xlog1py_p.def_jvp(
    lambda x_dot, z, x, y: mul(x_dot, log1p(y)),  # d(x log(1 + y)) = log(1 + y) dx + x / (1 + y) dy
    lambda y_dot, z, x, y: mask_mul(x, div(y_dot, add(y, 1.0))),  # as in xlogy
)
