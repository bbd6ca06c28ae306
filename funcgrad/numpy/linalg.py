"""The part of `numpy.linalg` that needs no decomposition."""

from __future__ import annotations

from funcgrad.numpy.norms import matrix_norm, norm, vector_norm
from funcgrad.numpy.products import cross, matmul, outer, tensordot, vecdot
from funcgrad.numpy.rearranging import diagonal, trace
from funcgrad.numpy.shaping import matrix_transpose

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_transpose",
    "norm",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
