"""Which equations have code: what follows from their slots, and is the same for every target that emits LLVM text."""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.base.source import Source
from funcgrad.core.ir import Aval, Equation, Program, subprograms
from funcgrad.lowering.bodies import fits_in_kernels
from funcgrad.lowering.registers.kinds import fits
from funcgrad.lowering.schedule import CONTROL
from funcgrad.ops.scalar import ELEMENTS

Form = Callable[[Equation], bool]
EVERY = ("view", "index", "iota", "gather", "scatter", "window", "update", "dot")
"""Kinds all of whose operations have a form."""


def native_type(aval: Aval) -> bool:
    """Whether machine code can hold values of this type."""
    return aval.dtype in ELEMENTS


def form_of_slots(e: Equation, inside: Form) -> bool:
    """Whether an equation of a flat Program can be emitted; `inside` says it of those in its bodies."""
    if not all([native_type(a.aval) for a in (*e.inputs, *e.outputs)]):
        return False
    kind = e.primitive.traits.kind
    if kind in CONTROL:
        return fits(e) or (kind in ("loop", "branch") and fits_in_kernels(e, inside))
    if kind == "elementwise":
        return e.primitive.emit is not None
    if kind in ("reduce", "argreduce"):
        return e.primitive.reduction is not None
    if kind == "check":
        return e.primitive.check is not None
    if kind == "cumulative":
        return e.primitive.recurrence is not None
    return kind in EVERY


def require_computable(program: Program) -> None:
    """Raise if there is an operation that cannot be computed anywhere."""
    for e in program.equations:
        if e.primitive.refusal is not None:
            raise e.primitive.refusal(e.params).at(e.source)
        for _, body in subprograms(e):
            require_computable(body)


def obstacles(program: Program, form: Form) -> list[tuple[str, Source | None]]:
    """What keeps a flat Program from being one module: operations, also inside of loops, with the user's lines.

    An input or output without native type stands there as its type.
    """
    found: list[tuple[str, Source | None]] = []
    for e in program.equations:
        if not form(e):
            inside = [o for _, p in subprograms(e) for o in obstacles(p, form)]
            avals = [v.aval for v in (*e.inputs, *e.outputs) if not native_type(v.aval)]
            found += inside or [(f"{e.primitive.name}{f' of {avals[0].dtype}' if avals else ''}", e.source)]
    odd = [a.aval for a in (*program.inputs, *program.outputs) if not native_type(a.aval)]
    return found or [(str(aval), None) for aval in odd]
