"""Walking through a Program at a point: equation by equation, and into the Programs that equations hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

from funcgrad.api.tracing import Traced, trace, value_and_aval
from funcgrad.base.source import Source
from funcgrad.control.loop import parts
from funcgrad.core.evaluate import evaluate, run
from funcgrad.core.ir import Equation, Literal, Program, Stack, Var, subprograms
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import eagerly
from funcgrad.numpy.operands import operand
from funcgrad.testing.flat import Flat, is_float


def traced_function(flat: Flat) -> Traced:
    """What a function does at its point."""
    pairs = [value_and_aval(operand(a, n)) for a, n in zip(flat.x, flat.names, strict=True)]
    return trace(
        lambda leaves: flat.call(*leaves), pairs, flat.names, name=flat.name, purpose="check_grads", shows=True
    )


def narrowest(flat: Flat) -> Any:
    """The least precise floating-point dtype that a function computes with."""
    found = [np.dtype(float)]

    def look(program: Program) -> None:
        avals = [*program.in_avals, *program.out_avals, *[v.aval for e in program.equations for v in e.outputs]]
        found.extend([a.dtype for a in avals if a.dtype.kind in "fc"])
        for e in program.equations:
            for _, body in subprograms(e):
                look(body)

    look(traced_function(flat).program)
    return max(found, key=lambda dtype: np.finfo(dtype).eps)


def differenced(flat: Flat) -> tuple[Flat, Any]:
    """The function to take differences of, and the dtype that says how exact it is.

    That is the function in double precision if it stays there, and otherwise as it is.
    """
    wide = flat.wide()
    dtype = narrowest(wide)
    if np.finfo(dtype).eps > 2.0**-52 and not all([a is b for a, b in zip(wide.x, flat.x, strict=True)]):
        return flat, narrowest(flat)
    return wide, dtype


def compute(e: Equation, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of an equation, with NumPy."""
    return tuple((e.primitive.interpret or e.primitive.evaluate)(*operands, **e.params))


def as_values(program: Program, inputs: Sequence[Any]) -> dict[Any, Any]:
    """The inputs of a Program by Var, Python numbers as NumPy's."""
    pairs = zip(program.inputs, inputs, strict=True)
    return {v: np.asarray(x)[()] if type(x) in (float, complex) else x for v, x in pairs}


def steps(program: Program, inputs: Sequence[Any]) -> Iterator[tuple[Equation, list[Any], tuple[Any, ...]]]:
    """Each equation with the values of its operands and results."""
    env = as_values(program, inputs)
    for e in program.equations:
        operands = [a.array if isinstance(a, Literal) else env[a] for a in e.inputs]
        with eagerly():
            results = compute(e, operands)
        env.update(zip(e.outputs, results, strict=True))
        yield e, operands, results


def bodies(e: Equation, operands: Sequence[Any]) -> Iterator[tuple[str, Program, list[Any]]]:
    """What an equation runs: which trip, the Program, and its inputs. The Programs of rules are left out."""
    kind = e.primitive.traits.kind
    if kind == "loop":
        yield from _trips(e, operands)
    elif kind == "branch":
        branches = e.params["branches"]
        chosen = min(max(int(operands[0]), 0), len(branches) - 1)
        yield f"branch {chosen}", branches[chosen], list(operands)
    elif e.primitive.links is not None:
        for body in e.primitive.links(e.params).bodies:
            if len(body.inputs) == len(operands):
                yield "", body, list(operands)


def _trips(e: Equation, operands: Sequence[Any]) -> Iterator[tuple[str, Program, list[Any]]]:
    body, consts, carry = e.params["body"], e.params["consts"], e.params["carry"]
    cs, ks, xs = parts(operands, consts, carry)
    n, reverse, test = int(operands[0]), e.params["reverse"], e.params["test"]
    for i in range(n - 1, -1, -1) if reverse else _count(n):
        if test and not ks[0]:
            return
        inputs = [np.int64(i), *cs, *ks, *[x.at(i) if isinstance(x, Stacked) else x[i] for x in xs]]
        yield f"trip {i}", body, inputs
        with eagerly():
            ks = run(body, inputs)[:carry]


def _count(n: int) -> Iterator[int]:
    i = 0
    while i < n:
        yield i
        i += 1


def as_function(e: Equation, operands: Sequence[Any], declared: bool = False) -> Flat | None:
    """One equation as a function of its floating-point operands at a point; None if none of them moves a result.

    Operands whose derivative is declared away, as that of `stop_gradient` is, move only if `declared`.
    """
    return of_program(alone(e), operands, e.primitive.name, None if declared else e.primitive.moved_by)


def alone(e: Equation) -> Program:
    """The Program of one equation; what it used twice are two inputs."""
    inputs = tuple([Var(a.aval) for a in e.inputs])
    fixed = tuple([a if isinstance(a, Literal) else v for a, v in zip(e.inputs, inputs, strict=True)])
    outputs = tuple([Var(v.aval) for v in e.outputs])
    return Program(inputs, (e.replace(inputs=fixed, outputs=outputs),), outputs, e.primitive.name)


def of_program(
    program: Program, inputs: Sequence[Any], name: str, moved_by: Sequence[int] | None = None
) -> Flat | None:
    """A Program as a function of its floating-point inputs at a point (of those at some positions only).

    None if it has no such input or result.
    """
    used = {a for e in program.equations for a in e.inputs} | set(program.outputs)
    moving = [i for i, (v, x) in enumerate(zip(program.inputs, inputs, strict=True)) if v in used and _moves(v, x)]
    moving = [i for i in moving if moved_by is None or i in moved_by]
    kept = [i for i, a in enumerate(program.outputs) if a.aval.dtype.kind in "fc" and not isinstance(a.aval, Stack)]
    if not moving or not kept:
        return None

    def call(*x: Any) -> tuple[Any, ...]:
        values = list(inputs)
        for i, value in zip(moving, x, strict=True):
            values[i] = operand(value, name)
        found = evaluate(program, values)
        return tuple([found[i] for i in kept])

    names = [f"operand {i}" for i in moving]
    return Flat(call, [np.asarray(inputs[i])[()] for i in moving], names, [f"result {i}" for i in kept], name)


def _moves(v: Var, x: Any) -> bool:
    return is_float(x) and not isinstance(v.aval, Stack) and np.asarray(x).size > 0


def rules_of(e: Equation) -> list[tuple[str, Source | None]]:
    """The derivative rules of the user's that an equation holds: their names, and where each begins."""
    rules = e.params.get("rules", ())
    if not isinstance(rules, tuple):
        return []
    return [(p.name, written_at(p, e.source)) for p in rules if isinstance(p, Program)]


def written_at(rule: Program, applied: Source | None) -> Source | None:
    """Where the user's function begins that a rule does: not the one in which the rule was applied."""
    around = None if applied is None else applied.code
    codes = [s.code for s in sources(rule, around)]
    named = [code for code in codes if code.co_name in (rule.name, "<lambda>")]
    return Source((named or codes)[0], 0) if codes else None


def sources(program: Program, around: CodeType | None) -> Iterator[Source]:
    """The user's lines, then those of Programs that equations hold; without equations of the function `around`."""
    inner = [e for e in program.equations if e.source is None or e.source.code is not around]
    yield from [e.source for e in inner if e.source is not None]
    for e in inner:
        for _, body in subprograms(e):
            yield from sources(body, around)
