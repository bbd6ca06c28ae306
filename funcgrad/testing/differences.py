"""Numerical derivatives: differences, extrapolated to step zero, with an estimate of their error.

    g'(0) = (g(h) - g(-h)) / 2h + c h² + ...

Steps shrink by a factor of four, and the terms in h², h⁴, ... are eliminated one after the other. Every entry of the
table so made is compared with its neighbours, which says how far to trust it; to that comes what rounding can do at
that step. Each element of the result takes the entry that is trusted most. The differences of either side are
extrapolated from the same values: where they disagree, the function has a kink.

What large steps see may hide the derivative: poles, overflow, or only larger values. Where little is known, or there
seems to be a kink, the same is done from smaller steps on, until one of these series says what the derivative is.

References
----------
C. J. F. Ridders, "Accurate computation of F'(x) and F'(x)F''(x)", Advances in Engineering Software 4 (1982) 75-76.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

SHRINK = 4
LEVELS = 27  # steps between 2**-4 and 2**-56
BETWEEN = 0.2887  # a step between two others, and no simple fraction of them
COLUMNS = 6
DIGITS = 0.01  # a relative error below which a number has digits at all

EPS = 2.0**-52
ROUGH = (1.0 * 2.0**-42, 1.3125 * 2.0**-41, 1.6875 * 2.0**-40)  # steps between which nothing but rounding changes
COARSE = 16  # as many units in the last place are no rounding of the value itself
FINE = 2.0**-6  # of the changes: what is finer is no step of the function itself
GENERIC = 0.7853981633974483  # of a step: with all digits
SEEN = 3  # such steps
LOST = 0.05  # a relative error above which nothing is known
ASTRAY = 3.0  # times their errors two estimates differ of which one is wrong
VAGUE = 1e-6  # an error, relative to the first differences, above which smaller steps may know better
FINER = SHRINK**6  # how much smaller the first step of the next series is
SERIES = 4
CLEAN = 1e-9  # the relative noise of a function above which it is no wonder that nothing is known

Vector = Any
Sample = Callable[[float], Vector]


class Table:
    """Differences for smaller and smaller steps, extrapolated; the best entry of each element.

    Parameters
    ----------
    order
        The power of the step in which the error of a difference is a series: 2 for central ones, 1 for one-sided ones.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.row: list[Vector] = []
        self.last: Vector = None  # the difference before the last one
        self.value: Vector = None
        self.error: Vector = None
        self.first: Vector = None  # the size of the first difference
        self.steepest: Vector = None  # the largest difference so far
        self.still: Vector = True  # which elements have not moved so far

    def add(self, difference: Vector, noise: Vector) -> None:
        """Take in the difference for the next step, which rounding may have changed by `noise`."""
        new = [difference]
        self.last = self.row[0] if self.row else difference
        if self.value is None:
            self.value, self.error = difference, np.full(difference.shape, np.inf)
            self.steepest = np.zeros(difference.shape)
            self.first = np.where(np.isfinite(difference), abs(difference), 0.0)
        self.still = self.still & (difference == 0)
        self.steepest = np.fmax(self.steepest, np.where(np.isfinite(difference), abs(difference), 0.0))
        noise = noise + EPS * self.steepest
        for j, old in enumerate(self.row[: COLUMNS - 1]):
            gain = float(SHRINK) ** (self.order * (j + 1)) - 1
            entry = new[j] + (new[j] - old) / gain
            error = np.maximum(abs(entry - new[j]), abs(entry - old))
            if j + 1 < len(self.row):  # two differences may agree by chance: then the entry before does not
                error = np.maximum(error, abs(entry - self.row[j + 1]) / float(SHRINK) ** (self.order * (j + 2)))
            self._offer(entry, error + noise)
            new.append(entry)
        self.row = new

    def _offer(self, value: Vector, error: Vector) -> None:
        finite = np.isfinite(value) & np.isfinite(error)
        error = np.where(finite, error, np.inf)
        relative, best = self._relative(value, error), self.relative
        digits = np.minimum(relative, best) < DIGITS
        better = finite & np.where(digits, relative < best, error < self.error)
        self.value = np.where(better, value, self.value)
        self.error = np.where(better, error, self.error)

    @staticmethod
    def _relative(value: Vector, error: Vector) -> Vector:
        return error / np.maximum(abs(value), np.finfo(float).tiny)

    @property
    def relative(self) -> Vector:
        """The error relative to the value."""
        return self._relative(self.value, self.error)

    def settled(self, noise: Vector) -> bool:
        """Whether no smaller step, with that much noise, can be better."""
        return bool(((noise >= self.error) & (self.still | (self.relative < DIGITS))).all())

    def confirmed(self, difference: Vector, noise: Vector) -> bool:
        """Whether the last step, and one that is no fraction of the others, roughly agree; if not, all is forgotten.

        Steps that are multiples of the period of an oscillation do not see it.
        """
        off, other = abs(self.row[0] - self.value), abs(difference - self.value)
        near = 0.1 * abs(self.value) + 10 * noise
        good = off <= near + 0.1 * abs(self.row[0]) + 0.5 * abs(self.row[0] - self.last)
        good &= other <= near + 0.1 * abs(difference) + off
        self.error = np.where(good, self.error, np.inf)
        return bool(good.all())


