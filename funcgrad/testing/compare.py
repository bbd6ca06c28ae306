"""Comparing what two ways of differentiating say: how much they may differ, and which element differs most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.base.errors import ArgumentError, printed
from funcgrad.testing.differences import ravel

RTOL = {8: 1e-9, 4: 3e-5, 2: 3e-2}  # by the bytes of a real number
SAFETY = 10.0  # of error estimates


@dataclass(frozen=True)
class Tolerance:
    """How much a derivative may differ from the expected one.

    Parameters
    ----------
    rtol
        Relative to the expected element.
    atol
        Absolutely.
    slack
        Relative to the largest element of the same array: rounding of sums that cancel.
    """

    rtol: float
    atol: float
    slack: float

    def allowed(self, expected: Any, error: Any, largest: Any) -> Any:
        """By how much each element may be off, if `expected` itself may be by `error`."""
        return SAFETY * error + self.rtol * abs(expected) + self.atol + self.slack * largest


def tolerance_for(dtype: Any, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The tolerance for derivatives computed in this dtype; `rtol` and `atol` as the user wants them."""
    for name, x in (("rtol", rtol), ("atol", atol)):
        if x is not None and not (isinstance(x, float | int | np.floating | np.integer) and x >= 0):
            raise ArgumentError(f"{name} is a number, 0 or more, got {printed(x)}")
    info = np.finfo(dtype)
    own = RTOL.get(info.dtype.itemsize, 1e-9)
    return Tolerance(own if rtol is None else rtol, 0.0 if atol is None else atol, min(own, 2.0**12 * float(info.eps)))


@dataclass(frozen=True)
class Mismatch:
    """The element that is off most, relative to what is allowed."""

    output: int
    element: int
    found: Any
    expected: Any
    error: float


def largest_of(arrays: Sequence[Any]) -> Any:
    """For every element of all arrays, as one vector, the largest finite one of its array."""
    out = []
    for a in map(np.asarray, arrays):
        sizes = abs(a)[np.isfinite(a)]
        out.append(np.full(a.size, sizes.max() if sizes.size else 0.0, float))
    return np.concatenate(out) if out else np.zeros(0)


def worst(found: Sequence[Any], expected: Any, error: Any, tolerance: Tolerance) -> Mismatch | None:
    """The element of `found` that is off most, if any is by more than it may; `expected` is one vector."""
    given = ravel(found)
    if not given.size:
        return None
    with np.errstate(all="ignore"):
        allowed = tolerance.allowed(expected, error, largest_of(found))
        off = abs(given - expected)
        fine = (given == expected) | ~np.isfinite(expected) | ~np.isfinite(error)  # or nothing is known
        excess = np.where(np.isfinite(given), off / np.maximum(allowed, np.finfo(float).tiny), np.inf)
        excess = np.where(fine, 0.0, excess)
    i = int(np.argmax(excess))
    if not excess[i] > 1:
        return None
    sizes = np.cumsum([np.asarray(a).size for a in found])
    k = int(np.searchsorted(sizes, i, side="right"))
    start = int(sizes[k - 1]) if k else 0
    return Mismatch(k, i - start, given[i], expected[i], float(np.broadcast_to(error, given.shape)[i]))


def number(x: Any) -> str:
    """A number for messages."""
    x = complex(x)
    return f"{x:.10g}" if x.imag else f"{x.real:.10g}"


def uncertain(x: Any, error: float) -> str:
    """A number with its uncertainty, which is rounded up to a power of ten."""
    known = np.isfinite(error) and error > 0
    return f"{number(x)} ± {f'1e{int(np.ceil(np.log10(error)))}' if known else f'{error:g}'}"


def exactly(x: Any) -> str:
    """A number with all its digits."""
    return str(x) if np.asarray(x).dtype.kind not in "fc" else repr(np.asarray(x).item())
