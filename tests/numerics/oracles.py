"""What the exact results are: in long double for float64, in float64 for float32, and in mpmath for single points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
from scipy import special

from tests.numerics.compiled import Array, f32, f64, libm, long

# -- in more digits than the dtype has


def logistic(x: Array) -> Array:
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, 1) / (1 + z)


def inverse_erf(x: Array) -> Array:
    """One step of Newton's method from SciPy's value."""
    with np.errstate(all="ignore"):
        y = inside_one(special.erfinv, x.astype(f64)).astype(long)
        a, b = np.abs(x.astype(long)), np.abs(y)
        inside = a < 1
        a, b = np.where(inside, a, 0), np.where(inside, b, 0)
        rest = np.where(a < 0.5, libm("erfl")(b) - a, (1 - a) - libm("erfcl")(b))
        b = b - rest * np.exp(b * b) * np.sqrt(np.arctan(long(1)))  # √π / 2
        return np.where(inside, np.copysign(b, x), y)


def inside_one(f: Callable[[Array], Array], x: Array) -> Array:
    """f(x) in [-1, 1], NaN elsewhere: SciPy takes microseconds to say so."""
    y = np.full_like(x, np.nan)
    inside = np.abs(x) <= 1
    y[inside] = f(x[inside])
    return y


def times(logarithm: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    """x logarithm(y), 0 where x is."""
    return lambda x, y: np.where((x == 0) & ~np.isnan(y), 0, x * logarithm(y))


def sinc(x: Array) -> Array:
    n, pi = np.rint(x), 4 * np.arctan(x.dtype.type(1))
    sign = 1 - 2 * (n - 2 * np.floor(n / 2))
    return np.where(np.abs(x) < 1e-30, 1, sign * np.sin(pi * (x - n)) / np.where(x == 0, 1, pi * x)) + 0


def degree(dtype: Any) -> Any:
    """π / 180."""
    return np.arctan(dtype.type(1)) / 45


REFERENCES: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "sinh": np.sinh,
    "cosh": np.cosh, "arcsin": np.arcsin, "arccos": np.arccos, "arctan": np.arctan, "sigmoid": logistic,
    "cbrt": np.cbrt, "erf": libm("erfl"), "erfc": libm("erfcl"), "arcsinh": np.arcsinh, "arccosh": np.arccosh,
    "arctanh": np.arctanh, "arctan2": np.arctan2, "pow": np.power, "hypot": np.hypot, "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2, "xlogy": times(np.log), "xlog1py": times(np.log1p), "erfinv": inverse_erf,
    "sinc": sinc, "deg2rad": lambda x: x * degree(x.dtype), "rad2deg": lambda x: x / degree(x.dtype),
}  # fmt: skip
OF_DOUBLES: dict[str, Callable[[Array], Array]] = {  # right to an ulp or two of f64
    "erf": special.erf, "erfc": special.erfc, "erfinv": lambda x: np.copysign(inside_one(special.erfinv, x), x),
}  # fmt: skip
EXACT: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "pow": mpmath.power,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "logaddexp": lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)),
    "logaddexp2": lambda x, y: mpmath.log(mpmath.mpf(2) ** x + mpmath.mpf(2) ** y, 2),
    "xlogy": lambda x, y: x * mpmath.log(y), "xlog1py": lambda x, y: x * mpmath.log1p(y), "sinc": mpmath.sincpi,
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "arctan2": mpmath.atan2,
    "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh,
    "deg2rad": lambda x: x * mpmath.pi / 180, "rad2deg": lambda x: x * 180 / mpmath.pi,
}  # fmt: skip
BINARY = ("arctan2", "pow", "hypot", "logaddexp", "logaddexp2", "xlogy", "xlog1py")
UNARY = tuple(name for name in REFERENCES if name not in BINARY)
ODD = (
    "sin", "tan", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh", "cbrt", "erf", "erfinv", "deg2rad",
    "rad2deg",
)  # fmt: skip
EVEN = ("cos", "cosh", "sinc")
CANCELLING = {"logaddexp": np.log(2.0), "logaddexp2": 1.0}  # errors are relative to the terms, at least to this
BOUNDS = dict.fromkeys(REFERENCES, 2.0) | dict.fromkeys(("exp", "log", "sin", "cos", "tanh"), 1.0) | {"erfc": 3.0}


def reference(name: str, dtype: Any, args: Sequence[Array]) -> Array:
    """The function in more digits than `dtype` has."""
    wider = long if dtype is f64 else f64
    with np.errstate(all="ignore"):
        if dtype is f32 and name in OF_DOUBLES:
            return OF_DOUBLES[name](args[0].astype(f64))
        return REFERENCES[name](*[a.astype(wider) for a in args])


# -- errors


def worst(name: str, y: Array, expected: Array, args: Sequence[Array], least: float = 0.5) -> tuple[float, int]:
    """The largest |y − expected| in units in the last place of `expected`, and where.

    `least` and 0 where none is larger than that; inf where one is NaN, or where a zero has the wrong sign. An overflow
    counts as the power of two beyond the largest number.
    """
    dtype, wide = y.dtype, expected.dtype.type
    info, word = np.finfo(dtype), f"i{y.dtype.itemsize}"
    if np.isnan(y[0]) and np.isnan(y).all() and np.isnan(expected).all():
        return least, 0
    with np.errstate(all="ignore"):
        odd = np.flatnonzero(expected.astype(dtype).view(word) != y.view(word))
        at, got = expected[odd], y[odd].astype(wide)
        small = np.abs(got - at) <= np.abs(at) * (least * 2.0 ** -(info.nmant + 1))  # an ulp is not less than that
        small = (small & (got != 0)) | (np.isnan(at) & np.isnan(got))
        if small.all():
            return least, 0
        odd, at, got = odd[~small], at[~small], got[~small]
        error = np.abs(clamped(got, info) - clamped(at, info)) / ulp_of(name, at, [a[odd] for a in args], info)
        wrong_zero = (got == 0) & (np.signbit(got) != np.signbit(at)) & (name not in CANCELLING)
        error[np.isnan(error) | wrong_zero] = np.inf
    i = int(np.argmax(error))
    return (float(error[i]), int(odd[i])) if error[i] > least else (least, 0)


def clamped(x: Array, info: Any) -> Array:
    """Numbers beyond the largest one of a dtype, and inf, as the power of two that follows."""
    top = np.ldexp(x.dtype.type(1), info.maxexp)
    return np.where(np.abs(x) >= top, np.copysign(top, x), x)


def ulp_of(name: str, exact: Array, args: Sequence[Array], info: Any) -> Array:
    """The unit of an error at these results."""
    size = np.abs(exact)
    if name in CANCELLING:
        terms = np.abs(np.maximum(*[a.astype(exact.dtype) for a in args]))
        size = np.maximum(size, np.maximum(terms, CANCELLING[name]))
    exponent = np.clip(np.frexp(size)[1], info.minexp + 1, info.maxexp)
    exponent[size == 0] = info.minexp + 1
    return np.ldexp(exact.dtype.type(1), exponent - info.nmant - 1)


# -- single points, to 60 digits and more


def exact(name: str, *args: float) -> Any:
    """The function to 60 digits and more (sin of a huge angle needs many)."""
    with mpmath.workdps(400 if name in ("sin", "cos", "tan") else 60):
        return EXACT.get(name, getattr(mpmath, name, None))(*[mpmath.mpf(float(a)) for a in args])


def to_mpmath(x: Any) -> Any:
    """A number of any precision as mpmath has it."""
    if not np.isfinite(x):
        return mpmath.mpf(float(x))
    m, exponent = np.frexp(x)
    high = f64(m)
    return mpmath.ldexp(mpmath.mpf(float(high)) + mpmath.mpf(float(m - type(m)(high))), int(exponent))


def exact_error(name: str, dtype: Any, y: Any, *args: float) -> float:
    """The error of `y` in ulps of `dtype`, as `worst` counts, against the exact result."""
    info = np.finfo(dtype)
    with mpmath.workdps(400 if name in ("sin", "cos", "tan") else 60):
        true, got, top = exact(name, *args), to_mpmath(y), mpmath.ldexp(1, info.maxexp)
        size = abs(true)
        if name in CANCELLING:
            size = max(size, abs(mpmath.mpf(float(max(args)))), CANCELLING[name])
        exponent = min(max(mpmath.frexp(size)[1] if size else info.minexp, info.minexp + 1), info.maxexp)
        true, got = max(min(true, top), -top), max(min(got, top), -top)
        return float(abs(got - true) / mpmath.ldexp(1, exponent - info.nmant - 1))
