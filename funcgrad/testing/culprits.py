"""Which operation has the wrong derivative: every equation alone, against differences of its own evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.base.source import Source
from funcgrad.core.ir import Equation, Program
from funcgrad.testing.compare import number, uncertain
from funcgrad.testing.flat import Flat, random_like
from funcgrad.testing.probe import Finding, probe, subject
from funcgrad.testing.walking import as_function, bodies, differenced, of_program, rules_of, steps, traced_function

MODES = {"fwd": "forward", "rev": "reverse"}


@dataclass(frozen=True)
class Culprit:
    """An equation whose own derivative is wrong, and where in the Program it was found."""

    equation: Equation
    finding: Finding
    trip: str = ""

    @property
    def source(self) -> Source | None:
        """The user's line."""
        return self.equation.source

    def __str__(self) -> str:
        f = self.finding
        where = f" ({self.trip})" if self.trip else ""
        return (
            f"{called(self.equation)}{where}: its own {MODES[f.mode]} derivative is {number(f.found)} "
            f"where differences of it say {uncertain(f.expected, f.error)}"
        )


def called(e: Equation) -> str:
    """An operation, with the function and the rules of the user's that it stands for."""
    rules = rules_of(e)
    program = e.params.get("program")
    if not rules or not isinstance(program, Program):
        return e.primitive.name
    written = ", ".join([f"{name} ({place(source)})" if source else name for name, source in rules])
    return f"{e.primitive.name} of {program.name}, rule{'s'[: len(rules) > 1]} {written}"


def place(source: Source | None) -> str:
    """``model.py:12``"""
    return str(source) if source is not None else ""


def find_culprit(flat: Flat) -> Culprit | None:
    """The first operation of a function whose derivative alone is wrong."""
    wide, _ = differenced(flat)
    traced = traced_function(wide)
    rng = np.random.default_rng(0)
    return fault_in(traced.program, [*traced.constants, *wide.x], rng)


def fault_in(program: Program, inputs: Sequence[Any], rng: np.random.Generator) -> Culprit | None:
    """The first equation of a Program whose derivative at these inputs is wrong; inside of it, if it holds others."""
    for e, operands, _ in steps(program, inputs):
        if e.primitive.effects_of(e.params):
            continue
        finding = fault_of(as_function(e, operands), rng)
        if finding is not None:
            return _inside(e, operands, rng) or Culprit(e, finding)
    return None


def _inside(e: Equation, operands: Sequence[Any], rng: np.random.Generator) -> Culprit | None:
    if "rules" in e.params:  # the derivative is that of the rules, whatever the body does
        return None
    for trip, body, inputs in bodies(e, operands):
        if fault_of(of_program(body, inputs, body.name), rng) is None:
            continue
        found = fault_in(body, inputs, rng)
        if found is not None:
            return Culprit(found.equation, found.finding, ", ".join([t for t in (trip, found.trip) if t]))
    return None


def fault_of(flat: Flat | None, rng: np.random.Generator) -> Finding | None:
    """What is wrong with the derivative of a function, along random directions; nothing at a kink."""
    if flat is None:
        return None
    values = flat.values(flat.x)
    s = subject(flat)
    for scaled in (False, True):
        v, w = random_like(flat.x, rng, scaled), random_like(values, rng)
        d = s.differences(v)
        if d.singular.any():
            return None
        found = probe(s, v, w, d, ("fwd", "rev"))
        if found is not None:
            return found
    return None


__all__ = ["Culprit", "called", "fault_in", "find_culprit", "place"]
