"""Drawing random programs: recipes of operations, nested in transforms, loops, branches and rules.

Every number stays small by construction: floats between -2 and 2, integers between -8 and 8, whatever the arguments
within these bounds are. Operands are brought into the domain of an operation that takes less, and results bent back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from funcgrad.testing.nesting import HELPERS, WRAPPERS
from funcgrad.testing.plain import PLAIN
from funcgrad.testing.recipes import ORDER, Recipe, Step
from funcgrad.testing.vocabulary import OPERATIONS, Impossible

T = TypeVar("T")
LIMIT = 2.0  # the largest float
WHOLE = 8  # the largest integer
SHAPES = ((3,), (), (2, 3), (4,), (3, 3), (1,), (5,), (2, 1, 3), (17,))
ELEMENTS = 64  # of a value
BASIS = 8  # elements of all arguments of a derivative along every element
SIZE = 300  # operations


class Choices(Protocol):
    """Where choices come from: random numbers, or Hypothesis."""

    def below(self, n: int) -> int:
        """A number from 0 to n - 1; 0 is the simplest."""

    def more(self) -> bool:
        """Whether to go on, before each step."""

    def together(self, step: Callable[[], None]) -> None:
        """Run a step; its choices belong together."""


class Random:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self.random.integers(n))

    def more(self) -> bool:
        """There are as many steps as there can be."""
        return True

    def together(self, step: Callable[[], None]) -> None:
        """Run a step."""
        step()


@dataclass(frozen=True)
class Style:
    """What programs are drawn.

    Attributes
    ----------
    steps
        How many operations at least.
    depth
        How deep they are nested at most.
    operations
        Names of `vocabulary` that are drawn from; names that come several times come more often.
    wrappers
        Names of `nesting.WRAPPERS` that are drawn from.
    nested
        Of 100 steps, how many are nested.
    single
        Of 100 arguments, how many are float32.
    """

    steps: int
    depth: int
    operations: Sequence[str]
    wrappers: Sequence[str]
    nested: int = 20
    single: int = 3


@lru_cache
def _scope() -> dict[str, Any]:
    """The functions of `nesting` by name, with the oracle's meaning."""
    scope = dict(PLAIN, np=np)
    exec("\n".join([inspect.getsource(f) for f in HELPERS.values()]), scope)
    return scope


@lru_cache(10_000)
def _expression(text: str) -> Callable[..., Any]:
    names = [f"x{k}" for k in range(6)]
    return eval(f"lambda {', '.join(names)}: {text.format(*names)}", _scope())  # type: ignore[no-any-return]


