"""check_grads: the derivatives of a function at a point, in all modes and orders, against differences of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.api.tracing import boundary
from funcgrad.base.errors import ArgumentError, ForwardModeError, GradientError, KinkError, doing, printed
from funcgrad.testing.compare import number, uncertain
from funcgrad.testing.culprits import find_culprit
from funcgrad.testing.differences import Derivative
from funcgrad.testing.flat import Flat, element, flat_function, not_finite, random_like
from funcgrad.testing.kinks import find_kink, worst_of
from funcgrad.testing.probe import Finding, Subject, forward, has_forward, probe, subject

MODES = ("fwd", "rev")
ALONE = 16  # as many arguments are also moved one by one
PARTS = 64  # as many parts of a direction with a kink are tried


@boundary
def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = MODES,
    *,
    kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    directions: int = 2,
    full: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    kinks: str = "raise",
) -> None:
    """Raise `GradientError` unless the derivatives of `f` at `args` are those that differences of it have.

    Parameters
    ----------
    f
        Takes and returns pytrees of arrays. Integers are left as they are.
    args, kwargs
        The point: a tuple of arguments by position, and a dict.
    order
        Up to which order. Orders above 1 are checked in all sequences of `modes`, as the first derivatives of
        derivatives.
    modes
        ``"fwd"``, ``"rev"``, or both. Where a `custom_vjp` is in the way of forward mode, only reverse mode is checked.
    seed
        Of the random directions.
    directions
        Along how many random directions, one at least, all arguments are moved together; at first order each is moved
        alone too.
    full
        Move every element of every argument alone instead.
    rtol, atol
        What is allowed beyond the estimated error of the differences, relative to each element and absolutely. Default:
        1e-9 relative (3e-5 for float32, 3e-2 for float16).
    kinks
        ``"raise"``: `KinkError` if along one of the directions the function has a kink at the point, or differences do
        not converge. ``"skip"``: such a direction is split into halves until these have none, down to single elements.
        `KinkError` only if nothing could be checked, or in a Hypothesis test another point, as after ``assume(False)``.

    Raises
    ------
    GradientError
        A derivative is wrong. Says which one: the elements of argument and result, modes and order, what was found and
        what differences say; and which operation at which of your lines has the wrong derivative if it is alone.
    KinkError
        The point is on a kink. Says of which operation.
    ArgumentError
        No argument, or no result, is of floating point: there is nothing to check. Or a parameter is none.

    Notes
    -----
    Differences are extrapolated (`numerical_jvp`), and what is allowed follows from their error estimates, and from
    how much rounding changes the function and its derivative: first derivatives of smooth functions are right to about
    1e-9. A function of float32 is differenced in float64 if it follows the dtype of its arguments. `f` must be
    deterministic, and able to run at points near `args`: single elements move by up to a sixteenth.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import check_grads
    >>> check_grads(lambda x, y: np.sum(np.sin(x) * y), (np.array([0.5, 1.0]), 2.0))
    """
    order = checked_order(order, "check_grads")
    modes, rng = checked_modes(modes, "check_grads"), checked_rng(seed, "check_grads")
    checker = Checker(modes, rng, _directions(directions), full, rtol, atol, _kinks(kinks))
    with np.errstate(all="ignore"):
        flat = flat_function(f, args, kwargs, "check_grads")
        with doing(f"checking the derivatives of {flat.name}"):
            checker.check(flat, order)


def checked_order(order: Any, who: str) -> int:
    """An order of derivatives."""
    return checked_count(order, f"{who}: order")


def checked_count(n: Any, what: str) -> int:
    """A number of things: one at least."""
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ArgumentError(f"{what} is 1 or more, got {printed(n)}")
    return int(n)


def checked_rng(seed: Any, who: str) -> np.random.Generator:
    """Random numbers from a seed."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ArgumentError(f"{who}: seed is an integer, 0 or more, got {printed(seed)}")
    return np.random.default_rng(seed)


def _directions(directions: Any) -> int:
    return checked_count(directions, "check_grads: directions")


def checked_modes(modes: Any, who: str) -> tuple[str, ...]:
    """One mode or several."""
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if not modes or not set(modes) <= set(MODES):
        raise ArgumentError(f"{who}: modes are 'fwd' and 'rev', got {printed(modes)}")
    return modes


def _kinks(kinks: Any) -> str:
    if kinks not in ("raise", "skip"):
        raise ArgumentError(f"check_grads: kinks is 'raise' or 'skip', got {printed(kinks)}")
    return str(kinks)


