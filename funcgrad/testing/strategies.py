"""Hypothesis strategies: arrays of finite floats, away from kinks or close to special points, pytrees, and programs.

Values have few digits where the interval allows it (they are half-precision numbers), so that examples are short.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, DtypeError, MissingPackageError, ParameterError, printed
from funcgrad.testing.drawing import Style, draw_recipe
from funcgrad.testing.flat import is_float
from funcgrad.testing.nesting import WRAPPERS
from funcgrad.testing.recipes import Recipe
from funcgrad.testing.vocabulary import OPERATIONS, PUBLIC

Points = float | Sequence[float]
NEARBY = (2.0**-4, 2.0**-10)  # how far from a point that is sought
VALUES = 64  # an interval with fewer numbers of a precision is drawn from in a higher one


def hypothesis(module: str = "") -> Any:
    """Hypothesis or one of its modules; only what draws examples needs it."""
    try:
        importlib.import_module("hypothesis")
        return importlib.import_module(f"hypothesis{module}")
    except ModuleNotFoundError:
        raise MissingPackageError(
            "funcgrad.testing draws examples with Hypothesis, which is not installed", hint="pip install hypothesis"
        ) from None


def arrays(
    shape: Any = (),
    dtype: Any = np.float64,
    *,
    low: float = -4.0,
    high: float = 4.0,
    avoid: Points = (),
    distance: float = 1 / 16,
    seek: Points = (),
) -> Any:
    """A Hypothesis strategy of arrays of floats.

    Parameters
    ----------
    shape
        An integer, a tuple, or a strategy of such. Arrays of shape ``()`` are NumPy scalars.
    dtype
        A real or complex one.
    low, high
        The bounds of all elements; of complex numbers, those of both parts. Far out, derivatives of saturating
        functions have few digits left to compare.
    avoid
        A point or several, as the kinks of a function: no element is closer to one than `distance`.
    distance
        How far to stay away from the points in `avoid`.
    seek
        A point or several: about half of the elements are one of these, or 2⁻⁴ or 2⁻¹⁰ away (relative, if it is large).

    Returns
    -------
    hypothesis.strategies.SearchStrategy

    Raises
    ------
    MissingPackageError
        Hypothesis is not installed.
    ParameterError
        There is no such number, or a point in `seek` is out of bounds.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> from funcgrad.testing import arrays
    >>> @settings(max_examples=20)
    ... @given(arrays((2, 3), low=-1, high=1, avoid=0))
    ... def test(x):
    ...     assert x.shape == (2, 3) and (abs(x) >= 1 / 16).all() and (abs(x) <= 1).all()
    >>> test()
    """
    return elements_between("arrays", low, high, avoid, distance, seek).arrays(shape, np.dtype(dtype))


def like(
    example: Any,
    *,
    low: float = -4.0,
    high: float = 4.0,
    avoid: Points = (),
    distance: float = 1 / 16,
    seek: Points = (),
) -> Any:
    """A Hypothesis strategy of pytrees with the structure, shapes and dtypes of an example.

    Parameters
    ----------
    example
        A pytree of arrays, numbers, `ShapeDtypeStruct`, or strategies, which stay what they are. Leaves that have no
        derivative (integers, say) stay too.
    low, high, avoid, distance, seek
        Of the elements, as for `arrays`.

    Examples
    --------
    >>> import numpy as np
    >>> from hypothesis import given, settings
    >>> from funcgrad.testing import like
    >>> @settings(max_examples=20)
    ... @given(like({"w": np.ones((2, 3)), "n": 4}))
    ... def test(tree):
    ...     assert tree["w"].shape == (2, 3) and tree["n"] == 4
    >>> test()
    """
    elements = elements_between("like", low, high, avoid, distance, seek)
    elements.require_use(example, "like")
    return elements.like(example)


def programs(
    steps: int = 8,
    depth: int = 1,
    *,
    operations: Sequence[str] = PUBLIC,
    wrappers: Sequence[str] = tuple(WRAPPERS),
) -> Any:
    """A Hypothesis strategy of whole programs: functions of NumPy code that do many operations, with their arguments.

    A program is called like any function; ``f.args`` is an example of its arguments, with results that are finite and
    small, at all of which it can be differentiated. Its ``repr``, which Hypothesis shows, is code that runs.

    Parameters
    ----------
    steps
        How many operations at most, nested ones not counted.
    depth
        How deep programs are nested in transforms, loops, branches and rules inside the program; 0: not at all.
    operations
        Names of primitives that are drawn from, the simplest first.
    wrappers
        What programs are nested in: names of `funcgrad.testing.nesting.WRAPPERS`, ``"in_scan"`` for example.

    Returns
    -------
    hypothesis.strategies.SearchStrategy

    Notes
    -----
    The arguments are one to three arrays, the first of float64; some are integers or truth values. A program returns a
    tuple of arrays. `f.steps` is what it was made from: an expression each, or a nested program.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> from funcgrad.testing import check_jit, programs
    >>> @settings(max_examples=5)
    ... @given(programs(depth=0))
    ... def test(f):
    ...     check_jit(f, f.args)
    >>> test()
    """
    st = hypothesis(".strategies")
    if not all([isinstance(n, int | np.integer) for n in (steps, depth)]) or steps < 1 or depth < 0:
        raise ParameterError(f"programs: steps is {steps}, depth {depth}", hint="steps is 1 or more, depth 0 or more")
    named = _known(operations, OPERATIONS, "operations"), _known(wrappers, WRAPPERS, "wrappers")
    if not named[0]:
        raise ParameterError("programs: operations is empty", hint='operations=["sin", "add"]')

    @st.composite  # type: ignore[untyped-decorator]
    def drawn(draw: Any) -> Recipe:
        return draw_recipe(Drawn(draw, st), Style(steps, depth, *named, single=0))

    return drawn()


def _known(names: Any, known: Any, what: str) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else tuple(names)
    for n in names:
        if n not in known:
            close = difflib.get_close_matches(str(n), known)
            raise ParameterError(
                f"programs: {n!r} is not one of the {what}",
                hint=f"{' or '.join(close)}?" if close else f"{what} are {', '.join([*known][:8])}, ...",
            )
    return names


class Drawn:
    """Choices by Hypothesis."""

    def __init__(self, draw: Any, st: Any) -> None:
        self.draw = draw
        self.st = st

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self.draw(self.st.integers(0, n - 1)))

    def more(self) -> bool:
        """Steps one by one, each of which can be left out."""
        return bool(self.draw(self.st.integers(0, 9)))

    def together(self, step: Callable[[], None]) -> None:
        """Run a step as one draw: it shrinks, and is left out, as a whole."""

        @self.st.composite  # type: ignore[untyped-decorator]
        def drawn(draw: Any) -> None:
            outer, self.draw = self.draw, draw
            try:
                step()
            finally:
                self.draw = outer

        self.draw(drawn())


def elements_between(who: str, low: Any, high: Any, avoid: Any, distance: Any, seek: Any) -> Elements:
    """Which numbers are drawn, as a user says it."""
    given = {"low": low, "high": high, "avoid": avoid, "distance": distance, "seek": seek}
    several = ("avoid", "seek")
    found = {name: _numbers(who, name, x, several=name in several) for name, x in given.items()}
    if found["distance"][0] < 0:
        raise ParameterError(f"{who}: distance is 0 or more, got {printed(distance)}")
    return Elements(**{name: x if name in several else x[0] for name, x in found.items()})


def _numbers(who: str, name: str, given: Any, several: bool) -> tuple[float, ...]:
    try:
        found = np.asarray(given)
        if (found.size and found.dtype.kind not in "iuf") or found.ndim > several or not np.isfinite(found).all():
            raise ValueError
    except (TypeError, ValueError):
        what = "a finite number, or several" if several else "a finite number"
        raise ParameterError(f"{who}: {name} is {what}, got {printed(given)}") from None
    return tuple([float(p) for p in found.ravel()])


@dataclass(frozen=True)
class Elements:
    """Which numbers are drawn; the parameters are those of `arrays`."""

    low: float = -4.0
    high: float = 4.0
    avoid: tuple[float, ...] = ()
    distance: float = 1 / 16
    seek: tuple[float, ...] = ()

    def require_use(self, example: Any, who: str) -> None:
        """Raise if something is asked for although all leaves are strategies already."""
        st = hypothesis(".strategies")
        drawn = [x for x in tree.flatten(example)[0] if isinstance(x, st.SearchStrategy) or is_float(x)]
        asked = [n for n, default in vars(Elements()).items() if getattr(self, n) != default]
        if asked and drawn and all([isinstance(x, st.SearchStrategy) for x in drawn]):
            raise ArgumentError(
                f"{who}: {' and '.join(asked)} would say nothing, because all arguments are strategies already",
                hint=f"give {'them' if len(asked) > 1 else 'it'} to the strategy, as in arrays(3, {asked[0]}=...)",
            )

    def like(self, example: Any) -> Any:
        """A strategy of trees like an example."""
        st = hypothesis(".strategies")
        leaves, treedef = tree.flatten(example)
        drawn = [self._leaf(x) for x in leaves]
        return st.tuples(*drawn).map(lambda values: tree.unflatten(treedef, values))

    def _leaf(self, x: Any) -> Any:
        st = hypothesis(".strategies")
        if isinstance(x, st.SearchStrategy):
            return x
        if not is_float(x):
            return st.just(x)
        if type(x) in (float, complex):
            return self.numbers(np.dtype(type(x)))
        return self.arrays(tuple(x.shape), np.dtype(x.dtype))

    def arrays(self, shape: Any, dtype: np.dtype[Any]) -> Any:
        """A strategy of arrays."""
        if dtype.kind not in "fc":
            raise DtypeError(f"arrays: draws floats, got {dtype}", hint="hypothesis.extra.numpy.arrays draws any dtype")
        extra, st = hypothesis(".extra.numpy"), hypothesis(".strategies")
        if not isinstance(shape, st.SearchStrategy) and not _is_shape(shape):
            raise ParameterError(
                f"arrays: a shape is an integer or a tuple of such, 0 or more, got {printed(shape)}",
                hint="like(x) draws arrays like x",
            )
        return extra.arrays(dtype, shape, elements=self.numbers(dtype)).map(lambda a: a[()])

    def numbers(self, dtype: np.dtype[Any]) -> Any:
        """A strategy of Python numbers that are exact in a dtype."""
        real = self._reals(np.finfo(dtype).bits)
        if dtype.kind == "f":
            return real
        st = hypothesis(".strategies")
        return st.builds(complex, real, real)

    def _reals(self, bits: int) -> Any:
        st = hypothesis(".strategies")
        widths = [w for w in (16, 32, 64) if w <= bits]
        strategies = []
        for lo, hi in self._intervals():
            bounds = _narrowest(lo, hi, widths)
            if bounds is not None:
                a, b, width = bounds
                strategies.append(st.floats(a, b, width=width, allow_subnormal=False))
        special = self._special(widths[-1])
        if special:
            strategies.append(st.sampled_from(special))
        if not strategies:
            away = f" at a distance of {self.distance:g} from {', '.join([f'{p:g}' for p in self.avoid])}"
            raise ParameterError(
                f"arrays: there is no {bits}-bit float from {self.low:g} to {self.high:g}{away if self.avoid else ''}"
            )
        return st.one_of(strategies)

    def _intervals(self) -> list[tuple[float, float]]:
        """What is left between the bounds, the interval closest to zero first: examples shrink to it."""
        left = [(self.low, self.high)]
        for p in self.avoid:
            lo, hi = p - self.distance, p + self.distance
            left = [part for a, b in left for part in ((a, min(b, lo)), (max(a, hi), b)) if part[0] <= part[1]]
        return sorted(left, key=lambda part: (max(part[0], -part[1], 0.0), part[1] <= 0))

    def _special(self, width: int) -> list[float]:
        kind = _kind(width)
        steps = [0.0, *[side * by for by in NEARBY for side in (1, -1)]]
        found = []
        for p in self.seek:
            near = [float(kind(p + step * max(1.0, abs(p)))) for step in steps]
            allowed = [x for x in near if self._allows(x)]
            if not allowed:
                away = ", or too close to a point in avoid" if self.avoid else ""
                raise ParameterError(f"arrays: seek={p:g} is not between {self.low:g} and {self.high:g}{away}")
            found += allowed
        return found

    def _allows(self, x: float) -> bool:
        return self.low <= x <= self.high and all([abs(x - p) >= self.distance for p in self.avoid])


def _is_shape(shape: Any) -> bool:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    return all([isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in sizes])


def _kind(width: int) -> Any:
    return np.dtype(f"f{width // 8}").type


def _narrowest(lo: float, hi: float, widths: Sequence[int]) -> tuple[float, float, int] | None:
    """The bounds, rounded inwards, and the least precision in which there is a choice between them."""
    for width, (a, b) in zip(widths, _rounded(lo, hi, widths), strict=True):
        few = b - a < VALUES * float(np.spacing(_kind(width)(max(abs(a), abs(b)))))
        if a <= b and not (few and width < widths[-1]):
            return a, b, width
    return None


def _rounded(lo: float, hi: float, widths: Sequence[int]) -> Iterator[tuple[float, float]]:
    for width in widths:
        kind = _kind(width)
        if max(abs(lo), abs(hi)) > float(np.finfo(kind).max):
            yield 1.0, 0.0
            continue
        a, b = kind(lo), kind(hi)
        a = a if float(a) >= lo else np.nextafter(a, kind(np.inf))
        b = b if float(b) <= hi else np.nextafter(b, kind(-np.inf))
        yield float(a), float(b)
