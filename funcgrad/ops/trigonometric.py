"""Circular and hyperbolic functions and their inverses. Angles are in radians."""

from __future__ import annotations

from math import inf, pi
from typing import Any

import numpy as np

from funcgrad.ops import scalar, vecmath
from funcgrad.ops.arithmetic import add, div, mul, neg, select
from funcgrad.ops.comparison import eq
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import INEXACT, REAL, SMOOTH, Domain, Operand, apply, aval_of, full_like
from funcgrad.ops.powers import hypot, one_minus_square, sqrt, square

# -- sin, cos, tan


def sin(x: Operand) -> Any:
    """Sine, elementwise.

    Parameters
    ----------
    x
        Angles in radians.

    Returns
    -------
    Array in [-1, 1]. NaN where x is infinite.

    Notes
    -----
    The derivative is cos(x).
    """
    return apply(sin_p, x)


sin_p = elementwise(sin, numpy=np.sin, dtypes=INEXACT, domain=SMOOTH)
sin_p.emit = scalar.of_floats(vecmath.sin)
sin_p.def_jvp(lambda x_dot, y, x: mul(x_dot, cos(x)))  # d sin x = cos x dx


def cos(x: Operand) -> Any:
    """Cosine, elementwise.

    Parameters
    ----------
    x
        Angles in radians.

    Returns
    -------
    Array in [-1, 1]. NaN where x is infinite.

    Notes
    -----
    The derivative is -sin(x).
    """
    return apply(cos_p, x)


cos_p = elementwise(cos, numpy=np.cos, dtypes=INEXACT, domain=SMOOTH)
cos_p.emit = scalar.of_floats(vecmath.cos)
cos_p.def_jvp(lambda x_dot, y, x: neg(mul(x_dot, sin(x))))  # d cos x = -sin x dx


def tan(x: Operand) -> Any:
    """Tangent, elementwise.

    Parameters
    ----------
    x
        Angles in radians.

    Returns
    -------
    Array. NaN where x is infinite.

    Notes
    -----
    The derivative is 1 + tan(x)².
    """
    return apply(tan_p, x)


tan_p = elementwise(
    tan,
    numpy=np.tan,
    dtypes=INEXACT,
    domain=Domain(-1.2, 1.2, smooth="no float is an odd multiple of pi / 2"),
)
tan_p.emit = scalar.of_floats(vecmath.tan)
tan_p.def_jvp(lambda x_dot, y, x: mul(x_dot, add(square(y), 1.0)))  # d tan x = (1 + tan² x) dx

# -- arcsin, arccos, arctan


def arcsin(x: Operand) -> Any:
    """Inverse sine, elementwise: sin(arcsin(x)) = x.

    Parameters
    ----------
    x
        Numbers in [-1, 1], or complex numbers (branch cuts outside [-1, 1] on the real axis).

    Returns
    -------
    Angles in radians in [-pi/2, pi/2]. NaN where x is real and outside [-1, 1].

    Notes
    -----
    The derivative is 1 / sqrt(1 - x²): inf at ±1.
    """
    return apply(arcsin_p, x)


arcsin_p = elementwise(
    arcsin, numpy=np.arcsin, dtypes=INEXACT,
    domain=Domain(-0.9, 0.9, at={(1.0,): ((inf,), (inf,)), (-1.0,): ((inf,), (-inf,))}),
)  # fmt: skip
arcsin_p.emit = scalar.of_floats(vecmath.asin)
arcsin_p.def_jvp(lambda x_dot, y, x: div(x_dot, sqrt(one_minus_square(x))))  # d arcsin x = dx / √(1 - x²)


def arccos(x: Operand) -> Any:
    """Inverse cosine, elementwise: cos(arccos(x)) = x.

    Parameters
    ----------
    x
        Numbers in [-1, 1], or complex numbers (branch cuts outside [-1, 1] on the real axis).

    Returns
    -------
    Angles in radians in [0, pi]. NaN where x is real and outside [-1, 1].

    Notes
    -----
    The derivative is -1 / sqrt(1 - x²): -inf at ±1.
    """
    return apply(arccos_p, x)


arccos_p = elementwise(
    arccos, numpy=np.arccos, dtypes=INEXACT,
    domain=Domain(-0.9, 0.9, at={(1.0,): ((-inf,), (-inf,)), (-1.0,): ((-inf,), (inf,))}),
)  # fmt: skip
arccos_p.emit = scalar.of_floats(vecmath.acos)
arccos_p.def_jvp(
    lambda x_dot, y, x: neg(div(x_dot, sqrt(one_minus_square(x))))  # d arccos x = -dx / √(1 - x²)
)


