"""`call`: a Program applied as one operation, the boundary of jit.

Every transform of a call is a call of the transformed body; derived bodies are remembered on the body, so that
differentiating a jitted function twice derives and compiles nothing new.
"""

from __future__ import annotations

from typing import Any

from funcgrad.core.evaluate import execute
from funcgrad.core.ir import Aval, Equation, Program, Var
from funcgrad.core.primitive import Linear, Links, Primitive, Traits
from funcgrad.core.trace import bind
from funcgrad.transforms.batch import batch
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.split import split
from funcgrad.transforms.transpose import transpose

call_p = Primitive("call", Traits(kind="program"), "A Program applied as one operation.")


def call(program: Program, *args: Any, lowering: str = "llvm") -> tuple[Any, ...]:
    """Apply `program`: at once on plain arrays (through `execute`), or as one equation while tracing."""
    return bind(call_p, *args, program=program, lowering=lowering)


def _abstract(*avals: Aval, program: Program, lowering: str = "llvm") -> tuple[Aval, ...]:
    return program.out_avals


def _evaluate(*values: Any, program: Program, lowering: str = "llvm") -> tuple[Any, ...]:
    return tuple(execute(program, values, lowering))


def _jvp(primal: Any, primals: Any, tangents: Any, *, program: Program, lowering: str = "llvm") -> Any:
    derived, nonzero = jvp(program, tuple([t is not None for t in tangents]))
    results = call(derived, *primals, *[t for t in tangents if t is not None], lowering=lowering)
    dots = iter(results[len(nonzero) :])
    return results[: len(nonzero)], [next(dots) if flag else None for flag in nonzero]


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
    linear = tuple([isinstance(a, Linear) for a in args])
    backward, nonzero = transpose(program, linear, tuple([c is not None for c in cts]))
    values = [a for a in args if not isinstance(a, Linear)]
    seeds = [c for c in cts if c is not None]
    results = iter(call(backward, *values, *seeds, lowering=lowering) if any(nonzero) else ())
    flags = iter(nonzero)
    return [next(results) if flag and next(flags) else None for flag in linear]


def _batch(size: int, args: Any, dims: Any, *, program: Program, lowering: str = "llvm") -> Any:
    batched, out_dims = batch(program, size, tuple(dims))
    return call(batched, *args, lowering=lowering), out_dims


def _links(params: dict[str, Any]) -> Links:
    return Links((params["program"],), lambda bodies, inputs, results: params | {"program": bodies[0]})


call_p.hidden_params = {"lowering": "llvm"}
call_p.abstract = _abstract
call_p.evaluate = _evaluate
call_p.jvp = _jvp
call_p.split = _split
call_p.transpose = _transpose
call_p.batch = _batch
call_p.links = _links
call_p.effects_of = lambda params: params["program"].effects
