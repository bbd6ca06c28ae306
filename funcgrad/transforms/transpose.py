"""Reverse mode: turn a linear Program round.

In: a Program that is linear in some inputs, which ones, and which outputs have a cotangent. Out: the Program from
the other inputs and those cotangents to the cotangents of the linear inputs; and which of these are not zero.

    f(r, x_dot) -> c: c = mul x_dot r        becomes        f(r, c_bar) -> x_bar: x_bar = mul c_bar r
"""

from __future__ import annotations

from typing import Any

from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import LinearityError, RuleError
from funcgrad.core.check import checked
from funcgrad.core.ir import Equation, Literal, Program, tangent_aval
from funcgrad.core.primitive import Linear
from funcgrad.core.trace import Trace, Tracer
from funcgrad.ops.op import accumulate

Flags = tuple[bool, ...]


def transpose(program: Program, linear: Flags, nonzero: Flags, seeded: Flags = ()) -> tuple[Program, Flags]:
    """The transposed Program.

    Parameters
    ----------
    linear
        For each input, whether the Program is linear in it.
    nonzero
        For each output, whether it has a cotangent.
    seeded
        For each linear input, whether a sum of cotangents is given that its own are added to; default: none.

    Returns
    -------
    program, nonzero
        Inputs: the nonlinear inputs, one cotangent per True of `nonzero`, one sum per True of `seeded`. Outputs: the
        cotangents of the linear inputs that are not zero; the flags say for each linear input whether it is there.
    """
    key = ("transpose", linear, nonzero, seeded)
    return program.remember(key, lambda: _transpose(program, linear, nonzero, seeded))


def _transpose(program: Program, linear: Flags, nonzero: Flags, seeded: Flags) -> tuple[Program, Flags]:
    cotangents: dict[Any, Any] = {}
    puts: dict[Any, Equation | None] = {}  # what made the only cotangent so far, if that is a few values put into zeros
    replaced: set[Any] = set()  # results of putting that were added in place
    moving: set[Any] = {v for v, flag in zip(program.inputs, linear, strict=True) if flag}
    forward = [v for v, flag in zip(program.inputs, linear, strict=True) if flag]

    def give(atom: Any, ct: Any) -> None:
        if ct is not None and not isinstance(atom, Literal) and atom in moving:
            old = cotangents.get(atom)
            if old is None:
                cotangents[atom], puts[atom] = ct, _put(t, ct)
            else:
                cotangents[atom] = _sum(t, old, ct, puts.pop(atom, None), replaced)

    with Trace(program.name) as t:
        names = program.input_names or ("",) * len(program.inputs)
        for v, flag, name in zip(program.inputs, linear, names, strict=True):
            if not flag:
                t.adopt(v, name=name)
        seeds = [
            t.input(tangent_aval(a.aval)) if flag else None for a, flag in zip(program.outputs, nonzero, strict=True)
        ]
        for v, flag in zip(forward, seeded or (False,) * len(forward), strict=True):
            if flag:
                cotangents[v] = t.input(tangent_aval(v.aval))
        backward = []
        lost: set[Any] = set()  # truth values and integers that depend on what the Program is linear in
        for e in program.equations:
            if moving.isdisjoint(e.inputs) and lost.isdisjoint(e.inputs):
                t.emit(e)
            else:
                moving.update([v for v in e.outputs if is_inexact(v.aval.dtype)])
                lost.update([v for v in e.outputs if not is_inexact(v.aval.dtype)])
                backward.append(e)
        for a, seed in zip(program.outputs, seeds, strict=True):
            give(a, seed)
        for e in reversed(backward):
            cts = [cotangents.pop(v, None) for v in e.outputs]
            if not any([c is not None for c in cts]):
                continue
            t.source = e.source
            args = [Linear(a.aval) if a in moving else Tracer(t, a) for a in e.inputs]
            _require_linear(e, args, lost)
            try:
                results = e.primitive.transpose(cts, *args, **e.params)
            except RuleError as error:
                raise error.at(e.source) from None
            for a, ct in zip(e.inputs, results, strict=True):
                give(a, ct)
        out_nonzero = tuple([v in cotangents for v in forward])
        outputs = [cotangents[v] for v in forward if v in cotangents]
        if replaced:
            replaced -= {a for e in t.equations for a in e.inputs} | {t.atom(o) for o in outputs}
            t.equations[:] = [e for e in t.equations if replaced.isdisjoint(e.outputs)]
        result = t.program(outputs)
    assert not t.captured, "a transpose rule captured a value"
    return checked(result), out_nonzero


def _put(t: Trace, ct: Any) -> Equation | None:
    """The last equation, if it made `ct` by putting a few values into zeros."""
    last = t.equations[-1] if t.equations else None
    if last is None or last.outputs != (ct.atom,) or last.primitive.add_onto is None:
        return None
    zeros = last.inputs[0]
    return last if isinstance(zeros, Literal) and zeros.is_zero() else None


def _sum(t: Trace, total: Any, ct: Any, put: Equation | None, replaced: set[Any]) -> Any:
    """``total + ct``; where one of them, `total` by `put`, is a few values put into zeros, these are added in place.

    The result of putting them joins `replaced`: it goes, unless something else reads it.
    """
    last = _put(t, ct)
    if last is not None:
        put = last
    elif put is not None:
        total = ct
    if put is None:
        return accumulate(total, ct)
    replaced.update(put.outputs)
    add_onto = put.primitive.add_onto
    assert add_onto is not None
    return add_onto(total, *[Tracer(t, a) for a in put.inputs[1:]], **put.params)


def _require_linear(e: Equation, args: list[Any], lost: set[Any]) -> None:
    """Raise if the equation is not linear in its `Linear` operands: only rules of users can be so wrong."""
    primitive = e.primitive
    where = [i for i, a in enumerate(args) if isinstance(a, Linear)]
    declined = "transpose" in primitive.declined and not primitive.has("transpose")
    bilinear = primitive.traits.zero in ("product", "guard") or primitive.traits.kind == "dot"
    wrong = primitive.linear_in is not None and not set(where) <= set(primitive.linear_in)
    if declined or wrong or (bilinear and len(where) == len(args)) or not lost.isdisjoint(e.inputs):
        raise LinearityError(
            f"a derivative rule is not linear in its tangents: {primitive.name} of what depends on them",
            source=e.source,
            hint="multiply a tangent by what depends on the primals only; a function of a tangent is not linear",
        )
