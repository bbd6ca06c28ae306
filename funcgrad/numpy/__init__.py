"""NumPy's functions, differentiable: the names, signatures and results of `numpy`.

On plain arrays they compute at once and return fresh `funcgrad.Array`\\ s; on traced ones they are recorded. Plain
`numpy` functions called with a traced array come here too. Differences from NumPy: results share no memory with
arguments (but for `asarray`), `out=` and other ways to write in place are refused, and float to integer saturates.
"""

from __future__ import annotations

from math import e, inf, nan, pi
from typing import Any

import numpy as _np

from funcgrad.core.array import Array
from funcgrad.numpy import linalg, methods as _methods
from funcgrad.numpy.calculus import diff, ediff1d, gradient, polyval, trapezoid, vander
from funcgrad.numpy.creation import (
    arange,
    array,
    asanyarray,
    asarray,
    ascontiguousarray,
    astype,
    copy,
    empty,
    empty_like,
    eye,
    fromfunction,
    full,
    full_like,
    geomspace,
    identity,
    indices,
    linspace,
    logspace,
    meshgrid,
    ones,
    ones_like,
    tri,
    zeros,
    zeros_like,
)
from funcgrad.numpy.einsum import einsum
from funcgrad.numpy.elementwise import functions as _functions
from funcgrad.numpy.operands import numpy_table as _numpy_table
from funcgrad.numpy.products import (
    cross,
    dot,
    inner,
    kron,
    matmul,
    matvec,
    outer,
    tensordot,
    vdot,
    vecdot,
    vecmat,
)
from funcgrad.numpy.rearranging import (
    append,
    delete,
    diag,
    diagflat,
    diagonal,
    flip,
    fliplr,
    flipud,
    insert,
    pad,
    repeat,
    resize,
    roll,
    rot90,
    take,
    take_along_axis,
    tile,
    trace,
    tril,
    triu,
)
from funcgrad.numpy.reductions import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    max,
    min,
    prod,
    ptp,
    sum,
)
from funcgrad.numpy.selection import (
    allclose,
    angle,
    around,
    array_equal,
    array_equiv,
    choose,
    clip,
    conjugate,
    divmod,
    fabs,
    fix,
    float_power,
    imag,
    isclose,
    isneginf,
    isposinf,
    modf,
    nan_to_num,
    positive,
    real,
    round,
    select,
    where,
)
from funcgrad.numpy.shaping import (
    array_split,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block,
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    column_stack,
    concat,
    concatenate,
    dsplit,
    dstack,
    expand_dims,
    hsplit,
    hstack,
    iscomplexobj,
    isrealobj,
    isscalar,
    matrix_transpose,
    moveaxis,
    ndim,
    permute_dims,
    ravel,
    reshape,
    result_type,
    rollaxis,
    shape,
    size,
    split,
    squeeze,
    stack,
    swapaxes,
    transpose,
    unstack,
    vsplit,
    vstack,
)
from funcgrad.numpy.sorting import argsort, sort
from funcgrad.numpy.statistics import (
    average,
    logsumexp,
    mean,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
    std,
    var,
)

_methods.install()

_ALIASES = {
    "abs": "absolute",
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_not": "invert",
    "bitwise_right_shift": "right_shift",
    "degrees": "rad2deg",
    "mod": "remainder",
    "pow": "power",
    "radians": "deg2rad",
    "true_divide": "divide",
}
for _name, _function in _functions.items():
    globals()[_name] = _function
for _name, _target in _ALIASES.items():
    globals()[_name] = _functions[_target]
    if hasattr(_np, _name):  # mostly the same object in NumPy too
        _numpy_table[getattr(_np, _name)] = _functions[_target]
conj = conjugate

bool_, bool = _np.bool_, _np.bool_
int8, int16, int32, int64 = _np.int8, _np.int16, _np.int32, _np.int64
uint8, uint16, uint32, uint64 = _np.uint8, _np.uint16, _np.uint32, _np.uint64
float16, float32, float64 = _np.float16, _np.float32, _np.float64
complex64, complex128 = _np.complex64, _np.complex128
dtype, finfo, iinfo, can_cast, promote_types, issubdtype = (
    _np.dtype, _np.finfo, _np.iinfo, _np.can_cast, _np.promote_types, _np.issubdtype,
)  # fmt: skip
floating, integer, inexact, number = _np.floating, _np.integer, _np.inexact, _np.number
newaxis = None
# about indices, all static: NumPy's own
diag_indices, ix_, tril_indices, triu_indices = _np.diag_indices, _np.ix_, _np.tril_indices, _np.triu_indices
index_exp, mgrid, ogrid, s_ = _np.index_exp, _np.mgrid, _np.ogrid, _np.s_
ndarray = Array

__all__ = sorted([_n for _n in globals() if not _n.startswith("_") and _n not in ("annotations", "Any")])


def __getattr__(name: str) -> object:
    if not name.startswith("_") and hasattr(_np, name):
        raise AttributeError(f"funcgrad.numpy has no {name} yet; numpy.{name} works on plain arrays only")
    raise AttributeError(f"module 'funcgrad.numpy' has no attribute {name!r}")
