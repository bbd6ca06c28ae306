"""Symbolic zeros: a Program that is linear in some inputs, where some of these are zero.

In: the Program, and which inputs are zero. Out: the Program without those inputs, in which what they annihilate is not
computed; and which outputs are zero. A product with a symbolic zero is zero, whatever the other factor is.

    f(x, x_dot, y_dot) -> c: a = mul x_dot x; b = log x; c = add a (mul y_dot b)
    with y_dot zero becomes                       a = mul x_dot x; b = log x; c = add a 0.0
"""

from __future__ import annotations

from typing import Any

from funcgrad.base.dtypes import is_inexact
from funcgrad.core.check import checked
from funcgrad.core.ir import Atom, Equation, Literal, Program, Stack

Flags = tuple[bool, ...]


def zeros(program: Program, zero: Flags) -> tuple[Program, Flags]:
    """`program` for inputs that are zero.

    Parameters
    ----------
    zero
        For each input whether it is zero; True only for inputs that the Program is linear in.

    Returns
    -------
    program, zero
        Inputs: those that are not zero. The flags say for each output whether it is a constant zero.
    """
    return program.remember(("zeros", zero), lambda: _zeros(program, zero))


def _zeros(program: Program, zero: Flags) -> tuple[Program, Flags]:
    env: dict[Atom, Atom] = {v: _literal(v) for v, flag in zip(program.inputs, zero, strict=True) if flag}
    gone: set[Atom] = set(env)
    equations = []
    for e in program.equations:
        if gone.isdisjoint(e.inputs):
            equations.append(e)
        elif _annihilated(e, gone):
            env.update([(v, _literal(v)) for v in e.outputs])
            gone.update(e.outputs)
        else:
            e, flags = _inside(e, gone)
            equations.append(e.replace(inputs=tuple([env.get(a, a) for a in e.inputs])))
            vanished = [v for v, flag in zip(e.outputs, flags, strict=True) if flag and not isinstance(v.aval, Stack)]
            env.update([(v, _literal(v)) for v in vanished])
            gone.update(vanished)
    outputs = tuple([env.get(a, a) for a in program.outputs])
    names = program.input_names or ("",) * len(program.inputs)
    result = Program(
        tuple([v for v, flag in zip(program.inputs, zero, strict=True) if not flag]),
        tuple(equations),
        outputs,
        program.name,
        tuple([n for n, flag in zip(names, zero, strict=True) if not flag]),
    )
    return checked(result), tuple([_is_zero(a) for a in outputs])


def _inside(e: Equation, gone: set[Atom]) -> tuple[Equation, Flags]:
    """An equation that holds a Program, without its operands in `gone`; and which of its results are zero."""
    links = e.primitive.links(e.params) if e.primitive.links is not None else None
    if links is None or len(links.bodies) > 1 or links.carries or links.fixed or links.opaque:
        return e, (False,) * len(e.outputs)
    kept = tuple([a not in gone for a in e.inputs])
    body, flags = zeros(links.bodies[0], tuple([not k for k in kept]))
    params = links.rebuild((body,), kept, (True,) * len(e.outputs))
    return e.replace(inputs=tuple([a for a, k in zip(e.inputs, kept, strict=True) if k]), params=params), flags


def _literal(atom: Any) -> Literal:
    return Literal(atom.aval.dtype.type(0), atom.aval)


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and is_inexact(atom.aval.dtype) and atom.is_zero()


def _annihilated(e: Equation, gone: set[Atom]) -> bool:
    """Whether an equation with operands in `gone` is zero; a stack is not, for no constant says how long it is."""
    if any([isinstance(v.aval, Stack) for v in e.outputs]):
        return False
    traits = e.primitive.traits
    if traits.zero in ("product", "guard") or traits.kind == "dot":
        return True
    if e.primitive.links is not None:
        links = e.primitive.links(e.params)
        if not links.fixed and not links.opaque:  # beside tangents it may make values: see `_inside`
            return False
    moving = [a for a in e.inputs if is_inexact(a.aval.dtype)]
    return e.primitive.has("transpose") and all([a in gone or _is_zero(a) for a in moving])