def arctan(x: Operand) -> Any:
    """Inverse tangent, elementwise: tan(arctan(x)) = x.

    Parameters
    ----------
    x
        Real or complex numbers (branch cuts on the imaginary axis beyond ±1j).

    Returns
    -------
    Angles in radians in [-pi/2, pi/2]; ±pi/2 where x is ±inf.

    Notes
    -----
    The derivative is 1 / (1 + x²).
    """
    return apply(arctan_p, x)


arctan_p = elementwise(arctan, numpy=np.arctan, dtypes=INEXACT, domain=SMOOTH)
arctan_p.emit = scalar.of_floats(vecmath.atan)
arctan_p.def_jvp(lambda x_dot, y, x: div(x_dot, add(square(x), 1.0)))  # d arctan x = dx / (1 + x²)


def arctan2(y: Operand, x: Operand) -> Any:
    """The angle of the point (x, y) seen from the origin, elementwise, in the right quadrant.

    Parameters
    ----------
    y, x
        Coordinates, real: the ordinate comes first.

    Returns
    -------
    Angles in radians in [-pi, pi], counter-clockwise from the positive x axis. Signs of zeros count: on the
    negative x axis it is pi for y = 0.0 and -pi for y = -0.0.

    Notes
    -----
    The derivative is x / (x² + y²) in y and -y / (x² + y²) in x, and 0 at the origin; it does not overflow
    on the way.
    """
    return apply(arctan2_p, y, x)


def _over_square(dot: Any, a: Any, y: Any, x: Any) -> Any:
    h = hypot(x, y)
    return select(eq(h, 0.0), 0.0, mul(dot, div(div(a, h), h)))


arctan2_p = elementwise(
    arctan2, numpy=np.arctan2, dtypes=REAL,
    domain=Domain(at={
        (0.0, 0.0): ((0.0, 0.0), (0.0, 0.0)),
        (0.0, -1.0): ((-1.0, 0.0), (0.0, 0.0)),
        (1.0, 1.0): ((0.5, -0.5), (-0.5, 0.5)),
        (1e30, 1e30): ((5e-31, -5e-31), (-5e-61, 5e-61)),
    }),
)  # fmt: skip
arctan2_p.emit = scalar.of_floats(vecmath.atan2)
arctan2_p.def_jvp(
    # dz = (x dy - y dx) / (x² + y²), and 0 at the origin
    lambda y_dot, z, y, x: _over_square(y_dot, x, y, x),
    lambda x_dot, z, y, x: neg(_over_square(x_dot, y, y, x)),
)

# -- sinh, cosh, tanh


def sinh(x: Operand) -> Any:
    """Hyperbolic sine, elementwise: (exp(x) - exp(-x)) / 2.

    Notes
    -----
    The derivative is cosh(x).
    """
    return apply(sinh_p, x)


sinh_p = elementwise(sinh, numpy=np.sinh, dtypes=INEXACT, domain=SMOOTH)
sinh_p.emit = scalar.of_floats(vecmath.sinh)
sinh_p.def_jvp(lambda x_dot, y, x: mul(x_dot, cosh(x)))  # d sinh x = cosh x dx


def cosh(x: Operand) -> Any:
    """Hyperbolic cosine, elementwise: (exp(x) + exp(-x)) / 2.

    Returns
    -------
    Array in [1, inf].

    Notes
    -----
    The derivative is sinh(x).
    """
    return apply(cosh_p, x)


cosh_p = elementwise(cosh, numpy=np.cosh, dtypes=INEXACT, domain=SMOOTH)
cosh_p.emit = scalar.of_floats(vecmath.cosh)
cosh_p.def_jvp(lambda x_dot, y, x: mul(x_dot, sinh(x)))  # d cosh x = sinh x dx


def tanh(x: Operand) -> Any:
    """Hyperbolic tangent, elementwise: sinh(x) / cosh(x).

    Returns
    -------
    Array in [-1, 1].

    Notes
    -----
    The derivative is 1 - tanh(x)², within an ulp of 1: it is exactly 0 where tanh(x) rounds to ±1 (|x| > 19.1
    in float64).
    """
    return apply(tanh_p, x)


