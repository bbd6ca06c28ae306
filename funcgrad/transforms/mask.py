"""Structural zeros: make a zero that was put there by construction annihilate inf and NaN.

In: a Program that is linear in some inputs (a tangent Program, or a transposed one), which ones, and which of
these have structural zeros already (basis vectors). Out: the same Program in which a product or quotient of a
value that may hold structural zeros is guarded, and which outputs may hold them.

A zero is structural where select, pad or scatter put it, or where a guard passed it on; linear operations keep
it; a sum has it only if all its terms do. The gradient of ``where(x > 0, sqrt(x), 0)`` at 0 is then 0, while a
zero that merely happens (``sqrt(x**2)`` at 0) still gives NaN. Rules of ops know nothing of this.
"""

from __future__ import annotations

from typing import Any

from funcgrad.base.dtypes import is_inexact
from funcgrad.core.check import checked
from funcgrad.core.ir import Equation, Literal, Program
from funcgrad.core.links import fixpoint
from funcgrad.core.primitive import Links

Flags = tuple[bool, ...]


def mask(program: Program, linear: Flags, structural: Flags) -> tuple[Program, Flags]:
    """`program` with guarded products.

    Parameters
    ----------
    linear
        For each input, whether the Program is linear in it.
    structural
        For each input, whether it may hold structural zeros; True only where `linear` is.

    Returns
    -------
    program, structural
        The flags say for each output whether it may hold structural zeros.
    """
    return program.remember(("mask", linear, structural), lambda: _mask(program, linear, structural))


def _mask(program: Program, linear: Flags, structural: Flags) -> tuple[Program, Flags]:
    moving: set[Any] = {v for v, flag in zip(program.inputs, linear, strict=True) if flag}
    marked: set[Any] = {v for v, flag in zip(program.inputs, structural, strict=True) if flag}
    equations = []
    for e in program.equations:
        flags = [a in moving for a in e.inputs]
        if e.primitive.traits.kind == "stack_empty":  # zeros, however many
            marked.update(e.outputs)
        if any(flags):
            moving.update(_moved(e, flags))
            e = _guard(e, flags, marked)
        equations.append(e)
    out = tuple([a in marked or _is_zero(a) for a in program.outputs])
    if all([new is old for new, old in zip(equations, program.equations, strict=True)]):
        return program, out
    result = Program(program.inputs, tuple(equations), program.outputs, program.name, program.input_names)
    return checked(result), out


def _is_zero(atom: Any) -> bool:
    return isinstance(atom, Literal) and is_inexact(atom.aval.dtype) and atom.is_zero()


def _guard(e: Equation, flags: list[bool], marked: set[Any]) -> Equation:
    """The equation, guarded if it must be; adds its outputs to `marked` if they may hold structural zeros."""
    primitive = e.primitive
    links = primitive.links(e.params) if primitive.links is not None else None
    if links is not None and not links.opaque:
        linear = _linear_inputs(links, flags)
        carried = {i for _, i in links.carries}
        start = [a in marked or (i in carried and linear[i] and _is_zero(a)) for i, a in enumerate(e.inputs)]
        found, *flags_of = fixpoint(links, tuple(start), lambda body, inputs: _pair(mask(body, linear, inputs)))
        marked.update([v for v, flag in zip(e.outputs, _in_the_end(links, *flags_of), strict=True) if flag])
        bodies = tuple([body for body, _ in found])
        if all([new is old for new, old in zip(bodies, links.bodies, strict=True)]):
            return e
        everything = (True,) * len(e.inputs), (True,) * len(e.outputs)
        return e.replace(params=links.rebuild(bodies, *everything))
    carriers = [a for a, flag in zip(e.inputs, flags, strict=True) if flag]
    zero = primitive.traits.zero
    if zero == "sum":
        if all([a in marked or _is_zero(a) for a in e.inputs]):
            marked.update(e.outputs)
    elif zero == "source":
        if any([a in marked for a in carriers]) or any([_is_zero(a) for a in e.inputs]):
            marked.update(e.outputs)
    elif zero == "guard":
        marked.update(e.outputs)
        if primitive.guarded is not None and flags[-1] and e.inputs[-1] in marked:
            # t * c guarded for t while it was linear in t, now linear in c, which has structural zeros of its own
            return Equation(primitive.guarded, e.inputs, e.params, e.outputs, e.source)
    elif any([a in marked for a in carriers]):
        marked.update(e.outputs)
        if zero == "product" and primitive.guarded is not None:
            inputs = e.inputs
            if len(carriers) == 1 and flags[-1]:  # a product with the linear factor second: put it first
                inputs = (inputs[1], inputs[0])
            return Equation(primitive.guarded, inputs, e.params, e.outputs, e.source)
    return e


def _linear_inputs(links: Links, flags: list[bool]) -> Flags:
    """Which inputs of the bodies are linear, with what comes back to them."""
    return fixpoint(links, tuple(flags), lambda body, inputs: (body, _reached(body, inputs)))[1]


def _moved(e: Equation, flags: list[bool]) -> list[Any]:
    """The results of an equation that depend on the operands that are flagged, through values that have tangents."""
    if e.primitive.links is None:
        return [v for v in e.outputs if is_inexact(v.aval.dtype)]
    links = e.primitive.links(e.params)
    _, *flags_of = fixpoint(links, tuple(flags), lambda body, inputs: (body, _reached(body, inputs)))
    return [v for v, flag in zip(e.outputs, _in_the_end(links, *flags_of), strict=True) if flag]


def _in_the_end(links: Links, inputs: Flags, out: Flags) -> Flags:
    """The flags of the results: of what a body returns, and of what a carry begins with, if there is no trip."""
    begin = dict(links.carries)
    return tuple([flag or (j in begin and inputs[begin[j]]) for j, flag in enumerate(out)])


def _reached(program: Program, flags: Flags) -> Flags:
    """Which outputs depend on the inputs that are flagged, through values that have tangents."""
    return program.remember(("reached", flags), lambda: _reached_anew(program, flags))


def _reached_anew(program: Program, flags: Flags) -> Flags:
    moving: set[Any] = {v for v, flag in zip(program.inputs, flags, strict=True) if flag}
    for e in program.equations:
        found = [a in moving for a in e.inputs]
        if any(found):
            moving.update(_moved(e, found))
    return tuple([a in moving for a in program.outputs])


def _pair(result: tuple[Program, Flags]) -> tuple[tuple[Program, Flags], Flags]:
    return result, result[1]