@dataclass(frozen=True)
class Checker:
    """What to check, and how; the parameters are those of `check_grads`."""

    modes: tuple[str, ...]
    rng: np.random.Generator
    directions: int
    full: bool
    rtol: float | None
    atol: float | None
    kinks: str

    def check(self, flat: Flat, order: int) -> None:
        """Check the first derivative of a function, and if more are wanted those of its derivatives."""
        values = flat.values(flat.x)
        if not flat.modes:
            require_floats(flat, values)
        if not sum([np.size(a) for a in flat.x]) or not sum([y.size for y in values]):
            return
        modes = self._available(flat)
        s = subject(flat, self.rtol, self.atol)
        checked, smooth = False, True
        for direction in self._directions(flat):
            w = random_like(values, self.rng)
            parts = self._smooth(s, direction)
            smooth = smooth and any([v is direction for v, _ in parts])
            for v, d in parts:
                finding = probe(s, v, w, d, modes)
                if finding is not None and not smooth and not np.isfinite(finding.found):
                    continue  # a slope that is infinite elsewhere, times zero
                if finding is not None:
                    raise gradient_error(s, finding, v, w)
                checked = True
        if not checked and not flat.modes:
            _nothing_checked(s, direction)
        for mode in self._differentiable(flat, modes) if order > 1 else ():
            along = random_like(flat.x if mode == "fwd" else values, self.rng)
            self.check(flat.derived(mode, along), order - 1)

    def _available(self, flat: Flat) -> tuple[str, ...]:
        """The modes that the function has at its point."""
        if "fwd" not in self.modes or forward(flat, random_like(flat.x, np.random.default_rng(0))) is not None:
            return self.modes
        if self.modes == ("fwd",):
            raise ForwardModeError(
                f"{flat.name} contains a custom_vjp, which has no forward mode", hint='check_grads(..., modes=("rev",))'
            )
        return ("rev",)

    def _differentiable(self, flat: Flat, modes: tuple[str, ...]) -> tuple[str, ...]:
        """The modes whose derivatives have a derivative in turn."""
        return ("rev",) if set(modes) == set(MODES) and not has_forward(flat) else modes

    def _smooth(self, s: Subject, v: list[Any]) -> list[tuple[list[Any], Derivative]]:
        """A direction and the derivative along it; where it has a kink and may, the parts of it that have none."""
        waiting, found = [v], []
        for _ in range(PARTS):
            if not waiting:
                break
            v = waiting.pop(0)
            d = s.differences(v)
            if not d.singular.any():
                found.append((v, d))
            elif self.kinks == "raise":
                raise kink_error(s.flat, v, d)
            else:
                waiting += halves(v)
        return found

    def _directions(self, flat: Flat) -> Iterator[list[Any]]:
        if self.full:
            for k, a in enumerate(flat.x):
                for i in range(np.size(a)):
                    yield basis(flat.x, k, i)
            return
        for i in range(self.directions):
            yield random_like(flat.x, self.rng, scaled=i % 2 == 1)
        if not flat.modes and 1 < len(flat.x) <= ALONE:
            for k, v in enumerate(random_like(flat.x, self.rng, scaled=True)):
                if np.size(v):
                    yield [v if i == k else np.zeros_like(a)[()] for i, a in enumerate(flat.x)]


def require_floats(flat: Flat, values: Sequence[Any], who: str = "check_grads") -> None:
    """Something has a derivative."""
    if not flat.x:
        raise ArgumentError(
            f"{who}: {flat.name} gets no argument of floating point, so that it has no derivative",
            hint="2.0 in place of 2; x.astype(float)",
        )
    if not values:
        raise ArgumentError(f"{who}: {flat.name} returns nothing of floating point, so that it has no derivative")


def basis(arrays: Sequence[Any], k: int, i: int) -> list[Any]:
    """Zeros like the arrays, with a one at element `i` of array `k`."""
    out = [np.zeros_like(np.asarray(a)) for a in arrays]
    out[k].flat[i] = 1
    return [a[()] for a in out]


# -- what to say


def sequence(flat: Flat, mode: str) -> str:
    """``rev over fwd, order 2``"""
    return f"{' over '.join([mode, *flat.modes[::-1]])}, order {len(flat.modes) + 1}"


def gradient_error(s: Subject, finding: Finding, v: Sequence[Any], w: Sequence[Any]) -> GradientError:
    """The error for a wrong derivative, narrowed down to one element of an argument and one of the results."""
    flat = s.flat
    v, w, finding = narrowed(s, finding, v, w)
    argument = _only(flat.names, v) or "all arguments together"
    if finding.output is not None and finding.element is not None:
        output = element(flat.outputs[finding.output], np.shape(flat.values(flat.x)[finding.output]), finding.element)
    else:
        output = _only(flat.outputs, w) or "all results together"
    message = (
        f"{sequence(flat, finding.mode)}: the derivative of {output} in {argument} is {number(finding.found)}, "
        f"but should be {uncertain(finding.expected, finding.error)}"
    )
    culprit = find_culprit(flat)
    if culprit is None:
        return GradientError(f"{flat.name}: {message}", hint="no single operation has a wrong derivative alone")
    return GradientError(f"{flat.name}: {message}", culprit=str(culprit), source=culprit.source)


