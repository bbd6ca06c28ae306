"""dtypes: short names, weak Python scalars, NumPy's promotion.

funcgrad has no lattice of its own: NumPy's rules (NEP 50) decide, float64 is the default, and a Python scalar
is *weak*: it takes the dtype of what it meets.

    >>> short(np.dtype("float64")), short(np.dtype(bool))
    ('f64', 'bool')
    >>> promote(np.dtype("float32"), float)
    dtype('float32')
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

Dtype = np.dtype[Any]
Weak = type[int] | type[float] | type[complex]

BOOL: Final[Dtype] = np.dtype(bool)
INT: Final[Dtype] = np.dtype(np.int64)
FLOAT: Final[Dtype] = np.dtype(np.float64)
COMPLEX: Final[Dtype] = np.dtype(np.complex128)

float0: Final[Dtype] = np.dtype([("float0", np.void, 0)])
"""The dtype of a tangent of an integer or boolean value: it holds nothing."""

_KINDS: Final[dict[str, str]] = {"f": "f", "i": "i", "u": "u", "c": "c"}
_WEAK: Final[dict[str, Weak]] = {"i": int, "f": float, "c": complex}
_SCALARS: Final[dict[type, Dtype]] = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX}

SUPPORTED_KINDS: Final = "biufc"


def short(dtype: Dtype) -> str:
    """The short name used in printed Programs: f64, i32, u8, bool, c128."""
    if dtype == BOOL:
        return "bool"
    if dtype == float0:
        return "float0"
    kind = _KINDS.get(dtype.kind)
    return f"{kind}{dtype.itemsize * 8}" if kind else str(dtype)


@cache
def is_inexact(dtype: Dtype) -> bool:
    """True for floating and complex dtypes: those that have derivatives."""
    return dtype.kind in "fc"


def lowest(dtype: Dtype) -> float:
    """The value that no other of a real dtype is below."""
    return -np.inf if dtype.kind == "f" else 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


def highest(dtype: Dtype) -> float:
    """The value that no other of a real dtype is above."""
    return np.inf if dtype.kind == "f" else 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


def is_supported(dtype: Dtype) -> bool:
    """True for the dtypes that a traced array may have."""
    return dtype.kind in SUPPORTED_KINDS and dtype.itemsize <= 16


def scalar_dtype(kind: type) -> Dtype:
    """The dtype of a Python scalar type: bool, int64, float64, complex128."""
    return _SCALARS[kind]


def weak_of(dtype: Dtype) -> Weak:
    """The Python scalar type that stands for a weak value of `dtype` in promotion."""
    return _WEAK[dtype.kind]


@lru_cache(maxsize=4096)
def promote(*operands: Dtype | Weak) -> Dtype:
    """NumPy's result type; `int`, `float` and `complex` stand for weak scalars.

    Only weak operands give Python's own: int64, float64, complex128.
    """
    examples: list[Any] = [o if isinstance(o, np.dtype) else o(0) for o in operands]
    return np.result_type(*examples)


def default_float(dtype: Dtype) -> Dtype:
    """`dtype` itself when inexact, else float64: the dtype of a mean."""
    return dtype if is_inexact(dtype) else FLOAT


def tangent_dtype(dtype: Dtype) -> Dtype:
    """The dtype of the tangents of a value of `dtype`."""
    return dtype if is_inexact(dtype) else float0
