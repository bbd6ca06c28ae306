"""`call`: a Program applied as one operation, the boundary of jit.

Every transform of a call is a call of the transformed body; derived bodies are remembered on the body, so that
differentiating a jitted function twice derives and compiles nothing new.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from funcgrad.control.body import pull, push, rows
from funcgrad.core.check import checked
from funcgrad.core.evaluate import execute
from funcgrad.core.ir import Atom, Aval, Equation, Program, Var
from funcgrad.core.primitive import Links, Primitive, Traits
from funcgrad.core.trace import bind
from funcgrad.transforms.split import split

call_p = Primitive("call", Traits(kind="program"), "A Program applied as one operation.")


def call(program: Program, *args: Any, lowering: str = "llvm") -> tuple[Any, ...]:
    """Apply `program`: at once on plain arrays (through `execute`), or as one equation while tracing."""
    return bind(call_p, *args, program=program, lowering=lowering)


def _abstract(*avals: Aval, program: Program, lowering: str = "llvm") -> tuple[Aval, ...]:
    return program.out_avals


def _evaluate(*values: Any, program: Program, lowering: str = "llvm") -> tuple[Any, ...]:
    return tuple(execute(program, values, lowering))


def _jvp(primal: Any, primals: Any, tangents: Any, *, program: Program, lowering: str = "llvm") -> Any:
    return push(partial(call, lowering=lowering), program, primals, tangents)


def _split(e: Equation, unknown: tuple[bool, ...]) -> tuple[list[Equation], list[Equation]]:
    halves = split(e.params["program"], unknown)
    known_inputs = [a for a, u in zip(e.inputs, unknown, strict=True) if not u]
    unknown_inputs = [a for a, u in zip(e.inputs, unknown, strict=True) if u]
    residuals = [Var(a) for a in halves.known.out_avals[halves.out_unknown.count(False) :]]
    known_outputs = [v for v, u in zip(e.outputs, halves.out_unknown, strict=True) if not u]
    unknown_outputs = [v for v, u in zip(e.outputs, halves.out_unknown, strict=True) if u]
    before = Equation(
        call_p, tuple(known_inputs), e.params | {"program": halves.known}, (*known_outputs, *residuals), e.source
    )
    forwarded = [known_inputs[i] for i in halves.forwarded]
    after = Equation(
        call_p,
        (*forwarded, *residuals, *unknown_inputs),
        e.params | {"program": halves.unknown},
        tuple(unknown_outputs),
        e.source,
    )
    return [before], [after]


def _transpose(cts: Any, *args: Any, program: Program, lowering: str = "llvm") -> Any:
    return pull(partial(call, lowering=lowering), program, cts, args)


def _batch(size: int, args: Any, dims: Any, *, program: Program, lowering: str = "llvm") -> Any:
    return rows(partial(call, lowering=lowering), program, size, args, dims)


def _links(params: dict[str, Any]) -> Links:
    return Links((params["program"],), lambda bodies, inputs, results: params | {"program": bodies[0]})


call_p.hidden_params = {"lowering": "llvm"}
call_p.device_of = lambda params: None if params.get("lowering", "llvm") in ("llvm", "numba") else params["lowering"]
call_p.abstract = _abstract
call_p.evaluate = _evaluate
call_p.jvp = _jvp
call_p.split = _split
call_p.transpose = _transpose
call_p.batch = _batch
call_p.links = _links
call_p.effects_of = lambda params: params["program"].effects


def opened(program: Program) -> Program:
    """`program` with the calls in it replaced by what they compute, one equation after the other."""

    def visit(equations: tuple[Equation, ...], env: dict[Atom, Atom]) -> None:
        for e in equations:
            inputs = tuple([env.get(a, a) for a in e.inputs])
            if e.primitive is call_p:
                body = e.params["program"]
                inner: dict[Atom, Atom] = dict(zip(body.inputs, inputs, strict=True))
                visit(body.equations, inner)
                env.update(zip(e.outputs, [inner.get(a, a) for a in body.outputs], strict=True))
            else:
                outputs = tuple([Var(v.aval) for v in e.outputs])
                env.update(zip(e.outputs, outputs, strict=True))
                out.append(e.replace(inputs=inputs, outputs=outputs))

    if not any([e.primitive is call_p for e in program.equations]):
        return program
    out: list[Equation] = []
    env: dict[Atom, Atom] = {}
    visit(program.equations, env)
    outputs = tuple([env.get(a, a) for a in program.outputs])
    return checked(Program(program.inputs, tuple(out), outputs, program.name, program.input_names))
