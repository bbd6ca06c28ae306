"""Which operation has a kink: the differences of every intermediate value, from either side.

The first equation whose result moves differently to the two sides is the one: what it is given still moves evenly, or
it chooses by a truth value that changes there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from funcgrad.base.source import Source
from funcgrad.core.ir import Atom, Equation, Literal, Program
from funcgrad.core.stacked import Stacked
from funcgrad.testing.compare import number
from funcgrad.testing.differences import Derivative, Line, ravel
from funcgrad.testing.flat import Flat, is_float
from funcgrad.testing.walking import bodies, differenced, steps, traced_function

Inputs = Callable[[float], Sequence[Any]]
Step = tuple[Equation, list[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Kink:
    """An equation with a kink.

    Attributes
    ----------
    equation : Equation
    detail : str
        What is special about its operands.
    trip : str
        Of which round of a loop, or in which branch.
    """

    equation: Equation
    detail: str
    trip: str = ""

    @property
    def source(self) -> Source | None:
        """The user's line."""
        return self.equation.source

    def __str__(self) -> str:
        at = f" at {self.source}" if self.source is not None else ""
        more = ", ".join([t for t in (self.trip, self.detail) if t])
        return f"{self.equation.primitive.name}{at}" + (f" ({more})" if more else "")


@np.errstate(all="ignore")
def find_kink(flat: Flat, v: Sequence[Any]) -> Kink | None:
    """The first operation of a function that has a kink along `v`; None if it is not one of the Program."""
    wide, dtype = differenced(flat)
    traced = traced_function(wide)
    line = Line(wide.x, v, float(np.finfo(dtype).eps))
    return _kink_in(traced.program, lambda t: [*traced.constants, *line.at(t)], line)


def _kink_in(program: Program, inputs: Inputs, line: Line) -> Kink | None:
    @cache
    def runs(t: float) -> list[Step]:
        return list(steps(program, inputs(t)))

    for k, (e, _, results) in enumerate(runs(0.0)):
        place = _kink_of(lambda t, k=k: runs(t)[k][2], results, line)
        if place is not None:
            return _inside(e, lambda t, k=k: runs(t)[k][1], line) or Kink(e, _detail(program, runs, k, *place))
    return None


def _kink_of(values: Inputs, results: Sequence[Any], line: Line) -> tuple[int, int] | None:
    """Which result, and which element of it, moves differently to the two sides."""
    for j, y in enumerate(results):
        if is_float(y) and not isinstance(y, Stacked) and np.size(y):
            d = line.derivative(lambda t, j=j: ravel([values(t)[j]]))
            if d.singular.any():
                return j, worst_of(d)
    return None


def worst_of(d: Derivative) -> int:
    """The element that has a kink, the sharpest one, or else none that differences could find."""
    return int(np.argmax(np.where(d.kinks, 1 + abs(d.right - d.left), d.lost)))


def _inside(e: Equation, operands: Inputs, line: Line) -> Kink | None:
    @cache
    def rounds(t: float) -> list[Any]:
        return list(bodies(e, operands(t)))

    for n, (trip, body, _) in enumerate(rounds(0.0)):
        try:
            found = _kink_in(body, lambda t, n=n: rounds(t)[n][2], line)
        except IndexError:  # to one side there are fewer rounds
            return None
        if found is not None:
            return Kink(found.equation, found.detail, ", ".join([t for t in (trip, found.trip) if t]))
    return None


def _detail(program: Program, runs: Callable[[float], list[Step]], k: int, j: int, i: int) -> str:
    """What is special about the operands of equation `k`, at element `i` of its result `j`."""
    e, operands, results = runs(0.0)[k]
    shape = np.shape(results[j])
    where = f"element {', '.join([str(int(n)) for n in np.unravel_index(i, shape)])}: " if shape else ""
    same = [(a, np.asarray(x).flat[i]) for a, x in zip(e.inputs, operands, strict=True) if np.shape(x) == shape]
    chosen = [a for a, _ in same if a.aval.dtype.kind == "b"]
    floats = [(a, x) for a, x in same if a.aval.dtype.kind in "fc"]
    if chosen:
        return where + _condition(program, chosen[0])
    if len(floats) == 2 and floats[0][1] == floats[1][1]:
        (a, x), (b, y) = floats
        return f"{where}operands {_spelled(program, a, x)} - {_spelled(program, b, y)} = 0"
    if floats:
        shown = ", ".join([_spelled(program, a, x) for a, x in floats])
        zero = len(floats) == 1 and floats[0][1] == 0
        named = isinstance(floats[0][0], Literal) or floats[0][0] in program.inputs
        return f"{where}operand{'s'[: len(floats) > 1]} {shown}{' = 0' if zero and named else ''}"
    return where.removesuffix(": ")


def _condition(program: Program, a: Atom) -> str:
    """The truth value that changes, by the equation that made it."""
    for e in program.equations:
        if a in e.outputs:
            at = f" at {e.source}" if e.source is not None else ""
            return f"its condition, {e.primitive.name}{at}, changes there"
    return "its condition changes there"


def _spelled(program: Program, a: Atom, x: Any) -> str:
    """An operand by the user's name, or by its value."""
    if not isinstance(a, Literal) and a in program.inputs:
        names = program.input_names
        name = names[program.inputs.index(a)] if names else ""
        if name:
            return name
    return number(x)