def _only(names: Sequence[str], arrays: Sequence[Any]) -> str | None:
    """The name of the only element that is not zero."""
    places = moved(arrays)
    if len(places) != 1:
        return None
    k, i = places[0]
    return element(names[k], np.shape(arrays[k]), i)


def narrowed(s: Subject, finding: Finding, v: Sequence[Any], w: Sequence[Any]) -> tuple[list[Any], list[Any], Finding]:
    """A direction (and, of reverse mode, a weight) with a single element along which the derivative is wrong too."""
    modes = MODES if finding.mode == "rev" else ("fwd",)

    def wrong(v: Sequence[Any], w: Sequence[Any]) -> Finding | None:
        found = probe(s, v, w, s.differences(v), modes)
        return found if found is not None and found.mode == finding.mode else None

    v, finding = halved(v, finding, lambda part: wrong(part, w))
    if finding.mode == "rev":
        w, finding = halved(w, finding, lambda part: wrong(v, part))
    return list(v), list(w), finding


def halved(
    arrays: Sequence[Any], finding: Finding, wrong: Callable[[list[Any]], Finding | None]
) -> tuple[list[Any], Finding]:
    """Halve what is not zero in `arrays` as long as one of the halves is wrong; what is left has ones."""
    places = moved(arrays)
    arrays = list(arrays)
    while len(places) > 1:
        half = len(places) // 2
        for part in (places[:half], places[half:]):
            kept = only_at(arrays, part)
            found = wrong(kept)
            if found is not None:
                arrays, places, finding = kept, part, found
                break
        else:
            return arrays, finding
    one = basis(arrays, *places[0])
    found = wrong(one)
    return (arrays, finding) if found is None else (one, found)


def moved(arrays: Sequence[Any]) -> list[tuple[int, int]]:
    """Which elements are not zero: the number of the array, and the place in it."""
    return [(k, int(i)) for k, a in enumerate(arrays) for i in np.flatnonzero(np.asarray(a))]


def halves(arrays: Sequence[Any]) -> list[list[Any]]:
    """The arrays as a sum of two with half of the elements each; nothing if there is one element."""
    places = moved(arrays)
    half = len(places) // 2
    return [only_at(arrays, part) for part in (places[:half], places[half:])] if half else []


def only_at(arrays: Sequence[Any], places: Sequence[tuple[int, int]]) -> list[Any]:
    """The arrays, with zeros everywhere but at these places."""
    out = [np.zeros_like(np.asarray(a)) for a in arrays]
    for k, i in places:
        out[k].flat[i] = np.asarray(arrays[k]).flat[i]
    return [a[()] for a in out]


def _nothing_checked(s: Subject, v: Sequence[Any]) -> None:
    """Every direction was left out. Hypothesis draws another point; elsewhere this is an error."""
    hypothesis = sys.modules.get("hypothesis")
    if hypothesis is not None and hypothesis.currently_in_test_context():
        hypothesis.reject()
    error = kink_error(s.flat, v, s.differences(v))
    error.hint = "nothing is left to check when directions with kinks are skipped; check another point"
    raise error


def kink_error(flat: Flat, v: Sequence[Any], d: Derivative) -> KinkError:
    """The error for a point where the function has no derivative: the two sides disagree, or differences diverge."""
    i = worst_of(d)
    order = len(flat.modes) + 1
    of = "" if order == 1 else f", and so {'no second derivative' if order == 2 else f'no derivative of order {order}'}"
    strange = not_finite(flat)
    if strange:
        return KinkError(f"{flat.name} has no derivative to check at this point: {strange}", hint="a finite point")
    found = find_kink(flat, v)
    where = flat.name if found is None else found
    if d.kinks[i]:
        said = f"this point sits on a kink of {where}{of}"
        why = f"along a random direction it is {number(d.right[i])} to one side, {number(d.left[i])} to the other"
    else:
        said = f"differences do not converge at this point, because of {where}{of}"
        why = "there is a jump, an infinite slope, no finite value, or too small a scale (rescale the argument)"
    hint = f'{why}; check another point, or kinks="skip"'
    return KinkError(said, hint=hint, source=None if found is None else found.source)
