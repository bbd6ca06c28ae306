"""Equal steps become a loop: a Python loop of many rounds, unrolled while it was traced, is rolled up again.

    for _ in range(800):                  a = sin x
        x = np.sin(x) * c       traced    b = mul a c         becomes     z = loop[800 trips] c x
                                          d = sin b ...

All that follows (derivatives, batches, machine code) then costs the same for 800 steps as for 80. Steps are equal if
they do the same operations for the same lines of the user. What a step reads may be the same in all steps (a constant
of the loop), what an earlier step made (a carry), or something else in each: another constant, or the next row of an
array (xs). What is read after the loop is a final carry, or a row of ys. No operation changes: the results are those of
the unrolled steps. Their derivatives may sum the same terms in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.base.source import Source
from funcgrad.control.periods import numbered, periods
from funcgrad.control.rolling import Rolling, Row, recorded
from funcgrad.control.steps import Steps, find_steps
from funcgrad.core.ir import Atom, Equation, Var
from funcgrad.core.trace import Trace, Tracer
from funcgrad.ops.broadcasting import reshape, reshape_p
from funcgrad.ops.movement import concatenate_p, convert, slice_

STEPS = 8  # the least number of steps that become a loop
EQUATIONS = 512  # and the least number of equations in all of them
MOVES = ("view", "index")  # kinds of operations that compute nothing


def roll(trace: Trace, results: Sequence[Atom]) -> None:
    """Roll up equal steps among the equations of `trace`, which is open and innermost, and returns `results`."""
    if len(trace.equations) < EQUATIONS:
        return
    trace.equations = _rolled(trace, trace.equations, set(results))
    used = set(results).union(*[e.inputs for e in trace.equations])
    for key, (value, var, _) in list(trace.captured.items()):
        if var not in used and isinstance(value, np.ndarray | np.generic):  # it is a row of another constant now
            del trace.captured[key]


def _rolled(trace: Trace, equations: list[Equation], wanted: set[Any], numbers: Any = None) -> list[Equation]:
    done: list[Equation] = []
    while len(equations) >= EQUATIONS:
        numbers = numbered(equations) if numbers is None else numbers
        found = _one(trace, equations, wanted, numbers)
        if found is None:
            break
        steps, looped, after, later = found
        needed = wanted.union(*[e.inputs for e in looped], *[e.inputs for e in after])
        done += [*_rolled(trace, equations[: steps.start], needed, numbers[: steps.start]), *looped]
        equations, numbers = after, later
    return [*done, *equations]


def _one(
    trace: Trace, equations: list[Equation], wanted: set[Any], numbers: Any
) -> tuple[Steps, list[Equation], list[Equation], Any] | None:
    """Steps, the loop that they are, what comes after it, and the numbers of that if they are known."""
    for begin, period, length in periods(numbers, STEPS):
        steps = find_steps(equations, begin, period, length) if length >= EQUATIONS else None
        if steps is None or steps.count < STEPS or len(steps.equations) < EQUATIONS or not _computes(steps):
            continue
        after = equations[steps.stop :]
        new = Rolling(trace, steps, wanted.union(*[e.inputs for e in after]), roll).equations()
        if new is not None:
            looped, rows = new
            if not rows:
                return steps, looped, after, numbers[steps.stop :]
            return steps, looped, _placed(trace, looped[-1].source, after, rows, wanted), None
    return None


def _computes(steps: Steps) -> bool:
    """Whether a step does more than to move values: rows that are taken out of ys are no steps of a loop."""
    return any([e.primitive.traits.kind not in MOVES and e.primitive.flops != 0 for e in steps.first])


# -- what is read after the loop


def _placed(
    trace: Trace, source: Source | None, after: Sequence[Equation], rows: dict[Var, Row], wanted: set[Any]
) -> list[Equation]:
    """`after`, with each row taken from its array where it is first read; rows put together again are the array."""
    waiting: dict[Var, Equation | None] = dict.fromkeys(rows)  # not taken yet; reshaped rows wait as well
    out: list[Equation] = []

    def take(a: Any) -> None:
        if a not in waiting:
            return
        reshaped = waiting.pop(a)
        if reshaped is None:
            out.extend(_taken(trace, source, a, rows[a]))
        else:
            take(reshaped.inputs[0])
            out.append(reshaped)

    for e in after:
        if e.primitive is reshape_p and e.inputs[0] in rows:
            rows[e.outputs[0]], waiting[e.outputs[0]] = rows[e.inputs[0]], e  # type: ignore[index]
            continue
        if e.primitive is concatenate_p and e.params["axis"] == 0:
            made, e = _together(trace, e, rows)
            out += made
        for a in e.inputs:
            take(a)
        out.append(e)
    for a in wanted:
        take(a)
    return out


def _together(trace: Trace, e: Equation, rows: dict[Var, Row]) -> tuple[list[Equation], Equation]:
    """A concatenation along the first axis, with neighbouring rows of an array as one operand: they are, in C order."""
    made: list[Equation] = []
    inputs: list[Atom] = []
    at = 0
    while at < len(e.inputs):
        array, first = rows.get(e.inputs[at], (None, 0))  # type: ignore[arg-type]
        end = at + 1
        while array is not None and end < len(e.inputs) and rows.get(e.inputs[end]) == (array, first + end - at):  # type: ignore[arg-type]
            end += 1
        if array is not None and end > at + 1:
            equations, taken = _slab(trace, e, at, end, array, first)
            made += equations
            inputs.append(taken)
        else:
            inputs.append(e.inputs[at])
        at = end
    return made, e.replace(inputs=tuple(inputs))


def _slab(trace: Trace, e: Equation, at: int, end: int, array: Var, first: int) -> tuple[list[Equation], Atom]:
    """Operands `at` to `end` of a concatenation, which are rows of `array`, as one."""
    shape, inner = array.aval.shape, e.outputs[0].aval.shape[1:]
    length = sum([a.aval.shape[0] for a in e.inputs[at:end]])

    def function() -> Any:
        start, stop = (first, *[0] * len(shape[1:])), (first + end - at, *shape[1:])
        taken = slice_(Tracer(trace, array), start, stop, (1,) * len(shape))
        return reshape(taken, (length, *inner))

    equations, taken = recorded(trace, e.source, function)
    return equations, taken.atom


def _taken(trace: Trace, source: Source | None, var: Var, row: Row) -> list[Equation]:
    """Equations that make `var` from its row."""
    array, at = row
    shape = array.aval.shape

    def function() -> Any:
        taken = slice_(Tracer(trace, array), (at, *[0] * len(shape[1:])), (at + 1, *shape[1:]), (1,) * len(shape))
        return convert(reshape(taken, var.aval.shape), var.aval.dtype, var.aval.weak)

    return _named(*recorded(trace, source, function), var)


def _named(equations: list[Equation], result: Any, var: Var) -> list[Equation]:
    """The equations, with `var` for the result, which is that of the last one."""
    assert equations[-1].outputs[0] is result.atom
    equations[-1] = equations[-1].replace(outputs=(var,))
    return equations
