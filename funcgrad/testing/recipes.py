"""Recipes: random programs as plain data, which print as Python code and run as that code.

A recipe is a list of steps, each of which is an expression of earlier values, or a nested recipe inside one of the
wrappers of `nesting`. The code of a recipe runs with whatever its three names `np`, `fg` and `lax` stand for: with
funcgrad itself, or with an oracle that knows nothing of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from funcgrad.testing.nesting import WRAPPERS, Wrapper, helpers_of

HEADER = "import numpy as np\nimport funcgrad as fg\nfrom funcgrad import lax\n"
ORDER = 3  # of derivatives, at most
BINDING = "from funcgrad.core.primitive import registry\nfrom funcgrad.core.trace import bind1\n"


@dataclass(frozen=True)
class Step:
    """One or several values of a program, from earlier ones.

    Attributes
    ----------
    text
        An expression with ``{0}``, ``{1}`` ... for the operands; or the name of a wrapper, if there is a body.
    operands
        Which values: the arguments are counted first, then the results of the steps.
    count
        How many values it gives, as a tuple; 0: one, not in a tuple.
    body
        What is nested. Its last `captured` arguments are not arguments: the nested function uses those values of the
        function around it.
    """

    text: str
    operands: tuple[int, ...]
    count: int = 0
    body: Recipe | None = None
    captured: int = 0

    @property
    def made(self) -> int:
        """How many values it adds."""
        return self.count or 1


@dataclass(frozen=True)
class Recipe:
    """A random program with an example of its arguments. It is a function; its ``repr`` is code.

    Attributes
    ----------
    args : tuple
        NumPy arrays and scalars to call it with.
    steps : tuple of Step
    results : tuple of int
        The values that it returns, in a tuple.
    """

    args: tuple[Any, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    __name__: str = field(default="program", compare=False)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self._function(*args)

    @cached_property
    def _function(self) -> Callable[..., tuple[Any, ...]]:
        return self.function()

    @cached_property
    def code(self) -> str:
        """The program as functions, without imports."""
        body = _Writer().function("program", self, {})
        return helpers_of(body) + "\n\n" + body

    @property
    def header(self) -> str:
        """The imports that the code needs."""
        return HEADER + (BINDING if "registry" in self.code else "")

    def function(self, names: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
        """The program as a function, with other meanings of `np`, `fg` and `lax`."""
        scope: dict[str, Any] = {}
        exec(self.header, scope)
        scope.update(names or {})
        exec(self.code, scope)
        return scope["program"]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        args = "".join([f"    {literal(a)},\n" for a in self.args])
        return f"{self.header}\n{self.code}\n\nargs = (\n{args})\nprint(program(*args))\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How Hypothesis shows it."""
        printer.text(repr(self))

    # -- what is in it

    @property
    def values(self) -> int:
        """How many values there are."""
        return len(self.args) + sum([s.made for s in self.steps])

    def levels(self) -> Iterator[Step]:
        """All steps with a body, of the bodies too."""
        for s in self.steps:
            if s.body is not None:
                yield s
                yield from s.body.levels()

    @property
    def height(self) -> int:
        """How deep it is nested."""
        return max([1 + s.body.height for s in self.steps if s.body is not None], default=0)

    @property
    def backward(self) -> int:
        """How many backward rules are inside each other; reverse mode uses the outer one, and differentiates it."""
        return max([_backward(s.text, s.body) for s in self.steps if s.body is not None], default=0)

    @property
    def backward_only(self) -> bool:
        """Whether it has a backward rule through which there is no forward mode."""
        return self.backward > 0

    @property
    def order(self) -> int:
        """Of the highest derivative in it; as high as can be, if there can be no further one."""
        nested = [s for s in self.steps if s.body is not None]
        return max([_order(WRAPPERS[s.text], s.body) for s in nested if s.body is not None], default=0)

    @property
    def size(self) -> int:
        """How many steps it takes, at least, when it runs."""
        return sum([s.body.size * WRAPPERS[s.text].times if s.body is not None else 1 for s in self.steps])

    def uses(self, *names: str) -> bool:
        """Whether one of these names occurs in it."""
        return any([re.search(rf"\b{name}\b", self.code) for name in names])

    def with_args(self, args: Sequence[Any]) -> Recipe:
        """The same program with other arguments."""
        return replace(self, args=tuple(args))


def _backward(name: str, body: Recipe) -> int:
    if name == "with_vjp_rule":
        return body.backward + 1
    return max(body.backward - 1, 0) if WRAPPERS[name].mode == "reverse" else body.backward


def _order(w: Wrapper, body: Recipe) -> int:
    return ORDER if w.implicit and body.backward_only else w.order + body.order


def literal(x: Any) -> str:
    """An array or a NumPy scalar as code."""
    x = np.asarray(x)
    if not x.ndim:
        return f"np.{x.dtype.name}({x.item()!r})" if x.dtype.kind != "b" else f"np.bool_({x.item()})"
    shaped = "" if x.ndim == 1 or x.size else f".reshape({x.shape})"
    dtype = "" if x.size and x.dtype.name in ("float64", "int64", "bool") else f", np.{x.dtype.name}"
    return f"np.array({x.tolist()!r}{dtype}){shaped}"


class _Writer:
    """Writes functions; every name occurs once, so that nested functions can use what is around them."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def name(self) -> str:
        return f"v{next(self.numbers)}"

    def function(self, name: str, recipe: Recipe, captured: dict[int, str]) -> str:
        """A recipe as ``def``; some of its arguments are names of the function around."""
        names = [captured.get(i) or self.name() for i in range(len(recipe.args))]
        lines = [f"def {name}({', '.join([n for i, n in enumerate(names) if i not in captured])}):"]
        for s in recipe.steps:
            operands = [names[i] for i in s.operands]
            new = [self.name() for _ in range(s.made)]
            left = ", ".join(new) + ("," if s.count == 1 else "")
            if s.body is None:
                right = s.text.format(*operands)
            else:
                inner, passed = f"f{next(self.numbers)}", len(operands) - s.captured
                outside = {i: operands[i] for i in range(passed, len(operands))}
                lines += ["    " + line for line in self.function(inner, s.body, outside).splitlines()]
                right = f"{s.text}({', '.join([inner, *operands[:passed]])})"
            lines.append(f"    {left} = {right}")
            names += new
        lines.append(f"    return ({' '.join([names[i] + ',' for i in recipe.results])})")
        return "\n".join(lines) + "\n"