tanh_p = elementwise(
    tanh, numpy=np.tanh, dtypes=INEXACT,
    domain=Domain(at={
        (800.0,): ((0.0,), (0.0,)),
        (-800.0,): ((0.0,), (0.0,)),
        (inf,): ((0.0,), (0.0,)),
    }),
)  # fmt: skip
tanh_p.emit = scalar.of_floats(vecmath.tanh)
tanh_p.def_jvp(lambda x_dot, y, x: mul(x_dot, one_minus_square(y)))  # d tanh x = (1 - tanh² x) dx

# -- arcsinh, arccosh, arctanh


def arcsinh(x: Operand) -> Any:
    """Inverse hyperbolic sine, elementwise: log(x + sqrt(x² + 1)).

    Notes
    -----
    The derivative is 1 / sqrt(x² + 1).
    """
    return apply(arcsinh_p, x)


def _root_of_one_plus_square(x: Any) -> Any:
    if aval_of(x).dtype.kind == "f":
        return hypot(x, full_like(x, 1.0))  # x² would overflow, in float16 from 256 on
    return sqrt(add(square(x), 1.0))


arcsinh_p = elementwise(arcsinh, numpy=np.arcsinh, dtypes=INEXACT, domain=SMOOTH)
arcsinh_p.emit = scalar.of_floats(vecmath.asinh)
arcsinh_p.def_jvp(lambda x_dot, y, x: div(x_dot, _root_of_one_plus_square(x)))  # d arcsinh x = dx / √(x² + 1)


def arccosh(x: Operand) -> Any:
    """Inverse hyperbolic cosine, elementwise: log(x + sqrt(x² - 1)).

    Parameters
    ----------
    x
        Numbers from 1 on, or complex numbers (branch cut on the real axis below 1).

    Returns
    -------
    Array in [0, inf]. NaN where x is real and below 1.

    Notes
    -----
    The derivative is 1 / sqrt(x² - 1): inf at 1.
    """
    return apply(arccosh_p, x)


arccosh_p = elementwise(
    arccosh, numpy=np.arccosh, dtypes=INEXACT, domain=Domain(1.2, 4.0, at={(1.0,): ((inf,), (-inf,))})
)
arccosh_p.emit = scalar.of_floats(vecmath.acosh)
arccosh_p.def_jvp(lambda x_dot, y, x: div(x_dot, sinh(y)))  # dx = sinh y dy; x² - 1 would overflow


def arctanh(x: Operand) -> Any:
    """Inverse hyperbolic tangent, elementwise: log((1 + x) / (1 - x)) / 2.

    Parameters
    ----------
    x
        Numbers in [-1, 1], or complex numbers (branch cuts outside [-1, 1] on the real axis).

    Returns
    -------
    Array. ±inf where x is ±1; NaN where x is real and outside [-1, 1].

    Notes
    -----
    The derivative is 1 / (1 - x²): inf at ±1.
    """
    return apply(arctanh_p, x)


arctanh_p = elementwise(
    arctanh, numpy=np.arctanh, dtypes=INEXACT,
    domain=Domain(-0.9, 0.9, at={(1.0,): ((inf,), (inf,)), (-1.0,): ((inf,), (-inf,))}),
)  # fmt: skip
arctanh_p.emit = scalar.of_floats(vecmath.atanh)
arctanh_p.def_jvp(lambda x_dot, y, x: div(x_dot, one_minus_square(x)))  # d arctanh x = dx / (1 - x²)

# -- degrees


def deg2rad(x: Operand) -> Any:
    """Angles from degrees to radians, elementwise: x pi / 180."""
    return apply(deg2rad_p, x)


deg2rad_p = elementwise(deg2rad, numpy=np.deg2rad, dtypes=REAL, domain=SMOOTH)
deg2rad_p.flops = 1
deg2rad_p.emit = lambda b, dtype, x: b.mul(x, pi / 180)
deg2rad_p.def_linear()
deg2rad_p.transpose = lambda cts, x: (deg2rad(cts[0]),)


def rad2deg(x: Operand) -> Any:
    """Angles from radians to degrees, elementwise: x 180 / pi."""
    return apply(rad2deg_p, x)


rad2deg_p = elementwise(rad2deg, numpy=np.rad2deg, dtypes=REAL, domain=SMOOTH)
rad2deg_p.flops = 1
rad2deg_p.emit = lambda b, dtype, x: b.mul(x, 180 / pi)
rad2deg_p.def_linear()
rad2deg_p.transpose = lambda cts, x: (rad2deg(cts[0]),)
