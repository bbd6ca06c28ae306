"""Steps: periods of equations that read and make the same in the same places, as the body of a loop does.

What a step reads is a table with one row per step, and a column for each operand of each of its equations. The values
of a column are the same in all steps, or were made by the step itself or so many steps before, or each step has its
own constant. The first steps may read anything where later ones read what an earlier step made: that is how a carry
begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from funcgrad.core.ir import Atom, Equation, Stack, Var

DELAY = 4  # how many steps back a step may read
LITERAL = -1
PERIODS = 64  # the most periods of equal operations that one step is made of

Place = tuple[int, int]
"""An equation of the step, and which of its outputs."""


@dataclass(frozen=True, slots=True)
class Same:
    """A column whose values are the same in all steps."""

    atom: Atom


@dataclass(frozen=True, slots=True)
class Own:
    """A column of constants, one for each step."""

    atoms: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A column of what was made at `place`, by the step itself or `delay` steps before."""

    place: Place
    delay: int


Column = Same | Own | Made


@dataclass(slots=True)
class Steps:
    """Equal steps.

    Attributes
    ----------
    equations
        Those of all steps, one step after the other.
    start, stop
        Where they stand in the Program.
    period
        How many there are in each step.
    columns
        What a step reads: for each of its equations, for each operand.
    inits
        What stands for the values that were made before the first step.
    """

    equations: Sequence[Equation]
    start: int
    stop: int
    period: int
    columns: list[list[Column]]
    inits: dict[Made, Atom] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.equations) // self.period

    @property
    def first(self) -> Sequence[Equation]:
        """The equations of the first step."""
        return self.equations[: self.period]

    def made(self, step: int, place: Place) -> Var:
        """What a step made."""
        return self.equations[step * self.period + place[0]].outputs[place[1]]