def evaluated(step: Step, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a step, by NumPy."""
    with np.errstate(all="ignore"):
        if step.body is None:
            ys = (_expression(step.text)(*operands, *[None] * (6 - len(operands))),)
        else:
            passed = len(operands) - step.captured
            f = step.body.function(PLAIN)
            ys = _scope()[step.text](lambda *xs: f(*xs, *operands[passed:]), *operands[:passed])
        return tuple([np.asarray(y)[()] for y in ys])


class Drawer:
    """A program that is being drawn: its steps so far, and their values for one example of arguments."""

    def __init__(self, choices: Choices, style: Style, args: Sequence[Any]) -> None:
        self.choices = choices
        self.style = style
        self.args = tuple(args)
        self.values = list(args)
        self.steps: list[Step] = []

    # -- choices

    def one(self, options: Sequence[T]) -> T:
        """One of several, the simplest first."""
        return options[self.choices.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True so often."""
        return self.choices.below(100) >= 100 - percent

    def pick(self, kinds: str = "biuf", least: int = 0, fits: Callable[[Any], bool] = lambda x: True) -> int:
        """A value with one of these kinds of dtype and so many axes, the latest first."""
        found = [
            i for i in reversed(range(len(self.values)))
            if self.values[i].dtype.kind in kinds and self.values[i].ndim >= least and fits(self.values[i])
        ]  # fmt: skip
        if not found:
            raise Impossible
        return found[min(self.choices.below(len(found)), self.choices.below(len(found)))]

    def like(self, i: int, kinds: str = "biuf") -> int:
        """A value of the type of another one."""
        x = self.values[i]
        return self.pick(kinds, fits=lambda y: y.shape == x.shape and y.dtype == x.dtype)

    def beside(self, i: int, kinds: str = "biuf") -> int:
        """A value whose shape broadcasts with that of another one."""
        return self.pick(kinds, fits=lambda y: _broadcast(self.values[i].shape, y.shape) is not None)

    # -- steps

    def step(self) -> None:
        """An operation, or a nested program."""
        style = self.style
        if style.depth and style.wrappers and self.chance(style.nested):
            self.nest(self.one(style.wrappers), self.choices.below(style.depth))
        else:
            OPERATIONS[self.one(style.operations)](self)

    def add(self, text: str, *operands: int, bounded: bool = False) -> None:
        """An operation with one result, bent back unless it is bounded for all operands."""
        step = Step(text, operands)
        try:
            (y,) = evaluated(step, [self.values[i] for i in operands])
        except ValueError:  # three shapes that broadcast in pairs only
            raise Impossible from None
        if y.dtype.kind not in "biuf" or y.size > ELEMENTS or y.size == 0 or y.ndim > 4:
            raise Impossible
        if y.dtype.kind == "f" and not bounded:
            step = Step(f"bend({text})", operands)
        elif y.dtype.kind in "iu" and not bounded:
            step = Step(f"({text}) % 13 - 6" if y.dtype.kind == "i" else f"({text}) % 7", operands)
        (y,) = evaluated(step, [self.values[i] for i in operands])
        largest = LIMIT * 1.001 if y.dtype.kind == "f" else WHOLE
        if y.dtype.kind != "b" and not np.all(abs(y) <= largest):
            raise Impossible
        self.steps.append(step)
        self.values.append(y)

    def nest(self, name: str, height: int) -> None:
        """A nested program inside a wrapper."""
        w = WRAPPERS[name]
        operands = [self.pick("f", fits=_few if w.basis else lambda x: True)]
        for _ in range(self.choices.below(3)):
            operands.append(self.pick(fits=lambda x: x.size <= BASIS // 4 if w.basis else True))
        captured = self.choices.below(len(operands)) if not w.basis else 0
        inner = replace(self.style, steps=2 + self.choices.below(4), depth=height, single=0)
        body = draw_body(self.choices, inner, [self.values[i] for i in operands])
        self.add_nested(name, operands, captured, body)

    def add_nested(self, name: str, operands: Sequence[int], captured: int, body: Recipe) -> None:
        """What `nest` drew."""
        if not allowed(name, body):
            raise Impossible
        given = [self.values[i] for i in operands]
        step = Step(name, tuple(operands), 1, body, captured)
        ys = evaluated(step, given)
        step = replace(step, count=len(ys))
        if not all([np.all(np.isfinite(y)) and np.all(abs(y * 1) <= LIMIT * 4) for y in ys]):
            raise Impossible
        self.steps.append(step)
        self.values.extend(ys)

    def finished(self, results: int) -> Recipe:
        """The program; it returns the values that nothing uses, the last ones first in line."""
        used = {i for s in self.steps for i in s.operands}
        n = len(self.args)
        free = [i for i in range(n, len(self.values)) if i not in used] or [len(self.values) - 1]
        chosen = free[-results:]
        floats = [i for i in range(len(self.values)) if self.values[i].dtype.kind == "f"]
        if not any([self.values[i].dtype.kind == "f" for i in chosen]) and floats:
            chosen = [floats[-1], *chosen]
        return Recipe(self.args, tuple(self.steps), tuple(chosen))


def _few(x: Any) -> bool:
    return bool(x.size <= BASIS // 2)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def allowed(name: str, body: Recipe) -> bool:
    """Whether a wrapper can hold that program: forward mode meets no backward rule."""
    w = WRAPPERS[name]
    if (w.mode == "forward" and body.backward) or (w.mode == "reverse" and w.order > 1 and body.backward > 1):
        return False
    if w.implicit and body.backward_only and body.height > 1:
        return False
    if w.order + body.order > ORDER or w.times * body.size > SIZE:
        return False
    if w.basis and sum([np.size(a) for a in body.args if a.dtype.kind == "f"]) > BASIS:
        return False
    return any([a.dtype.kind == "f" for a in body.args])


def draw_body(choices: Choices, style: Style, args: Sequence[Any]) -> Recipe:
    """A program of arguments that are given."""
    d = Drawer(choices, style, args)
    tries = 0
    while len(d.steps) < style.steps and tries < 20 * style.steps and choices.more():
        tries += 1
        with suppress(Impossible):
            choices.together(d.step)
    if not d.steps:
        d.add("{0} / 2", d.pick("f"), bounded=True)
    return d.finished(1 + choices.below(3 if style.steps < 8 else 8))


def draw_args(choices: Choices, style: Style) -> list[Any]:
    """One to four arrays of a few shapes, the first of floats."""
    random = np.random.default_rng(choices.below(1000))
    args: list[Any] = []
    for k in range(1 + choices.below(3)):
        shape = SHAPES[choices.below(len(SHAPES))]
        x = np.round(random.uniform(-1.5, 1.5, shape), 3)
        x = np.where(abs(x) < 0.01, 0.1, x)
        dtype = np.float32 if choices.below(100) >= 100 - style.single else np.float64
        args.append(np.asarray(x, dtype)[()])
        if k and choices.below(4) == 3:
            args[-1] = random.integers(-4, 5, shape)[()] if choices.below(2) else (random.random(shape) < 0.5)
    return [np.asarray(a)[()] for a in args]


def draw_recipe(choices: Choices, style: Style, stack: Sequence[str] = ()) -> Recipe:
    """A program inside a stack of wrappers, the innermost first."""
    args = draw_args(choices, style)
    return wrapped(choices, draw_body(choices, style, args), stack)


def wrapped(choices: Choices, recipe: Recipe, stack: Sequence[str]) -> Recipe:
    """A program inside wrappers, those left out that cannot be."""
    for name in stack:
        d = Drawer(choices, Style(0, 0, (), ()), recipe.args)
        n = len(recipe.args)
        try:
            d.add_nested(name, range(n), 0, recipe)
        except Impossible:
            continue
        recipe = Recipe(recipe.args, tuple(d.steps), tuple(range(n, len(d.values))))
    return recipe
