"""One random program, computed in every way that there is: each has to say the same.

Two results agree if they differ by no more than BASE relative to the largest number, or than SHAKEN times what a
rounding error in every operation changes. Programs of exact operations give equal bits under jit. Numerical derivatives
come with an estimate of their error, of which TRUST times is allowed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.api.inspect import abstract_trace
from funcgrad.base.errors import TracerArrayConversionError, UnsupportedError
from funcgrad.core.ir import Program, subprograms
from funcgrad.core.primitive import registry
from funcgrad.core.trace import eagerly
from funcgrad.testing.compiled import is_exact
from funcgrad.testing.differences import derivative_along, ravel
from funcgrad.testing.plain import PLAIN
from funcgrad.testing.recipes import Recipe
from funcgrad.testing.rounding import Shaker, shaken
from tests.rule_checker import same_bits

BASE = 1e-11
SHAKEN = 50.0
SINGLE = 2e-6  # what a program may differ by, relative to its largest number, that computes in float32 in between
TRUST = 20.0
NO_DERIVATIVE = ("stop_gradient", "nextafter", "spacing")  # what differences say of these is something else
SHAKES = 12  # runs with other rounding errors
CHAOS = 1e-3  # noise above which nothing can be said

Function = Callable[..., Any]


@dataclass
class Failure(Exception):
    """Two ways disagree, or one raises."""

    way: str
    what: str

    @property
    def kind(self) -> str:
        """The same for the same fault, found in another program."""
        return f"{self.way}: {re.sub(r'[0-9].*', '', self.what)[:60]}"

    def __str__(self) -> str:
        return f"{self.way}: {self.what}"


@dataclass
class Outcome:
    """What became of a program.

    Attributes
    ----------
    ways
        In which it was computed and compared.
    unsettled
        In which nothing could be said: by chaos, at a kink.
    """

    failure: Failure | None = None
    ways: list[str] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)


def trace(recipe: Recipe) -> Program:
    """The Program of a recipe."""
    return fg.make_program(recipe)(*recipe.args)


def equations(program: Program) -> int:
    """How many there are, with those inside."""
    return sum([1 + sum([equations(body) for _, body in subprograms(e)]) for e in program.equations])


def primitives(recipe: Recipe) -> set[str]:
    """The names of all primitives that its Program holds, and those inside it."""

    def look(program: Program) -> set[str]:
        inner = [look(body) for e in program.equations for _, body in subprograms(e)]
        return {e.primitive.name for e in program.equations}.union(*inner)

    return look(trace(recipe)) & registry.keys()


class TooSlow(Exception):
    """The time for a program is over."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TooSlow inside after so many seconds of CPU time, and each second from then on: someone may catch it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Checker:
    """The ways of one program, at its example of arguments."""

    def __init__(self, recipe: Recipe, seed: int = 0) -> None:
        self.recipe = recipe
        self.args = recipe.args
        self.random = np.random.default_rng(seed)
        self.plain = recipe.function(PLAIN)
        self.outcome = Outcome()
        with np.errstate(all="ignore"):
            self.expected = [np.asarray(y) for y in self.plain(*self.args)]
        self.single = recipe.uses("float32") or any([a.dtype == np.float32 for a in self.args])
        self.floats = [i for i, a in enumerate(self.args) if a.dtype.kind == "f"]
        self.moving = [i for i, y in enumerate(self.expected) if y.dtype.kind == "f"]

    def run(self, way: str, f: Callable[[], Any]) -> Any:
        """A result; an exception is a failure."""
        try:
            with np.errstate(all="ignore"):
                return f()
        except (Failure, TooSlow, MemoryError):
            raise
        except Exception as error:
            raise Failure(way, f"{type(error).__name__}: {' | '.join(str(error).splitlines()[:4])}") from error

    # -- comparing

    def compare(
        self, way: str, found: Sequence[Any], expected: Sequence[Any], f: Function, args: Sequence[Any]
    ) -> None:
        """Raise a failure if two results of `f` disagree."""
        found = [np.asarray(y) for y in found]
        types = [(str(y.dtype), y.shape) for y in found], [(str(y.dtype), y.shape) for y in map(np.asarray, expected)]
        if types[0] != types[1]:
            raise Failure(way, f"types {types[0]} are not {types[1]}")
        wrong = self.worst(found, expected, 0.0)
        if wrong is not None:
            noise = self.noise(f, args)
            if noise is None or max([np.max(n, initial=0.0) for n in noise]) > CHAOS:
                self.outcome.unsettled.append(way)
                return
            wrong = self.worst(found, expected, noise)
            if wrong is not None:
                raise Failure(way, wrong)
        self.outcome.ways.append(way)

    def worst(self, found: Sequence[Any], expected: Sequence[Any], noise: Any) -> str | None:
        """The first difference that is too large."""
        for k, (a, b) in enumerate(zip(found, map(np.asarray, expected), strict=True)):
            if b.dtype.kind != "f":
                bad = a != b
            else:
                finite = np.isfinite(b)
                largest = max(1.0, float(np.max(np.abs(b), initial=0.0, where=finite)))
                allowed = BASE * largest * (np.finfo(b.dtype).eps / 2.0**-52) + (noise[k] * SHAKEN if noise else 0.0)
                allowed = np.maximum(allowed, SINGLE * largest if self.single else 0.0)
                with np.errstate(all="ignore"):
                    bad = ~((np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b)))
            if bad.any():
                i = tuple(map(int, np.argwhere(bad)[0]))
                return f"result {k}{list(i) if i else ''} is {a[i]!r}, not {b[i]!r}"
        return None

    def noise(self, f: Function, args: Sequence[Any]) -> list[Any] | None:
        """For each result, how much rounding changes it at most; None if an integer changes, too."""
        traced = abstract_trace(f, tuple(args), {}, "noise")
        inputs = [*traced.constants, *[np.asarray(a)[()] for a in args]]
        with np.errstate(all="ignore"), eagerly():
            runs = [[np.asarray(y) for y in shaken(traced.program, inputs, Shaker(k))] for k in range(SHAKES)]
            found: list[Any] = []
            for ys in zip(*runs, strict=True):
                if ys[0].dtype.kind == "f":
                    found.append(np.fmax.reduce(ys) - np.fmin.reduce(ys))
                elif all([np.array_equal(y, ys[0]) for y in ys]):
                    found.append(0.0)
                else:
                    return None
        return found

    # -- the ways

    def value(self) -> None:
        """funcgrad without jit against NumPy and Python's loops."""
        before = [np.array(a) for a in self.args]
        self.eager = self.run("eager", lambda: self.recipe(*self.args))
        self.compare("eager", self.eager, self.expected, self.recipe, self.args)
        self.unchanged("eager", before)

    def unchanged(self, way: str, before: Sequence[Any]) -> None:
        """No argument was written to."""
        if not all([same_bits(a, b) for a, b in zip(self.args, before, strict=True)]):
            raise Failure(way, "an argument was changed")

    def jit(self, lowering: str = "llvm") -> None:
        """Compiled code against the eager result, in two calls."""
        way = "jit" if lowering == "llvm" else lowering
        g = fg.jit(self.recipe) if lowering == "llvm" else fg.jit(self.recipe, lowering=lowering)
        before = [np.array(a) for a in self.args]
        exact = is_exact(fg.make_program(self.recipe)(*self.args))
        for _ in range(2):
            try:
                found = self.run(way, lambda: g(*self.args))
            except Failure as failure:
                if not isinstance(failure.__cause__, UnsupportedError):
                    raise
                self.outcome.unsettled.append(f"{way}: unsupported")
                return
            if exact:
                for k, (a, b) in enumerate(zip(found, self.eager, strict=True)):
                    if not same_bits(np.asarray(a) + 0, np.asarray(b) + 0):
                        raise Failure(way, f"exact result {k} is {a!r}, not {b!r}")
            self.compare(way, found, self.eager, self.recipe, self.args)
            self.unchanged(way, before)
        if lowering == "llvm":
            self.donated()

    def donated(self) -> None:
        """With the first argument given away."""
        g = fg.jit(self.recipe, donate_argnums=(0,))
        for _ in range(2):
            found = self.run("donated", lambda: g(np.array(self.args[0]), *self.args[1:]))
            self.compare("donated", found, self.eager, self.recipe, self.args)

    def of_floats(self, f: Function) -> Function:
        """A function of the arguments and results that have derivatives."""

        def g(*xs: Any) -> tuple[Any, ...]:
            args = list(self.args)
            for i, x in zip(self.floats, xs, strict=True):
                args[i] = x
            ys = f(*args)
            return tuple([ys[i] for i in self.moving])

        return g

    def derivatives(self) -> None:
        """Forward and reverse mode against differences of the oracle, and against each other."""
        f, plain = self.of_floats(self.recipe), self.of_floats(self.plain)
        xs = [self.args[i] for i in self.floats]
        v = [np.asarray(self.random.uniform(-1, 1, np.shape(x)), x.dtype)[()] for x in xs]
        w = [
            np.asarray(self.random.uniform(-1, 1, self.expected[i].shape), self.expected[i].dtype)[()]
            for i in self.moving
        ]
        forward = not self.recipe.backward_only
        bars = self.run("vjp", lambda: fg.vjp(f, *xs)[1](tuple(w)))
        found = sum([float(np.sum(np.asarray(b, float) * a)) for a, b in zip(v, bars, strict=True)])
        size = 1 + sum([float(np.sum(np.abs(np.asarray(b, float) * a))) for a, b in zip(v, bars, strict=True)])
        if forward:
            dots = self.run("jvp", lambda: fg.jvp(f, tuple(xs), tuple(v))[1])
            pairs = [float(np.sum(np.asarray(a, float) * b)) for a, b in zip(w, dots, strict=True)]
            size += sum([float(np.sum(np.abs(np.asarray(a, float) * b))) for a, b in zip(w, dots, strict=True)])
            self.near("adjoint", found, sum(pairs), 0.0, size, v, w)
        if self.single or self.recipe.uses(*NO_DERIVATIVE):
            return
        with np.errstate(all="ignore"):
            d = derivative_along(plain, xs, v, 2.0**-52)
        weights = ravel(w)
        if (d.singular | ~np.isfinite(d.error)).any() or not np.isfinite(d.value).all():
            self.outcome.unsettled.append("differences")
            return
        if forward:
            self.compare_differences("jvp", ravel(dots), d)
        error = float(np.sum(np.abs(weights) * d.error))
        self.near("vjp", found, float(weights @ d.value), error, size, v, w)

    def compare_differences(self, way: str, found: Any, d: Any) -> None:
        """A derivative against differences."""
        allowed = TRUST * d.error + 1e-8 * np.maximum(1.0, np.abs(d.value))
        bad = np.flatnonzero(~(np.abs(found - d.value) <= allowed))
        if bad.size:
            i = int(bad[0])
            raise Failure(way, f"is {found[i]}, but differences say {d.value[i]} ± {d.error[i]:.1e}")
        self.outcome.ways.append(way)

    def near(self, way: str, found: float, expected: float, error: float, size: float, v: Any, w: Any) -> None:
        """Two numbers that are sums of terms of that size."""
        relative = 1e-8 if error else (1e-4 if self.single else 1e-11)
        if not abs(found - expected) <= TRUST * error + relative * size:
            if not np.isfinite(expected):
                self.outcome.unsettled.append(way)
                return
            noise = self.derivative_noise(v, w)
            if noise is None or noise > CHAOS * size:
                self.outcome.unsettled.append(way)
                return
            if not abs(found - expected) <= TRUST * error + relative * size + SHAKEN * noise:
                raise Failure(way, f"is {found}, but should be {expected} ± {TRUST * error + relative * size:.1e}")
        self.outcome.ways.append(way)

    def derivative_noise(self, v: Any, w: Any) -> float | None:
        """How much rounding changes a derivative."""
        f = self.of_floats(self.recipe)
        xs = [self.args[i] for i in self.floats]

        def total(*xs: Any) -> Any:
            bars = fg.vjp(f, *xs)[1](tuple(w))
            return (sum([np.sum(a * b) for a, b in zip(v, bars, strict=True)]),)

        noise = self.noise(total, xs)
        return None if noise is None else float(np.max(noise))


def check(
    recipe: Recipe, seed: int = 0, *, numba: bool = False, differences: bool = True, seconds: float = 60.0
) -> Outcome:
    """A program in all ways; the outcome holds the first failure."""
    checker: Checker | None = None
    try:
        with limit(seconds):
            checker = Checker(recipe, seed)
            checker.value()
            checker.jit()
            if differences and checker.floats and checker.moving:
                checker.derivatives()
            if numba:
                checker.jit("numba")
            return checker.outcome
    except Failure as failure:
        assert checker is not None
        if isinstance(failure.__cause__, TracerArrayConversionError):  # a plain array, at a place that is traced
            checker.outcome.unsettled.append(f"{failure.way}: needs a value")
        else:
            checker.outcome.failure = failure
        return checker.outcome
    except TooSlow as error:
        outcome = checker.outcome if checker is not None else Outcome()
        outcome.unsettled.append(f"slow {error}")
        return outcome
