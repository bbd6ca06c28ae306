"""Arrays of every dtype, with the values that go wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float32", "float64")
FLOATS = ("float32", "float64")
SHAPES = ((), (0,), (3,), (2, 3))


def array(shape: tuple[int, ...], dtype: Any = "float64", special: bool = False, seed: int = 0) -> np.ndarray:
    """Random elements; `special` puts NaN, an infinity and -0.0 among floats, and extremes among integers."""
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        out = np.asarray(rng.integers(max(info.min, -9), 9, shape).astype(dtype))
        if special and out.size >= 3:
            out.flat[:3] = info.min, info.max, 0
        return out
    out = np.asarray((rng.standard_normal(shape) * 2).astype(dtype))
    if special and out.size >= 3:
        out.flat[:3] = np.nan, -np.inf, -0.0
    return out