def find_steps(equations: Sequence[Equation], begin: int, period: int, length: int) -> Steps | None:
    """The longest row of equal steps in a run of that many equations; they begin where the fewest values are alive.

    None if what they read does not follow the pattern.
    """
    reads = _Reads(equations, begin, begin + length)
    period *= _multiple(reads.table(begin, period, length // period), period * reads.width)
    table = reads.table(begin, period, length // period)
    modes = reads.modes(table, period)
    if modes is None:
        return None
    shift = _best_cut(reads, table, modes, begin, period)
    if shift:
        begin, length = begin + shift, length - shift
        table = reads.table(begin, period, length // period)
        modes = reads.modes(table, period)
    return None if modes is None else _longest(reads, table, modes, begin, period)


class _Reads:
    """What equations read, as numbers: equation times `width` plus output, or negative if made elsewhere."""

    def __init__(self, equations: Sequence[Equation], begin: int, end: int) -> None:
        self.equations = equations
        self.begin = begin
        run = equations[begin:end]
        self.width = max([len(e.outputs) for e in run]) + 1
        made = {v: i * self.width + k for i, e in enumerate(run, begin) for k, v in enumerate(e.outputs)}
        outside: dict[Any, int] = {}
        self.rows = [
            [
                LITERAL if type(a) is not Var else made[a] if a in made else -2 - outside.setdefault(a, len(outside))
                for a in e.inputs
            ]
            for e in run
        ]

    def table(self, begin: int, period: int, count: int) -> Any:
        """One row per step, with a number for each value that it reads."""
        at = begin - self.begin
        numbers = [n for row in self.rows[at : at + count * period] for n in row]
        return np.array(numbers, np.int64).reshape(count, -1)

    def owners(self, begin: int, period: int) -> Any:
        """For each column the equation of the step that reads it."""
        at = begin - self.begin
        return np.repeat(np.arange(period), [len(row) for row in self.rows[at : at + period]])

    def modes(self, table: Any, period: int) -> Any:
        """For each column, by two steps in the middle. 0: the same, 1: it moves along, 2: another constant in each."""
        middle = len(table) // 2
        a, b = table[middle - 1], table[middle]
        same = a == b
        moves = (a >= 0) & (b - a == period * self.width)
        other = ~(same | moves)
        if (np.maximum(a, b)[other] >= LITERAL).any():
            return None
        return np.where(same, 0, np.where(moves, 1, 2))


def _multiple(table: Any, distance: int) -> int:
    """How many of these periods make up a step: the least number after which what is read follows the pattern."""
    quarter = len(table) // 4
    middle = table[quarter : len(table) - quarter]
    for m in range(1, min(PERIODS, len(middle) // 2) + 1):
        a, b = middle[:-m], middle[m:]
        if ((a == b) | (b - a == m * distance) | ((a < LITERAL) & (b < LITERAL))).all():
            return m
    return 1


def _best_cut(reads: _Reads, table: Any, modes: Any, begin: int, period: int) -> int:
    """How far into the first period steps should begin for few values to be alive between one and the next."""
    middle = len(table) // 2
    moving = np.flatnonzero(modes == 1)
    makers = table[middle, moving]
    users = begin + middle * period + reads.owners(begin, period)[moving]
    alive: dict[int, int] = {}  # value → how many equations later it is read last
    for maker, user in zip(makers.tolist(), users.tolist(), strict=True):
        equation, output = divmod(maker, reads.width)
        value = (equation - begin) % period * reads.width + output
        alive[value] = max(alive.get(value, 0), user - equation)
    crossing = np.zeros(2 * period + 1, np.int64)
    for value, length in alive.items():
        crossing[0] += length // period
        crossing[period] -= length // period
        crossing[value // reads.width + 1] += 1
        crossing[value // reads.width + 1 + length % period] -= 1
    both = np.cumsum(crossing)
    return int(np.argmin(both[:period] + both[period : 2 * period]))


def _longest(reads: _Reads, table: Any, modes: Any, begin: int, period: int) -> Steps | None:
    """The longest range of steps that follow the modes, and the first ones before it that begin the carries."""
    count, middle = len(table), len(table) // 2
    shifts = (np.arange(count) - middle)[:, None] * (period * reads.width)
    good = np.where(modes == 2, table < LITERAL, table == table[middle] + np.where(modes == 1, shifts, 0))
    delays = np.where(modes == 1, middle - (table[middle] // reads.width - begin) // period, 0)
    if (delays > DELAY).any():
        return None
    complete = good.all(axis=1)
    first, last = middle, middle
    while first > 0 and complete[first - 1]:
        first -= 1
    while last < count and complete[last]:
        last += 1
    deepest = int(delays.max(initial=0))
    for start in range(max(first - deepest, 0), last):
        free = delays > np.arange(last - start)[:, None]
        if (good[start:last] | free).all():
            steps = _steps(reads, table, modes, delays, begin + start * period, begin + last * period, period)
            if steps is not None:
                return steps
    return None


def _steps(reads: _Reads, table: Any, modes: Any, delays: Any, start: int, stop: int, period: int) -> Steps | None:
    """These steps, if they agree on what their carries begin with."""
    equations = reads.equations[start:stop]
    middle = len(table) // 2
    columns: list[list[Column]] = []
    inits: dict[Made, Atom] = {}
    at = 0
    for j, e in enumerate(equations[:period]):
        row: list[Column] = []
        for i in range(len(e.inputs)):
            atoms = [f.inputs[i] for f in equations[j::period]]
            if modes[at] == 1:
                maker, output = divmod(int(table[middle, at]), reads.width)
                made = Made(((maker - start) % period, output), int(delays[at]))
                row.append(made)
                for back, atom in enumerate(atoms[: made.delay]):
                    slot = Made(made.place, made.delay - back)
                    if not _equal(inits.setdefault(slot, atom), atom):
                        return None
            elif all([_equal(a, atoms[0]) for a in atoms]):
                row.append(Same(atoms[0]))
            else:
                row.append(Own(tuple(atoms)))
            if isinstance(atoms[-1].aval, Stack) and not (modes[at] == 1 and not delays[at]):
                return None
            at += 1
        columns.append(row)
    return Steps(equations, start, stop, period, columns, inits)


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is not Var and type(b) is not Var and a.key == b.key)
