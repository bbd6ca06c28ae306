"""Which operation has the wrong derivative: every equation alone, against differences of its own evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from funcgrad.base.source import Source
from funcgrad.core.ir import Equation, Program, subprograms
from funcgrad.testing.compare import number, uncertain
from funcgrad.testing.flat import Flat, random_like
from funcgrad.testing.probe import Finding, probe, subject
from funcgrad.testing.walking import as_function, bodies, differenced, of_program, rules_of, steps, traced_function

MODES = {"fwd": "forward", "rev": "reverse"}


@dataclass(frozen=True)
class Culprit:
    """An equation whose own derivative is wrong (or declared to be no derivative), and in which round it was found."""

    equation: Equation
    finding: Finding
    trip: str = ""
    declared: bool = False

    @property
    def source(self) -> Source | None:
        """The user's line."""
        return self.equation.source

    def __str__(self) -> str:
        f = self.finding
        where = f" ({self.trip})" if self.trip else ""
        said = " by declaration," if self.declared else ""
        return (
            f"{called(self.equation)}{where}: its own {MODES[f.mode]} derivative is {number(f.found)}{said} "
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


@np.errstate(all="ignore")
def find_culprit(flat: Flat) -> Culprit | None:
    """The first operation of a function whose derivative alone is wrong.

    Where there is none, one that has no derivative because it is said so (`stop_gradient`) is the reason.
    """
    wide, _ = differenced(flat)
    traced = traced_function(wide)
    rng = np.random.default_rng(0)
    inputs = [*traced.constants, *wide.x]
    return fault_in(traced.program, inputs, rng) or fault_in(traced.program, inputs, rng, declared=True)


def fault_in(
    program: Program, inputs: Sequence[Any], rng: np.random.Generator, declared: bool = False
) -> Culprit | None:
    """The first equation of a Program whose derivative at these inputs is wrong; inside of it, if it holds others.

    What is declared to have no derivative is right, unless this is what is looked for: `declared`.
    """
    for e, operands, _ in steps(program, inputs):
        stops = _stops(e)
        if e.primitive.effects_of(e.params) or (declared and not stops):
            continue
        finding = fault_of(as_function(e, operands, declared), rng)
        if finding is None:
            continue
        found = _inside(e, operands, rng, declared)
        own = "rules" in e.params or e.primitive.moved_by is not None
        if found is not None or declared or own or not stops:
            return found or Culprit(e, finding, declared=declared and own)
    return None


def _stops(e: Equation) -> bool:
    """Whether an equation is, or holds, an operation that is said to have no derivative in some operand."""
    floats = [i for i, a in enumerate(e.inputs) if a.aval.dtype.kind in "fc"]
    moved = e.primitive.moved_by
    if moved is not None and not set(floats) <= set(moved):
        return any([v.aval.dtype.kind in "fc" for v in e.outputs])
    return any([_stops(inner) for _, body in subprograms(e) for inner in body.equations])


def _inside(e: Equation, operands: Sequence[Any], rng: np.random.Generator, declared: bool) -> Culprit | None:
    if "rules" in e.params:  # the derivative is that of the rules, whatever the body does
        return None
    for trip, body, inputs in bodies(e, operands):
        if fault_of(of_program(body, inputs, body.name), rng) is None:
            continue
        found = fault_in(body, inputs, rng, declared)
        if found is not None:
            return replace(found, trip=", ".join([t for t in (trip, found.trip) if t]))
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
