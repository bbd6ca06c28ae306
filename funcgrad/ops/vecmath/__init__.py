"""Elementary functions as emitters: ``exp(b, x)`` appends the instructions of exp to a builder.

The functions are straight-line polynomials over a whole vector, for f64 and f32, with and without fma; sine, cosine
and tangent leave the line for huge angles only. No compiler is imported here.

Each docstring states the largest error in ulps, over the whole range, subnormal numbers included: at most 1 for exp,
log, sin, cos and tanh, 2 for the others (erfc: 3). Infinities, NaN and the sign of zero are as in C99. Every vector
width computes the same bits; fma and its absence do not.
"""

from funcgrad.ops.vecmath.arithmetic import polynomial, quotient
from funcgrad.ops.vecmath.error_function import erf, erfc
from funcgrad.ops.vecmath.exponential import clamp, exp, exp2, expm1, sigmoid
from funcgrad.ops.vecmath.half_turns import sin_cos_pi, times_pi
from funcgrad.ops.vecmath.hyperbolic import acosh, asinh, atanh, cosh, sinh, tanh
from funcgrad.ops.vecmath.inverse import acos, asin, atan, atan2
from funcgrad.ops.vecmath.inverse_erf import erfinv
from funcgrad.ops.vecmath.logarithm import log, log1p, log2, log10, logaddexp
from funcgrad.ops.vecmath.powers import cbrt, hypot, pow
from funcgrad.ops.vecmath.products import logaddexp2, xlog1py, xlogy
from funcgrad.ops.vecmath.trigonometric import cos, sin, tan
