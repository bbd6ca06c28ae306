"""Derivative rules as Programs: traced when the function is applied, or later.

A function and its rules take the same operands: first what any of them captured, then the arguments. A rule that
applies its own function cannot be traced to the end beforehand, since it would hold itself: that application gets a
`Later`, which is traced when that order of the derivative is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from funcgrad.base.errors import CustomRuleError
from funcgrad.core.ir import Atom, Aval, Program, Var
from funcgrad.core.trace import Tracer
from funcgrad.ops.op import aval_of

Programs = tuple[Program, ...]


class Later:
    """Rules that are traced when they are needed; equal for equal keys."""

    __slots__ = ("_key", "_make", "_programs")

    def __init__(self, make: Callable[[], Programs], key: Hashable) -> None:
        self._make = make
        self._key = key
        self._programs: Programs | None = None

    def programs(self) -> Programs:
        """The traced rules."""
        if self._programs is None:
            self._programs = self._make()
        return self._programs

    def then(self, change: Callable[[Programs], Programs], key: Hashable) -> Later:
        """These rules, changed."""
        return Later(lambda: change(self.programs()), (self._key, key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Later) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return "..."


Rules = Programs | Later


def resolve(rules: Rules) -> Programs:
    """The Programs of the rules."""
    return rules.programs() if isinstance(rules, Later) else rules


def change(rules: Rules, function: Callable[[Programs], Programs], key: Hashable) -> Rules:
    """The rules, changed by `function`, now or when they are needed."""
    return rules.then(function, key) if isinstance(rules, Later) else function(rules)


# -- what they capture


def same(a: Any, b: Any) -> bool:
    """Whether two captured values are the same one; a type stands for a value that nothing is the same as."""
    if isinstance(b, Aval):
        return False
    if type(a) is Tracer or type(b) is Tracer:
        return type(a) is type(b) and a.atom is b.atom
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes())


def union(captured: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """All captured values, each once."""
    out = list(captured)
    for x in more:
        if not any([same(x, y) for y in out]):
            out.append(x)
    return out


def with_operands(program: Program, captured: Sequence[Any], operands: Sequence[Any]) -> Program:
    """`program`, whose first inputs are the values it captured, as a Program that takes all `operands` there.

    An operand that it cannot have captured may be given by its type.
    """
    if len(captured) == len(operands) and all([x is y for x, y in zip(captured, operands, strict=True)]):
        return program
    found: dict[int, Var] = {}
    again: dict[Atom, Atom] = {}  # an array that was captured twice, as equal copies
    n = len(captured)
    for x, var in zip(captured, program.inputs[:n], strict=True):
        where = next((i for i, y in enumerate(operands) if same(x, y)), None)
        if where is None:
            raise CustomRuleError(
                f"the rule {program.name} captures a value that it did not capture when the function was applied",
                hint="pass it as an argument",
            )
        if found.setdefault(where, var) is not var:
            again[var] = found[where]
    equations, outputs = program.equations, program.outputs
    if again:
        equations = tuple([e.replace(inputs=tuple([again.get(a, a) for a in e.inputs])) for e in equations])
        outputs = tuple([again.get(a, a) for a in outputs])
    variables = [found.get(i) or Var(x if isinstance(x, Aval) else aval_of(x)) for i, x in enumerate(operands)]
    names = program.input_names or ("",) * len(program.inputs)
    return Program(
        (*variables, *program.inputs[n:]),
        equations,
        outputs,
        program.name,
        (*[f"c{i}" for i in range(len(operands))], *names[n:]),
    )