@dataclass(frozen=True)
class Derivative:
    """The derivative of a function of one real number, with error estimates; central, and from either side.

    `lost` says where differences do not converge: at a jump, an infinite slope, or among values that are not finite;
    `murky` where rounding leaves few digits; `first` is the size of the first differences.
    """

    value: Vector
    error: Vector
    right: Vector
    right_error: Vector
    left: Vector
    left_error: Vector
    lost: Vector
    murky: Vector
    first: Vector

    @property
    def kinks(self) -> Vector:
        """Where the two sides disagree by more than their errors."""
        gap = abs(self.right - self.left)
        known = np.isfinite(self.right_error) & np.isfinite(self.left_error)
        errors = np.where(known, self.right_error + self.left_error, np.inf)
        return gap > 20 * errors + np.where(self.murky, 0.1, 1e-7) * (abs(self.right) + abs(self.left))

    @property
    def doubtful(self) -> Vector:
        """Where smaller steps may know better."""
        vague = (self.error > LOST * abs(self.value)) & (self.error > VAGUE * self.first)
        return self.singular | vague | (np.fmin(self.right_error, self.left_error) > LOST * self.first)

    def beats(self, other: Derivative) -> Vector:
        """Where both say something, and the other one knows fewer digits."""
        fewer = self.error * abs(other.value) < other.error * abs(self.value)
        return fewer & ~self.singular & ~other.singular

    def where(self, chosen: Vector, other: Derivative) -> Derivative:
        """The same, with what another one says about the chosen elements."""
        pairs = {f.name: (getattr(other, f.name), getattr(self, f.name)) for f in fields(self)}
        return Derivative(**{name: np.where(chosen, *pair) for name, pair in pairs.items()})

    @property
    def singular(self) -> Vector:
        """Where there is no derivative that differences could find: a kink, or they do not converge."""
        return self.kinks | self.lost


def derivative(
    g: Sample, start: float, eps: float, noise: Vector | None = None, blur: float = 0.0, finest: float = np.inf
) -> Derivative:
    """The derivative of `g` at 0.

    Parameters
    ----------
    g
        Takes a float, returns a vector.
    start
        The largest step.
    eps
        The relative rounding error of the values of `g`.
    noise
        How much rounding on the way changes these values at least; None: that is found from the values.
    blur
        How much rounding changes the argument.
    finest
        The step that is as large as the smallest number in the argument.
    """
    g = cache(g)
    with np.errstate(all="ignore"):
        found = _series(g, start, eps, noise, blur, LEVELS)
        for h, levels in _starts(start, min(start, finest)):
            doubtful = found.doubtful
            if not doubtful.any():
                break
            other = _series(g, h, eps, noise, blur, levels)
            found = found.where(doubtful & (~other.doubtful | other.beats(found)), other)
        return found


def _starts(start: float, finest: float) -> Iterator[tuple[float, int]]:
    """First steps that are smaller, and how many steps from there on are of use."""
    levels = [LEVELS - 6 * k for k in range(SERIES)]
    for k in range(1, SERIES):
        yield start / float(FINER) ** k, levels[k]
    if finest < start / SHRINK:
        for k in range(SERIES):
            yield finest / float(FINER) ** k, levels[k]


