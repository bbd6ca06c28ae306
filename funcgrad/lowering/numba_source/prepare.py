"""What is written as Numba code: a simplified Program, its bodies too, in the form in which it reads best.

Operations that give back their operand are gone; constants that go into a loop or branch stand in its body; a window of
one element or row is a read at its position; the index of a branch with two cases that comes from a bool is that bool:

    b = convert[dtype=i64] a; c = branch b x        becomes        c = branch a x        if a: ... else: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.base.dtypes import BOOL
from funcgrad.base.errors import UnsupportedError
from funcgrad.core.ir import Atom, Equation, Literal, Program, Var, make_aval, subprograms
from funcgrad.core.primitive import registry
from funcgrad.lowering.numba_source.spelling import CHECKS, ELEMENTS, SPELLINGS, expression, formless
from funcgrad.lowering.simplify import simplify
from funcgrad.transforms.prune import prune


def prepared(program: Program) -> Program:
    """A Program as it is written.

    Raises
    ------
    UnsupportedError
        An equation has no form here.
    """
    return program.remember("numba form", lambda: _prepare(simplify(program)))


def _prepare(program: Program) -> Program:
    _require_forms(program)
    env: dict[Atom, Atom] = {}
    makers: dict[Atom, Equation] = {}
    kept = []
    for e in program.equations:
        e = e.replace(inputs=tuple([env.get(a, a) for a in e.inputs]))
        kind = e.primitive.traits.kind
        if kind == "elementwise" and expression(e, ["x", "y", "z"][: len(e.inputs)]) == "x":
            env[e.outputs[0]] = e.inputs[0]
            continue
        if kind == "loop":
            e = _loop(e)
        elif kind == "branch":
            e = _branch(e, makers)
        makers.update(dict.fromkeys(e.outputs, e))
        kept += _as_gather(e) if kind == "window" else [e]
    outputs = tuple([env.get(a, a) for a in program.outputs])
    return prune(Program(program.inputs, tuple(kept), outputs, program.name, program.input_names))


def _loop(e: Equation) -> Equation:
    """A loop without constants among what it reads: they stand in its body."""
    p = e.params
    carried = range(1 + p["consts"], 1 + p["consts"] + p["carry"])
    fixed = [k for k, a in enumerate(e.inputs) if k and k not in carried and isinstance(a, Literal)]
    body = prepared(_filled_in(p["body"], e.inputs, fixed))
    inputs = tuple([a for k, a in enumerate(e.inputs) if k not in fixed])
    consts = p["consts"] - len([k for k in fixed if k <= p["consts"]])
    return e.replace(inputs=inputs, params={**p, "body": body, "consts": consts})


def _branch(e: Equation, makers: dict[Atom, Equation]) -> Equation:
    fixed = [k for k, a in enumerate(e.inputs) if k and isinstance(a, Literal)]
    branches = tuple([prepared(_filled_in(b, e.inputs, fixed)) for b in e.params["branches"]])
    inputs = tuple([a for k, a in enumerate(e.inputs) if k not in fixed])
    maker = makers.get(inputs[0])
    if maker is not None and len(branches) == 2 and maker.primitive.name == "convert":
        (flag,) = maker.inputs
        if flag.aval == make_aval((), BOOL) and not any([_reads(b, b.inputs[0]) for b in branches]):
            inputs = (flag, *inputs[1:])
    return e.replace(inputs=inputs, params={"branches": branches})


def _as_gather(e: Equation) -> list[Equation]:
    """A window that is one element, or one row, as what is read at that position."""
    x, *starts = e.inputs
    shape, sizes = x.aval.shape, e.params["sizes"]
    k = next((i for i, size in enumerate(sizes) if size != 1), len(sizes))
    if not k or sizes[k:] != shape[k:]:
        return [e]
    taken = Var(make_aval(shape[k:], x.aval.dtype))
    return [
        Equation(registry["gather"], (x, *starts[:k]), {}, (taken,), e.source),
        Equation(registry["reshape"], (taken,), {"shape": sizes}, e.outputs, e.source),
    ]


def _reads(program: Program, v: Var) -> bool:
    return v in program.outputs or any([v in e.inputs for e in program.equations])


def _filled_in(body: Program, operands: Sequence[Atom], fixed: Sequence[int]) -> Program:
    """A body with constants in place of the inputs `fixed`."""
    if not fixed:
        return body
    env: dict[Any, Atom] = {}
    for k in fixed:
        v, a = body.inputs[k], operands[k]
        assert isinstance(a, Literal)
        env[v] = Literal(a.value, v.aval)
    read = lambda atoms: tuple([env.get(a, a) for a in atoms])
    named = len(body.input_names) == len(body.inputs)
    rest = [k for k in range(len(body.inputs)) if k not in fixed]
    return Program(
        tuple([body.inputs[k] for k in rest]),
        tuple([e.replace(inputs=read(e.inputs)) for e in body.equations]),
        read(body.outputs),
        body.name,
        tuple([body.input_names[k] for k in rest]) if named else (),
    )


def _require_forms(program: Program) -> None:
    """Raise for the first equation of a flat Program that has no form here; bodies are looked at on their own."""
    for a in (*program.inputs, *program.outputs):
        _require_dtype(a, None)
    for e in program.equations:
        for a in (*e.inputs, *e.outputs):
            _require_dtype(a, e)
        kind, name = e.primitive.traits.kind, e.primitive.name
        if (kind == "elementwise" and name not in SPELLINGS) or (kind == "check" and name not in CHECKS):
            raise formless(e)
        if kind not in ("loop", "branch") and any([True for _ in subprograms(e)]):
            raise formless(e)


def _require_dtype(a: Atom, e: Equation | None) -> None:
    if a.aval.dtype.name not in ELEMENTS:
        raise UnsupportedError(
            f"the Numba lowering takes bool, integers, float32 and float64, not {a.aval}",
            source=e.source if e is not None else None,
        )


__all__ = ["prepared"]
