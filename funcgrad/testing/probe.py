"""One check of one derivative: forward mode against differences, reverse mode against both, along one direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.base.errors import ForwardModeError
from funcgrad.testing.compare import SAFETY, Mismatch, Tolerance, tolerance_for, worst
from funcgrad.testing.differences import Derivative, derivative_along, ravel
from funcgrad.testing.flat import Flat, pairing, random_like
from funcgrad.testing.rounding import rounding
from funcgrad.testing.walking import differenced, narrowest


@dataclass(frozen=True)
class Finding:
    """A derivative that is wrong along a direction.

    Attributes
    ----------
    mode : str
        ``"fwd"`` or ``"rev"``.
    found, expected, error
        What it is, what it should be, and how far that is known.
    output, element
        Which result is off, and where; of reverse mode None.
    """

    mode: str
    found: Any
    expected: Any
    error: float
    output: int | None = None
    element: int | None = None


CERTAIN = 1e3  # times its error, a derivative is no noise


@dataclass(frozen=True)
class Subject:
    """A function whose derivative is checked.

    Attributes
    ----------
    flat : Flat
    exact : Flat
        What differences are taken of: the same in double precision, if it stays there.
    eps : float
        How exact that is.
    tolerance : Tolerance
    noise : ndarray
        How much rounding changes the results of `exact`.
    """

    flat: Flat
    exact: Flat
    eps: float
    tolerance: Tolerance
    noise: Any

    def differences(self, v: Sequence[Any]) -> Derivative:
        """The derivative along `v`, numerically."""
        return derivative_along(self.exact.call, self.exact.x, v, self.eps, self.noise)


def subject(flat: Flat, rtol: float | None = None, atol: float | None = None) -> Subject:
    """A function as it is checked, with tolerances for the least precise dtype that it computes with."""
    exact, dtype = differenced(flat)
    own = dtype if exact is flat else narrowest(flat)
    return Subject(flat, exact, float(np.finfo(dtype).eps), tolerance_for(own, rtol, atol), rounding(exact))


def has_forward(flat: Flat) -> bool:
    """Whether the derivative by forward mode has one too: no branch holds a backward rule only, taken or not."""
    rng = np.random.default_rng(0)
    derived = flat.derived("fwd", random_like(flat.x, rng))
    try:
        derived.reverse(random_like(derived.values(flat.x), rng))
    except ForwardModeError:
        return False
    return True


def _noise(flat: Flat, mode: str, direction: Sequence[Any]) -> Any:
    """How much rounding may change a derivative; nothing is known where it is no function."""
    try:
        return rounding(flat.derived(mode, direction))
    except ForwardModeError:
        return 0.0


def forward(flat: Flat, v: Sequence[Any]) -> list[Any] | None:
    """The derivative by forward mode; None if a function with a backward rule only is in the way."""
    try:
        return flat.forward(v)
    except ForwardModeError:
        return None


@np.errstate(all="ignore")
def probe(s: Subject, v: Sequence[Any], w: Sequence[Any], d: Derivative, modes: Sequence[str]) -> Finding | None:
    """What is wrong with the derivative along `v`, of results weighed by `w`, given the numerical one."""
    dots = forward(s.flat, v) if "fwd" in modes else None
    if dots is not None:
        off = worst(dots, d.value, d.error, s.tolerance)
        if off is not None:  # unless rounding explains it
            off = worst(dots, d.value, d.error + _noise(s.flat, "fwd", v), s.tolerance)
        if off is not None:
            return _forward_finding(off)
    return reverse_finding(s, v, balanced(w, d), d, dots) if "rev" in modes else None


def balanced(w: Sequence[Any], d: Derivative) -> list[Any]:
    """Weights of results, the less the larger their derivatives are: no result is lost beside a large one."""
    ends = np.cumsum([np.size(x) for x in w])[:-1]
    pairs = zip(np.split(abs(d.value), ends), np.split(np.broadcast_to(d.error, d.value.shape), ends), strict=True)
    known = lambda x: float(np.max(x, initial=0.0, where=np.isfinite(x)))
    sizes = [(known(value), known(error)) for value, error in pairs]
    least = min([size for size, error in sizes if size > CERTAIN * error], default=0.0)
    powers = [np.floor(np.log2(least / size)) if size > least > 0 else 0.0 for size, _ in sizes]
    return [(x * np.exp2(max(p, -100.0))).astype(x.dtype) for x, p in zip(map(np.asarray, w), powers, strict=True)]


def _forward_finding(off: Mismatch) -> Finding:
    return Finding("fwd", off.found, off.expected, off.error, off.output, off.element)


@np.errstate(all="ignore")
def reverse_finding(
    s: Subject, v: Sequence[Any], w: Sequence[Any], d: Derivative, dots: Sequence[Any] | None
) -> Finding | None:
    """The adjoint test: ⟨w, J v⟩ = ⟨Jᵀ w, v⟩, where J v is known from differences, and from forward mode if it is."""
    bars, tolerance = s.flat.reverse(w), s.tolerance
    found, size = pairing(bars, v)
    weights = abs(ravel(w))
    wrong = None
    if np.isfinite(d.value).all() and np.isfinite(d.error).all():
        expected = float((ravel(w) * d.value).real.sum())
        allowed = tolerance.allowed(d.value, d.error, 0.0)
        bound = float((weights * allowed).sum()) + tolerance.slack * size
        if not abs(found - expected) <= bound:
            wrong = Finding("rev", found, expected, float((weights * d.error).sum()))
    if wrong is None and dots is not None:
        expected, other = pairing(w, dots)
        bound = 0.1 * tolerance.rtol * (size + other) + tolerance.atol
        if np.isfinite(expected) and not abs(found - expected) <= bound:
            wrong = Finding("rev", found, expected, bound)
    if wrong is None:
        return None
    noise = float((_noise(s.flat, "rev", w) * abs(ravel(v))).sum())
    if dots is not None:
        noise += float((_noise(s.flat, "fwd", v) * weights).sum())
    return None if abs(wrong.found - wrong.expected) <= bound + SAFETY * noise else wrong
