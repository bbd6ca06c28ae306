"""Elementary functions as emitters: ``exp(b, x)`` appends the instructions of exp to a builder.

The functions are straight-line polynomials over a whole vector, for f64 and f32, with and without fma; sine, cosine
and tangent leave the line for huge angles only. No compiler is imported here.
"""

from funcgrad.ops.vecmath.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from funcgrad.ops.vecmath.logarithm import log, log1p, log2, log10, logaddexp
from funcgrad.ops.vecmath.trigonometric import cos, sin, tan
