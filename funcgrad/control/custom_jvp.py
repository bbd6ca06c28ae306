"""`custom_jvp`: a Program with a derivative of its own.

    y = custom_jvp[program=f rules=(f_jvp,) captured=1] c x        f(c, x) -> y;  f_jvp(c, x, x_dot) -> (y, y_dot)

The rule says how the result moves with the arguments. How it moves with what the function captured (c) is the
derivative of the function itself. Both are Programs in place of the equation, so higher orders differentiate them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.base.dtypes import is_inexact
from funcgrad.control.body import computed, inlined, pull, push
from funcgrad.control.rules import Later, Rules, change, resolve
from funcgrad.core.ir import Aval, Program
from funcgrad.core.primitive import Links, Primitive, Traits
from funcgrad.core.trace import bind
from funcgrad.ops.op import accumulate
from funcgrad.transforms.batch import Dims, batch, batch_onto
from funcgrad.transforms.zeros import zeros

custom_jvp_p = Primitive("custom_jvp", Traits(kind="program"), "A Program with a forward rule of its own.")
custom_jvp_p.hidden_params = {"captured": 0}


def _abstract(*avals: Aval, program: Program, rules: Rules, captured: int) -> tuple[Aval, ...]:
    return program.out_avals


def _evaluate(*values: Any, program: Program, rules: Rules, captured: int) -> tuple[Any, ...]:
    return computed(program, *values)


def _jvp(primal: Any, primals: Any, tangents: Any, *, program: Program, rules: Rules, captured: int) -> Any:
    ruled = lambda moving: _ruled(program, resolve(rules)[0], primals, moving)
    return by_rule_and_code(ruled, primal, program, primals, tangents, captured)


def by_rule_and_code(
    ruled: Callable[[Any], Any], primal: Any, program: Program, primals: Any, tangents: Any, captured: int
) -> Any:
    """Outputs and tangents: those of the arguments by the rule, those of what was captured by the code."""
    outs, dots = None, [None] * len(program.outputs)
    if any([t is not None for t in tangents[captured:]]):
        outs, dots = ruled(tangents[captured:])
    if any([t is not None for t in tangents[:captured]]):
        fixed = [*tangents[:captured], *[None] * (len(tangents) - captured)]
        values, more = push(inlined, program, primals, fixed)
        outs = values if outs is None else outs
        dots = [b if a is None else a if b is None else accumulate(a, b) for a, b in zip(dots, more, strict=True)]
    return primal() if outs is None else outs, dots


def _ruled(program: Program, rule: Program, primals: Any, tangents: Any) -> Any:
    """Outputs, and their tangents by the rule."""
    avals = program.in_avals[len(primals) - len(tangents) :]
    moving = [t for t, aval in zip(tangents, avals, strict=True) if is_inexact(aval.dtype)]
    given = [t for t in moving if t is not None]
    derived, zero = zeros(rule, (*[False] * len(primals), *[t is None for t in moving]))
    results = inlined(derived, *primals, *given)
    n = len(program.outputs)
    found = iter(zip(results[n:], zero[n:], strict=True))
    dots = []
    for aval in program.out_avals:
        dot, none = next(found) if is_inexact(aval.dtype) else (None, True)
        dots.append(None if none else dot)
    return results[:n], dots


def _transpose(cts: Any, *args: Any, program: Program, rules: Rules, captured: int) -> Any:
    return pull(inlined, program, cts, args)


def _batch(size: int, args: Any, dims: Any, *, program: Program, rules: Rules, captured: int) -> Any:
    avals = program.in_avals[captured:]
    moving = [d for d, aval in zip(dims[captured:], avals, strict=True) if is_inexact(aval.dtype)]
    given = (*dims, *moving)
    outs = tuple([0 if rows else None for rows in _rows(program, rules, size, tuple(dims), given)])
    dots = tuple([d for d, aval in zip(outs, program.out_avals, strict=True) if is_inexact(aval.dtype)])
    body = batch_onto(program, size, tuple(dims), outs)
    rules = change(rules, lambda r: (batch_onto(r[0], size, given, outs + dots),), ("batched", size, given))
    return bind(custom_jvp_p, *args, program=body, rules=rules, captured=captured), outs


def _rows(program: Program, rules: Rules, size: int, dims: Dims, given: Dims) -> list[bool]:
    """For each output whether it, or its tangent, differs from row to row; of a rule that is traced later, all do."""
    if isinstance(rules, Later):
        return [True] * len(program.outputs)
    rows = [d is not None for d in batch(program, size, dims)[1]]
    found = [d is not None for d in batch(rules[0], size, given)[1]]
    dots = iter(found[len(rows) :])
    inexact = [is_inexact(aval.dtype) for aval in program.out_avals]
    moves = [next(dots) if flag else False for flag in inexact]
    return [a or b or c for a, b, c in zip(rows, found, moves, strict=False)]


def _links(params: dict[str, Any]) -> Links:
    return Links((params["program"],), lambda bodies, *_: {**params, "program": bodies[0]}, fixed=True)


custom_jvp_p.abstract = _abstract
custom_jvp_p.evaluate = _evaluate
custom_jvp_p.jvp = _jvp
custom_jvp_p.transpose = _transpose
custom_jvp_p.batch = _batch
custom_jvp_p.links = _links
custom_jvp_p.effects_of = lambda params: params["program"].effects