def _series(g: Sample, start: float, eps: float, noise: Vector | None, blur: float, levels: int) -> Derivative:
    """The derivative as steps from `start` on say it."""
    middle = g(0.0)
    rough = np.fmax(0.0 if noise is None else noise, _roughness(g, middle, start))
    found = _extrapolated(g, start, eps, rough, blur, levels)
    if noise is None:
        grain = _grain(g, start, eps)
        if (grain > rough).any():
            found = _extrapolated(g, start, eps, np.fmax(rough, grain), blur, levels)
    return _chosen(*found, abs(middle), 0.0 if noise is None else noise, start)


def _extrapolated(
    g: Sample, start: float, eps: float, rough: Vector, blur: float, levels: int
) -> tuple[Table, Table, Table]:
    """Central differences, and those of either side, for steps from `start` on, until smaller ones do not help."""
    middle = g(0.0)
    central, right, left = tables = Table(2), Table(1), Table(1)
    h = start
    for level in range(levels):
        steps, error = _steps(g, middle, h, eps, rough, blur)
        for table, step in zip(tables, steps, strict=True):
            table.add(step, error)
        if level >= COLUMNS - 2 and all([t.settled(SHRINK * error) for t in tables]):
            steps, error = _steps(g, middle, h * BETWEEN, eps, rough, blur)
            if all([t.confirmed(step, error) for t, step in zip(tables, steps, strict=True)]):
                break
        h /= SHRINK
    return central, right, left


def _grain(g: Sample, start: float, eps: float) -> Vector:
    """What all values near 0 are multiples of, if rounding on the way is the reason; otherwise 0.

    1 - 1/(1 + exp(-18)) is 1.5e-8, but a multiple of 2**-53: it moves in steps of that.
    """
    middle = g(0.0)
    found, size, change = _unit(middle), abs(middle), np.zeros(middle.shape)
    for k in range(SEEN):
        for t in (start * GENERIC / SHRINK**k, -start * GENERIC / SHRINK**k):
            y = g(t)
            found = np.fmin(found, _unit(y))
            size, change = np.fmin(size, abs(y)), np.fmax(change, abs(y - middle))
            if not (found > COARSE * eps * size).any():
                return np.zeros(middle.shape)
    return np.where((found > COARSE * eps * size) & (found < FINE * change), found, 0.0)


def _unit(y: Vector) -> Vector:
    """The largest power of two that each number is a multiple of; infinite for zero."""
    if y.dtype.kind == "c":
        return np.fmin(_unit(y.real), _unit(y.imag))
    digits, exponent = np.frexp(np.where(np.isfinite(y), y, 0.0))
    whole = np.ldexp(digits, 53).astype(np.int64)
    return np.where(whole == 0, np.inf, np.ldexp((whole & -whole).astype(float), exponent - 53))


def _steps(
    g: Sample, middle: Vector, h: float, eps: float, rough: Vector, blur: float
) -> tuple[tuple[Vector, ...], Vector]:
    """The differences for one step, central and of either side, and what rounding may do to them."""
    above, below = g(h), g(-h)
    sizes = [np.where(np.isfinite(y), abs(y), 0.0) for y in (above, below, middle)]
    slope = (above - below) / (2 * h)
    size = np.fmax(np.maximum(eps * sum(sizes), rough), blur * abs(slope))
    return (slope, (above - middle) / h, (middle - below) / h), size / h


def _roughness(g: Sample, middle: Vector, start: float) -> Vector:
    """How much rounding changes the values of `g`, from second differences for steps that only rounding can see."""
    found = np.zeros(middle.shape)
    for factor in ROUGH:
        second = abs(g(start * factor) - 2 * middle + g(-start * factor))
        found = np.fmax(found, np.where(np.isfinite(second), second, 0.0))
    return found


def _chosen(central: Table, right: Table, left: Table, size: Vector, noise: Vector, start: float) -> Derivative:
    """Central differences; where there are none, because the function ends at the point, those of one side.

    Beside a kink central differences of steps that reach it may converge to what is not there: the sides know better.
    """
    value, error = central.value, central.error
    middle, between = (right.value + left.value) / 2, (right.error + left.error) / 2
    astray = (abs(value - middle) > ASTRAY * (error + between)) & (between < VAGUE * error)
    value, error = np.where(astray, middle, value), np.where(astray, between, error)
    for side in (right, left):
        known = side.error <= DIGITS * np.fmax(abs(side.value), side.first)
        missing = ~np.isfinite(error) & known
        value, error = np.where(missing, side.value, value), np.where(missing, side.error, error)
    finite = np.isfinite(size)
    first = np.fmax(right.first, left.first)
    size, moved = np.fmax(size, first), np.fmax(size, first * start)
    murky = noise > CLEAN * moved
    lost = ~(error <= LOST * size) & ~(error <= LOST * abs(value)) & ~murky | ~finite
    return Derivative(value, error, right.value, right.error, left.value, left.error, lost, murky, first)


def ravel(arrays: Sequence[Any]) -> Vector:
    """Arrays as one vector, in double precision."""
    if not arrays:
        return np.zeros(0)
    return np.concatenate([np.asarray(a).ravel().astype(np.result_type(a, np.float64)) for a in arrays])


def along(x: Sequence[Any], v: Sequence[Any], t: float) -> list[Any]:
    """x + t v, of the kinds of the elements of x."""
    return [_moved(a, b, t) for a, b in zip(x, v, strict=True)]


def _moved(a: Any, b: Any, t: float) -> Any:
    if type(a) in (float, complex):
        return a + t * type(a)(b)
    a = np.asarray(a)
    return np.asarray(a + np.asarray(t * np.asarray(b)).astype(a.dtype), a.dtype)[()]


def largest_step(x: Sequence[Any], v: Sequence[Any]) -> float:
    """The largest t, a power of two, for which x + t v changes no element by more than a sixteenth (or 1/16)."""
    pairs = [(abs(a), abs(b)) for a, b in zip(map(np.asarray, x), map(np.asarray, v), strict=True) if a.size]
    fastest = max([float((b / np.maximum(a, 1.0)).max()) for a, b in pairs], default=0.0)
    if not fastest or not np.isfinite(fastest):
        return 2.0**-4
    return float(2.0 ** np.floor(np.log2(2.0**-4 / fastest)))


@dataclass(frozen=True)
class Line:
    """The points x + t v, for lists of arrays; `eps` and `noise` are the rounding errors of what is computed there."""

    x: Sequence[Any]
    v: Sequence[Any]
    eps: float
    noise: Vector | None = None

    def at(self, t: float) -> list[Any]:
        """The point for t."""
        return along(self.x, self.v, t)

    def derivative(self, f: Callable[[float], Vector]) -> Derivative:
        """The derivative at 0 of a function of t; where t leads to x itself nothing is known."""

        def sample(t: float) -> Vector:
            found = f(t)
            return found if not t or self._moves(t) else np.full(found.shape, np.nan)

        with np.errstate(all="ignore"):
            least = self._size()
            finest = 2.0 ** np.floor(np.log2(least / 16)) if least else np.inf
        return derivative(sample, largest_step(self.x, self.v), self.eps, self.noise, EPS * least, finest)

    def _size(self) -> float:
        """The smallest element that moves, in units of t: what is rounded at least."""
        pairs = [(abs(np.asarray(a)), abs(np.asarray(b))) for a, b in zip(self.x, self.v, strict=True)]
        sizes = [float((a / b).min(where=(a != 0) & (b != 0), initial=np.inf)) for a, b in pairs]
        least = min(sizes, default=np.inf)
        return least if np.isfinite(least) else 0.0

    def _moves(self, t: float) -> bool:
        return any([np.any(a != b) for a, b in zip(self.at(t), self.x, strict=True)])


def derivative_along(
    f: Callable[..., Sequence[Any]], x: Sequence[Any], v: Sequence[Any], eps: float, noise: Vector | None = None
) -> Derivative:
    """The derivative of ``f(*x)``, a list of arrays, along `v`; all as one vector."""
    line = Line(x, v, eps, noise)
    return line.derivative(lambda t: ravel(f(*line.at(t))))
